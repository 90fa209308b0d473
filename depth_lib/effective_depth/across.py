"""What size, training and task change: paired comparisons over models, each with a 95 % interval over them.

The unit is a model (task, size) or a size (training), never a prompt: models differ more than prompts do. A model's
ratio is the mean over the datasets compared; models that lack one are left out. Fewer than three units, or four models
of one training for a slope, are no answer.
Coverage and width in simulations: docs/coverage.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..params import TRAINING, by_paper, facts_of
from .intervals import student
from .rules import PAPER_METRICS

FEWEST = 3  # units
_FREE = 2  # degrees of freedom of a slope: with one its interval is longer than the axis


@dataclass(frozen=True)
class Trend:
    """By how much the ratio changes (per doubling of the size, or from one training or dataset to another), over n
    units; low, high: its 95 % interval over them."""

    question: str  # "size", "training" or "task"
    metric: str
    before: str
    after: str
    change: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.change:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def trends(depths: pd.DataFrame) -> list[Trend]:
    """Every comparison that a study's depths allow; depths: what `effective_depth.tables.depths` returns."""
    found = []
    for metric in PAPER_METRICS:
        of_metric = depths[depths.metric == metric].dropna(subset="ratio")
        ratios = of_metric.pivot(index="model", columns="dataset", values="ratio").astype(float)
        ratios = ratios[sorted(ratios, key=by_paper)]
        found += _from_the_first("task", metric, ratios)
        models = pd.DataFrame({"ratio": ratios.dropna().mean(axis=1)})
        models["training"], known = trainings_of(models.index.to_series())
        runs = of_metric.drop_duplicates("model")
        sizes, unit = sizes_of(runs)
        models["size"] = sizes.set_axis(runs.model)
        by_training = models.pivot_table(index="size", columns="training", values="ratio")
        found += _from_the_first("training", metric, by_training[known])
        found += _slope(metric, models, unit)
    return found


def _from_the_first(question: str, metric: str, ratios: pd.DataFrame) -> Iterator[Trend]:
    """From the first column to each of the others, over the rows that have both."""
    for name in ratios.columns[1:]:
        before = ratios.columns[0]
        yield from _mean(question, metric, before, name, (ratios[name] - ratios[before]).dropna())


def _mean(question: str, metric: str, before: str, after: str, differences: pd.Series) -> Iterator[Trend]:
    """The mean difference over units with Student's interval."""
    n = len(differences)
    if n >= FEWEST:
        mean, half = differences.mean(), student(n - 1) * differences.sem()
        yield Trend(question, metric, before, after, mean, mean - half, mean + half, n)


def _slope(metric: str, models: pd.DataFrame, unit: str) -> Iterator[Trend]:
    """The least-squares slope over doublings of the size, with an intercept of its own for each training."""
    centred = pd.DataFrame({"x": np.log2(models["size"]), "y": models.ratio, "training": models.training})
    centred = centred[["x", "y"]] - centred.groupby("training")[["x", "y"]].transform("mean")
    n, free = models["size"].nunique(), len(models) - models.training.nunique() - 1
    squares = (centred.x**2).sum()
    if n >= FEWEST and free >= _FREE and squares:
        slope = (centred.x * centred.y).sum() / squares
        error = np.sqrt(((centred.y - slope * centred.x) ** 2).sum() / free / squares)
        smallest, largest = (f"{size:g} {unit}" for size in (models["size"].min(), models["size"].max()))
        half = student(free) * error
        yield Trend("size", metric, smallest, largest, slope, slope - half, slope + half, n)


def model_ratios(depths: pd.DataFrame, metric: str) -> pd.Series:
    """The ratio of each model by one metric, the median over its datasets; those without one are left out.

    depths: with columns model, metric, layers, ed; ratios are exact, also of published depths.
    """
    rows = depths[depths.metric == metric].dropna(subset="ed")
    return ((rows.ed + 1) / rows.layers).astype(float).groupby(rows.model, sort=False).median()


def sizes_of(runs: pd.DataFrame) -> tuple[pd.Series, str]:
    """The size of each row's model, in billion parameters if every model's params file says it, else in blocks.

    runs: with columns model and layers.
    """
    billions = runs.model.map(lambda model: facts_of(model).billions)
    if billions.isna().any():
        return runs.layers.astype(float), "blocks"
    return billions.astype(float), "billion parameters"


def trainings_of(models: pd.Series) -> tuple[pd.Series, list[str]]:
    """The training of each model, and those that there are, base first, without "unknown"."""
    training = models.map(lambda model: facts_of(model).training)
    return training, [name for name in reversed(TRAINING) if name != "unknown" and name in set(training)]
