"""What a study's numbers say about the papers' three questions; conclusions.txt.jinja has the sentences."""

import importlib.resources
from collections.abc import Mapping

import jinja2
import numpy as np
import pandas as pd

from ..effective_depth.intervals import DRAWS, NoInterval, depth_interval
from ..effective_depth.rules import METRICS, PAPER_METRICS
from ..figures.compare import sizes_of, trainings_of

_MOST_NAMES = 3  # of models or datasets in one sentence; more are counted


def conclusions(study: Mapping, intervals: pd.DataFrame, published: pd.DataFrame) -> list[str]:
    """A sentence each: how much depth is used; by size, training, task; how sure that is; beside the paper.

    intervals: what `depths_with_intervals` returns of the study; published: what `beside_the_paper` does. Runs are
    compared where they have the other properties in common; where none do, the sentence says so.
    """
    runs = intervals.assign(ratio=intervals.ratio.astype(float))
    runs["training"], trainings = trainings_of(intervals)
    runs["size"], unit = sizes_of(intervals)
    runs["doublings"] = np.log2(runs["size"])
    known = runs.dropna(subset="ratio")
    if known.empty:
        return ["No model has an effective depth here."]
    datasets = runs.dataset.unique()
    questions = [("Size", "doublings", known["size"].min(), known["size"].max(), ["dataset", "training"])]
    questions += [("Training", "training", trainings[0], other, ["dataset", "size"]) for other in trainings[1:]]
    questions += [("Task", "dataset", datasets[0], other, ["model"]) for other in datasets[1:]]
    answers = [
        (name, before, after, same, changes(study, known, column, (before, after), same))
        for name, column, before, after, same in questions
        if before != after
    ]
    rule = METRICS["cosine"]
    turns = []  # of each run
    for run in runs[runs.metric == "cosine"].itertuples():
        if result := study.get((run.dataset, run.model, rule.probe)):
            turns.append(int(rule.crosses(rule.curve([result[key] for key in rule.keys])).sum()))
    template = importlib.resources.files(__package__).joinpath("conclusions.txt.jinja").read_text()
    text = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True).render(
        runs=runs,
        ratios={metric: runs[runs.metric == metric].ratio for metric in PAPER_METRICS},
        turns=turns,
        answers=answers,
        unit=unit,
        width=runs.high - runs.low,
        verdicts=published.verdict.value_counts(),
    )
    return [line for line in text.splitlines() if line]


def changes(
    study: Mapping, runs: pd.DataFrame, column: str, groups: tuple, same: list[str], draws: int = DRAWS
) -> list[dict]:
    """How the ratio changes with a column of runs, by each metric: change, low, high, and where.

    For "doublings" the least-squares slope over all runs; for any other column the change of the mean from the first
    group to the second. Both compare runs with the same values in `same` only. The interval (None if it is open) covers
    every combination of depths in the runs' intervals, which are widened to cover all at once: runs may read the same
    prompts, and noise that makes curves cross too early does not average out.
    """
    found = []
    for metric, of_metric in runs.groupby("metric"):
        if column == "doublings":
            weights = slope_weights(of_metric[column], of_metric[same])
        else:
            weights = difference_weights(of_metric[column], groups, of_metric[same])
        compared, weights = of_metric[weights != 0], weights[weights != 0]
        if len(compared):
            low, high = _range(study, compared, weights.to_numpy(), draws)
            names = compared[same[0]].unique()
            where = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} {same[0]}s"
            change = weights @ compared.ratio
            found.append({"metric": metric, "change": change, "low": low, "high": high, "where": where})
    return found


def slope_weights(values: pd.Series, same: pd.DataFrame) -> pd.Series:
    """The weight of each run in the least-squares slope over these values, among runs with equal `same`."""
    from_mean = values - values.groupby(list(same.to_numpy().T)).transform("mean")
    from_mean = from_mean.where(from_mean.abs() > 1e-9, 0)
    return from_mean / (from_mean @ from_mean or 1)


def difference_weights(values: pd.Series, groups: tuple, same: pd.DataFrame) -> pd.Series:
    """The weight of each run in the change of the mean from the first of two values to the second.

    Only combinations of `same` that have both values count, each of them alike.
    """
    before, after = ((values == group).astype(float) for group in groups)
    n_before, n_after = (group.groupby(list(same.to_numpy().T)).transform("sum") for group in (before, after))
    weights = (after / n_after - before / n_before).where((n_before > 0) & (n_after > 0), 0)
    return weights / (weights.clip(0).sum() or 1)


def _range(study: Mapping, runs: pd.DataFrame, weights: np.ndarray, draws: int) -> tuple:
    """The ends of the sum of weighted ratios; (None, None) if one of them is open."""
    ends = []  # of each run
    for run in runs.itertuples():
        try:
            result = study[run.dataset, run.model, METRICS[run.metric].probe]
            interval = depth_interval(result, run.metric, draws, n_runs=len(runs))
        except NoInterval:
            return None, None
        ends.append((interval.low, interval.high))
    ratios = (np.array(ends, dtype=float) + 1) / runs.layers.to_numpy(float)[:, None]  # nan at open ends
    low, high = weights @ np.where(weights[:, None] > 0, ratios, ratios[:, ::-1])  # negative weights swap the ends
    return (None, None) if np.isnan(low + high) else (float(low), float(high))
