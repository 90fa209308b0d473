"""What a study's numbers say about the papers' three questions; conclusions.txt.jinja has the sentences."""

import importlib.resources

import jinja2
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
    runs = intervals.astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float))
    runs["training"] = [facts_of(model).training for model in runs.model]
    runs["size"], unit = [facts_of(model).billions for model in runs.model], "billion parameters"
    if runs["size"].isna().any():
        runs["size"], unit = runs.layers.astype(int), "blocks"
    sizes = runs["size"][runs.ratio.notna()]
    if sizes.empty:
        return ["No model has an effective depth here."]
    trainings = [name for name in reversed(TRAINING) if name in set(runs.training) - {"unknown"}]
    datasets = runs.dataset.unique()
    questions = [("Size", "size", sizes.min(), sizes.max(), ["dataset", "training"])]
    questions += [("Training", "training", trainings[0], other, ["dataset", "size"]) for other in trainings[1:]]
    questions += [("Task", "dataset", datasets[0], other, ["model"]) for other in datasets[1:]]
    answers = [
        (name, before, after, same, mean_changes(runs, column, (before, after), same))
        for name, column, before, after, same in questions
        if before != after
    ]
    width = runs.high - runs.low
    certainty = {
        "known to within a layer": (width <= 1).sum(),
        "known less well": (width > 1).sum(),
        "without a closed interval": width.isna().sum(),
    }
    template = importlib.resources.files(__package__).joinpath("conclusions.txt.jinja").read_text()
    text = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True).render(
        ratios={metric: runs[runs.metric == metric].ratio for metric in PAPER_METRICS},
        answers=answers,
        unit=unit,
        n_depths=len(runs),
        certainty=certainty,
        n_without=runs.ed.isna().sum(),
        verdicts=published.verdict.value_counts().to_dict(),
    )
    return [line for line in text.splitlines() if line]


def mean_changes(runs: pd.DataFrame, column: str, groups: tuple, same: list[str]) -> list[dict]:
    """How the mean ratio changes from one group of runs to another by each metric: change, low, high, and where.

    groups: two values of `column`; same: columns on whose values both groups are compared, each with the same weight.
    The interval adds up the squared distances to the ends of the runs' own (Zou & Donner 2008); None if one is open.
    """
    runs = runs.dropna(subset="ratio")
    down, up = (runs.ratio - runs.ratio_low) ** 2, (runs.ratio_high - runs.ratio) ** 2
    runs = runs.assign(down=down.fillna(np.inf), up=up.fillna(np.inf))
    changes = []
    for metric, of_metric in runs.groupby("metric"):
        before, after = (of_metric[of_metric[column] == group].groupby(same) for group in groups)
        change = (after.ratio.mean() - before.ratio.mean()).dropna()  # NaN where only one group has runs
        if change.empty:
            continue
        # the squared distances of a mean of n runs are the runs' mean ones over n
        down = after.down.mean() / after.size() + before.up.mean() / before.size()
        up = after.up.mean() / after.size() + before.down.mean() / before.size()
        low, high = change.mean() - np.sqrt(down.sum()) / len(change), change.mean() + np.sqrt(up.sum()) / len(change)
        if not np.isfinite(high - low):
            low = high = None
        names = change.index.get_level_values(same[0]).unique()
        where = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} {same[0]}s"
        changes.append({"metric": metric, "change": change.mean(), "low": low, "high": high, "where": where})
    return changes
