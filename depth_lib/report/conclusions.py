"""What a study's numbers say about the papers' three questions, in sentences."""

from collections.abc import Callable

import pandas as pd

from ..effective_depth.rules import PAPER_METRICS
from ..results.study import TRAINING, read_name


def conclusions(intervals: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """A sentence each: how much depth is used; by size, training, task; how sure that is; beside the paper.

    intervals: what `depths_with_intervals` returns; published: what `beside_the_paper` does. A question that the models
    and datasets cannot answer is left out.
    """
    found = intervals.dropna(subset=["ratio"]).astype({"ratio": float})
    if found.empty:
        return ["No model has an effective depth here."]
    sentences = [_levels(intervals, found), *_size(found)]
    sentences += _between(found, "training", lambda row: read_name(row.model).training, TRAINING[::-1])
    sentences += _between(found, "task", lambda row: row.dataset, tuple(found.dataset.unique()))
    sentences.append(_certainty(intervals))
    if len(published):
        counts = published.verdict.value_counts()
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        sentences.append(f"Of {len(published)} depths that the paper has too: {said}.")
    return sentences


def _levels(intervals: pd.DataFrame, found: pd.DataFrame) -> str:
    parts = []
    for metric in PAPER_METRICS:
        ratios, n = found[found.metric == metric].ratio, int((intervals.metric == metric).sum())
        if len(ratios):
            span = f"{ratios.min():.0%} to {ratios.max():.0%} (median {ratios.median():.0%}"
            parts.append(f"{span}; {len(ratios)} of {n} runs) by {metric}")
    return f"The share of its depth after which a model only refines its answer: {', '.join(parts)}."


def _size(found: pd.DataFrame) -> list[str]:
    billions = found.model.map(lambda model: read_name(model).billions)
    sizes, unit = (billions, "billion parameters") if billions.notna().all() else (found.layers.astype(int), "blocks")
    small, large = sizes.min(), sizes.max()
    if small == large:
        return []
    changes = _means(found, sizes, (small, large))
    return [f"Size: from {small:g} to {large:g} {unit} the mean ratio goes from {changes}."] if changes else []


def _between(found: pd.DataFrame, name: str, group_of: Callable, order: tuple[str, ...]) -> list[str]:
    """The mean ratio of each group, in one sentence, if there are two groups or more."""
    groups = pd.Series([group_of(row) for row in found.itertuples()], index=found.index)
    there = [group for group in order if (groups == group).any()]
    if len(there) < 2 or not (changes := _means(found, groups, there)):
        return []
    return [f"{name.capitalize()}: from {' to '.join(there)} the mean ratio goes from {changes}."]


def _means(found: pd.DataFrame, groups: pd.Series, order: tuple | list) -> str:
    """ "0.50 to 0.25 by kl, ..." over the metrics that every group has."""
    parts = []
    for metric in PAPER_METRICS:
        mean = found[found.metric == metric].groupby(groups).ratio.mean()
        if all(group in mean for group in order):
            parts.append(f"{' to '.join(f'{mean[group]:.2f}' for group in order)} by {metric}")
    return ", ".join(parts)


def _certainty(intervals: pd.DataFrame) -> str:
    measured = intervals.dropna(subset=["low", "high"])
    narrow = int((measured.high - measured.low <= 1).sum())
    none = int(intervals.ed.isna().sum())
    lacking = f"; {none} have no effective depth" if none else ""
    return (
        f"Of {len(intervals)} depths, {narrow} are known to within a layer, {len(measured) - narrow} less well, and "
        f"{len(intervals) - len(measured)} have no closed interval{lacking}."
    )
