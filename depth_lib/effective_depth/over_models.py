"""What size, training and task change in a study (Hu et al. 2025): one row per comparison, over models.

Models differ more than prompts do, so the interval is over models: Student's t, of three models or more.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..params import TRAINING, by_paper, facts_of
from .intervals import FEWEST, student
from .rules import RULES

COLUMNS = ["question", "rule", "before", "after", "estimate", "low", "high", "models"]


def over_models(depths: pd.DataFrame) -> pd.DataFrame:
    """The change of the ratio with size, training and task: a row per rule and comparison.

    depths: from `effective_depth.tables.depths`. A model's ratio is the mean over the data sets that all models have.
    Columns:

    - question: "size", per doubling; "training"; or "task", from one data set to the next
    - rule
    - before, after: the two sides (size: the smallest and the largest)
    - estimate, low, high: the change of the ratio and its 95% confidence interval
    - models: the number of models

    Fewer than 3 models (training: sizes that have both) give no row.
    """
    rows = []
    for rule in RULES:
        of_rule = depths[(depths.rule == rule) & (depths.variant == "")].dropna(subset="ratio")
        ratios = of_rule.pivot(index="model", columns="dataset", values="ratio").astype(float)
        ratios = ratios[sorted(ratios, key=by_paper)]
        models = pd.DataFrame({"ratio": ratios.dropna().mean(axis=1)})
        models["training"] = [facts_of(model).training for model in models.index]
        models["size"], unit = _sizes(of_rule.drop_duplicates("model").set_index("model").layers)
        by_training = models.pivot_table(index="size", columns="training", values="ratio")
        known = [name for name in reversed(TRAINING) if name in by_training and name != "unknown"]
        found = [*_slope(models, unit), *_changes("training", by_training[known]), *_changes("task", ratios)]
        rows += [{"rule": rule} | dict(zip(COLUMNS[:1] + COLUMNS[2:], row, strict=True)) for row in found]
    return pd.DataFrame(rows, columns=COLUMNS)


def _sizes(layers: pd.Series) -> tuple[pd.Series, str]:
    """The size of each model in billions of parameters where all of them are known, else in blocks."""
    billions = pd.Series({model: facts_of(model).billions for model in layers.index})
    return (layers.astype(float), "blocks") if billions.isna().any() else (billions, "B")


def _slope(models: pd.DataFrame, unit: str) -> Iterator[tuple]:
    """The least-squares slope over doublings of the size, with a mean of its own for each training."""
    if models["size"].nunique() < FEWEST:
        return
    y, x = models.ratio, np.log2(models["size"])
    y, x = (values - values.groupby(models.training).transform("mean") for values in (y, x))
    free, squares = len(models) - models.training.nunique() - 1, (x**2).sum()
    if free >= 2 and squares:  # with one degree of freedom the interval is longer than the axis
        slope = (x * y).sum() / squares
        half = student(free) * np.sqrt(((y - slope * x) ** 2).sum() / free / squares)
        ends = (f"{size:g} {unit}" for size in (models["size"].min(), models["size"].max()))
        yield "size", *ends, slope, slope - half, slope + half, len(models)


def _changes(question: str, ratios: pd.DataFrame) -> Iterator[tuple]:
    """From the first column to each of the others, over the rows that have both."""
    for name in ratios.columns[1:]:
        change = (ratios[name] - ratios.iloc[:, 0]).dropna()
        if len(change) >= FEWEST:
            half = student(len(change) - 1) * change.sem() or np.nan  # all equal: no spread to go by
            yield (
                question,
                ratios.columns[0],
                name,
                change.mean(),
                change.mean() - half,
                change.mean() + half,
                len(change),
            )
