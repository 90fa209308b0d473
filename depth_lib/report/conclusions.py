"""What a study's numbers say about the papers' three questions, in sentences."""

import math

import pandas as pd

from ..effective_depth.rules import PAPER_METRICS
from ..results.study import TRAINING, facts_of


def conclusions(intervals: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """A sentence each: how much depth is used; by size, training, task; how sure that is; beside the paper.

    intervals: what `depths_with_intervals` returns; published: what `beside_the_paper` does. Groups of runs are
    compared on what both have, with an interval over prompts; where they have nothing in common, the sentence says so.
    """
    facts = intervals.model.map(facts_of)
    every = intervals.assign(
        training=[model.training for model in facts], billions=[model.billions for model in facts]
    ).astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float))
    every["size"] = every.billions if every.billions.notna().all() else every.layers.astype(int)
    found = every.dropna(subset=["ratio"])
    if found.empty:
        return ["No model has an effective depth here."]
    return [
        _shares(every, found),
        *_size(found),
        *_training(found),
        *_task(found),
        _certainty(intervals),
        *_mixed(intervals),
        *_published(published),
    ]


def _shares(every: pd.DataFrame, found: pd.DataFrame) -> str:
    parts = []
    for metric in PAPER_METRICS:
        ratios, n = found[found.metric == metric].ratio, int((every.metric == metric).sum())
        if len(ratios):
            span = f"{ratios.min():.0%} to {ratios.max():.0%} (median {ratios.median():.0%}"
            parts.append(f"{span}; {len(ratios)} of {n} runs) by {metric}")
    return f"The share of its depth after which a model only refines its answer: {', '.join(parts)}."


def _size(found: pd.DataFrame) -> list[str]:
    small, large = found["size"].min(), found["size"].max()
    if small == large:
        return []
    unit = "billion parameters" if found.billions.notna().all() else "blocks"
    change = mean_change(found, "size", (small, large), ["dataset", "training"])
    if not change:
        return ["Size: cannot be said, as the smallest and the largest models share no dataset and training."]
    return [f"Size: from {small:g} to {large:g} {unit} the mean ratio changes by {change}."]


def _training(found: pd.DataFrame) -> list[str]:
    known = [training for training in reversed(TRAINING) if training in set(found.training) - {"unknown"}]
    sentences = []
    for training in known[1:]:
        change = mean_change(found, "training", (known[0], training), ["dataset", "size"])
        said = f"the mean ratio changes by {change}" if change else "cannot be said, as they share no dataset and size"
        sentences.append(f"Training: from {known[0]} to {training}, {said}.")
    return sentences


def _task(found: pd.DataFrame) -> list[str]:
    first, *others = found.dataset.unique()
    sentences = []
    for dataset in others:
        change = mean_change(found, "dataset", (first, dataset), ["model"])
        said = f"the mean ratio changes by {change}" if change else "cannot be said, as they share no model"
        sentences.append(f"Task: from {first} to {dataset}, {said}.")
    return sentences


def mean_change(found: pd.DataFrame, column: str, groups: tuple, same: list[str]) -> str:
    """How the mean ratio changes from one group of runs to another: "+0.10 [+0.02, +0.18] by kl (gsm8k, aime24)".

    groups: two values of `column`; same: columns on whose values both groups are compared, each with the same weight.
    The interval adds up the squared distances to the ends of the runs' own (Zou & Donner 2008). "" if no value of
    `same` is in both groups by any metric.
    """
    parts = []
    for metric in PAPER_METRICS:
        rows = found[found.metric == metric]
        before, after = (dict(tuple(rows[rows[column] == group].groupby(same))) for group in groups)
        shared = [cell for cell in before if cell in after]
        if not shared:
            continue
        ends = [(_mean(before[cell]), _mean(after[cell])) for cell in shared]
        change = sum(new[0] - old[0] for old, new in ends) / len(shared)
        down = math.sqrt(sum(new[1] ** 2 + old[2] ** 2 for old, new in ends)) / len(shared)
        up = math.sqrt(sum(new[2] ** 2 + old[1] ** 2 for old, new in ends)) / len(shared)
        interval = "no interval" if math.isnan(down + up) else f"[{change - down:+.2f}, {change + up:+.2f}]"
        names = ", ".join(dict.fromkeys(str(cell[0]) for cell in shared))
        parts.append(f"{change:+.2f} {interval} by {metric} ({names})")
    return ", ".join(parts)


def _mean(rows: pd.DataFrame) -> tuple[float, float, float]:
    """The mean ratio, and how far down and up its interval reaches; nan where a run's interval is open."""
    down = math.sqrt(((rows.ratio - rows.ratio_low) ** 2).sum(skipna=False)) / len(rows)
    up = math.sqrt(((rows.ratio_high - rows.ratio) ** 2).sum(skipna=False)) / len(rows)
    return rows.ratio.mean(), down, up


def _certainty(intervals: pd.DataFrame) -> str:
    closed = intervals.dropna(subset=["low", "high"])
    narrow = int((closed.high - closed.low <= 1).sum())
    none = int(intervals.ed.isna().sum())
    lacking = f"; {none} have no effective depth" if none else ""
    return (
        f"Of {len(intervals)} depths, {narrow} are known to within a layer, {len(closed) - narrow} less well, and "
        f"{len(intervals) - len(closed)} have no closed interval{lacking}."
    )


def _mixed(intervals: pd.DataFrame) -> list[str]:
    """Runs whose metrics rest on different numbers of prompts."""
    sentences = []
    for (model, dataset), rows in intervals.groupby(["model", "dataset"], sort=False):
        prompts = rows.set_index("metric").prompts.dropna()
        if prompts.nunique() > 1:
            counts = ", ".join(f"{metric} {n}" for metric, n in prompts.items())
            sentences.append(f"Mixed numbers of prompts for {model} on {dataset}: {counts}; run the sweep again.")
    return sentences


def _published(published: pd.DataFrame) -> list[str]:
    if published.empty:
        return []
    counts = ", ".join(f"{count} {verdict}" for verdict, count in published.verdict.value_counts().items())
    return [f"Of {len(published)} depths that the paper has too: {counts}."]
