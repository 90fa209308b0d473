"""What a study's numbers say about the papers' three questions, in sentences."""

import numpy as np
import pandas as pd

from ..effective_depth.rules import PAPER_METRICS
from ..results.study import TRAINING, facts_of

_MOST_NAMES = 3  # of models or datasets in one sentence; more are counted


def conclusions(intervals: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """A sentence each: how much depth is used; by size, training, task; how sure that is; beside the paper.

    intervals: what `depths_with_intervals` returns; published: what `beside_the_paper` does. Groups of runs are
    compared on what both have, with an interval over prompts; where they have nothing in common, the sentence says so.
    """
    facts = intervals.model.map(facts_of)
    runs = intervals.assign(
        training=[model.training for model in facts], billions=[model.billions for model in facts]
    ).astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float))
    runs["size"] = runs.billions if runs.billions.notna().all() else runs.layers.astype(int)
    if runs.ratio.isna().all():
        return ["No model has an effective depth here."]
    return [_depth_used(runs), *_size(runs), *_training(runs), *_task(runs), _certainty(runs), *_published(published)]


def _depth_used(runs: pd.DataFrame) -> str:
    parts = []
    for metric in PAPER_METRICS:
        ratios = runs[runs.metric == metric].ratio
        if ratios.count() == 1:
            parts.append(f"{ratios.max():.0%} by {metric}")
        elif ratios.count():
            span = f"{ratios.min():.0%} to {ratios.max():.0%} by {metric}"
            parts.append(f"{span} (median {ratios.median():.0%}; {ratios.count()} of {len(ratios)} runs)")
    return f"The share of its depth after which a model only refines its answer: {', '.join(parts)}."


def _size(runs: pd.DataFrame) -> list[str]:
    known = runs.dropna(subset="ratio")
    small, large = known["size"].min(), known["size"].max()
    unit = "billion parameters" if runs.billions.notna().all() else "blocks"
    change = mean_change(runs, "size", (small, large), ["dataset", "training"])
    return [f"Size: from {small:g} to {large:g} {unit}, {change}."] if small < large else []


def _training(runs: pd.DataFrame) -> list[str]:
    known = [training for training in reversed(TRAINING) if training in set(runs.training) - {"unknown"}]
    return [
        f"Training: from {known[0]} to {training}, "
        f"{mean_change(runs, 'training', (known[0], training), ['dataset', 'size'])}."
        for training in known[1:]
    ]


def _task(runs: pd.DataFrame) -> list[str]:
    first, *others = runs.dataset.unique()
    return [
        f"Task: from {first} to {dataset}, {mean_change(runs, 'dataset', (first, dataset), ['model'])}."
        for dataset in others
    ]


def mean_change(runs: pd.DataFrame, column: str, groups: tuple, same: list[str]) -> str:
    """How the mean ratio changes from one group of runs to another, by each metric and with its interval.

    groups: two values of `column`; same: columns on whose values both groups are compared, each with the same weight.
    The interval adds up the squared distances to the ends of the runs' own (Zou & Donner 2008).
    """
    runs = runs.dropna(subset="ratio").assign(
        down=lambda rows: ((rows.ratio - rows.ratio_low) ** 2).fillna(np.inf),
        up=lambda rows: ((rows.ratio_high - rows.ratio) ** 2).fillna(np.inf),
    )
    changes, places = [], []
    for metric in PAPER_METRICS:
        rows = runs[runs.metric == metric]
        before, after = (_means(rows[rows[column] == group], same) for group in groups)
        before, after = before.align(after, join="inner", axis=0)
        if len(after):
            change = (after.ratio - before.ratio).mean()
            down = np.sqrt((after.down + before.up).sum()) / len(after)
            up = np.sqrt((after.up + before.down).sum()) / len(after)
            interval = f"[{change - down:+z.2f}, {change + up:+z.2f}]" if np.isfinite(down + up) else "(no interval)"
            names = after.index.get_level_values(0).unique()
            where = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} {same[0]}s"
            changes.append(f"{change:+z.2f} {interval} by {metric}")
            places.append(where)
    if not changes:
        return f"nothing can be said: no {' and '.join(same)} in common"
    if len(set(places)) > 1:
        changes = [f"{change} ({where})" for change, where in zip(changes, places, strict=True)]
    return f"the mean ratio changes by {', '.join(changes)}" + (f" ({places[0]})" if len(set(places)) == 1 else "")


def _means(rows: pd.DataFrame, same: list[str]) -> pd.DataFrame:
    """The mean ratio of each group of runs, and the squared distances down and up to the ends of its interval."""
    groups = rows.groupby(same)[["ratio", "down", "up"]]
    means = groups.mean()
    return means.assign(down=means.down / groups.size(), up=means.up / groups.size())


def _certainty(runs: pd.DataFrame) -> str:
    width = runs.high - runs.low
    counts = {
        "known to within a layer": (width <= 1).sum(),
        "known less well": (width > 1).sum(),
        "without a closed interval": width.isna().sum(),
        "without an effective depth": runs.ed.isna().sum(),
    }
    return f"Of {len(runs)} depths: {', '.join(f'{count} {name}' for name, count in counts.items() if count)}."


def _published(published: pd.DataFrame) -> list[str]:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in published.verdict.value_counts().items())
    return [f"Of {len(published)} depths that the paper has too: {counts}."] if len(published) else []
