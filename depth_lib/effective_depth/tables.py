"""Every depth of a study in one tidy frame, with intervals."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product

import numpy as np
import pandas as pd

from ..results.artifacts import read_artifact
from ..results.schemas import BY_LENS, BY_RANDOM, ArtifactError
from ..results.study import Study
from .changes import same_prompts
from .intervals import NoInterval, centre_of_mass, depth_interval
from .rules import METRICS, PAPER_METRICS, Metric, as_array, depth_score, ratio

COLUMNS = (
    "model dataset metric layers prompts ed low high ratio ratio_low ratio_high same without score score_low score_high"
    " note".split()
)
CONTROL = "random weights, same architecture"
_BEFORE_AND_AFTER = ("erasure_effect", "progress")  # have L + 1 rows: what enters each block, and what leaves the last
_TEXTS = ("model", "dataset", "metric", "note")
_WHOLE = ("layers", "prompts", "ed", "low", "high")


def depths(study: Study, metrics: Iterable[str] = tuple(METRICS)) -> pd.DataFrame:
    """The depths of a study, a row per model × dataset × metric of `METRICS` that has a result.

    Depths about another question than the papers', or by another lens than the logit lens, are metrics of their own,
    such as "erasure:spouse" and "kl@lens=jacobian".
    Columns model, dataset, metric, layers (L), ed (a layer, NA where no layer satisfies the rule or there is none),
    ratio (ED + 1) / L; of the papers' metrics prompts, low, high (the 95 % confidence interval over prompts; NA where
    it is open), ratio_low, ratio_high, same and without (the shares of bootstrap draws with this ED and with none);
    score (depth score in layers, of metrics that have an effect of each layer), score_low and score_high (its interval
    over prompts, where each prompt's effect is known); note: why there is no depth or no interval, or which end is
    open. A warning says why a depth is undefined, such as a curve that is not finite.
    """
    rows = []
    by_lens = f"logit_lens{BY_LENS}"
    lenses = sorted({probe.removeprefix("logit_lens") for *_, probe in study if probe.startswith(by_lens)})
    for model, dataset in product(study.models, study.datasets):
        for ending, name in product(("", *lenses, *(f":{pair}" for pair in study.pairs)), metrics):
            metric = METRICS[name]
            result = study.get((dataset, model, metric.probe + ending))
            if result and metric.reads(result):
                row = {"model": model, "dataset": dataset, "metric": name + ending} | _depth(metric, result)
                if row["note"]:
                    warnings.warn(f"{dataset} × {model} has no effective depth: {row['note']}", stacklevel=2)
                rows.append(_with_interval(row, name, result) if name in PAPER_METRICS else row)
    return _frame(rows, COLUMNS)


def controls(study: Study) -> pd.DataFrame:
    """The papers' depths of a study's models with random weights, as `depths`: of each result beside which one is kept
    that is of the same prompts."""
    rows = []
    for (dataset, model, probe), own in study.items():
        path = study.paths[dataset, model, probe]
        with suppress(ArtifactError, OSError):  # there is none
            found = read_artifact(path.with_stem(path.stem + BY_RANDOM))
            if same_prompts(own, found):
                rows += [{"model": model, "dataset": dataset} | row for row in _papers_rows(found)]
    return _frame(rows, COLUMNS)


class Shown(pd.DataFrame):
    """A frame that is printed with all of its columns and whole notes."""

    @property
    def _constructor(self) -> type:
        return Shown

    def __repr__(self) -> str:
        return self.to_string() or ""

    def _repr_html_(self) -> str | None:
        with pd.option_context("display.max_colwidth", None):
            return super()._repr_html_()


def effective_depths(result: Mapping) -> pd.DataFrame:
    """The effective depths of one probe's result, as the probe or `load_artifact` returns it: a row per rule that reads
    it, index metric; columns layers, ed, low, high, ratio, ratio_low, ratio_high, note as `depths`.
    ValueError for a result that no rule reads.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.effective_depths(dl.logit_lens(llm, prompts)).ratio.to_dict()
    {'kl': 0.5, 'overlap': 0.5}

    Cost: no forward pass; an interval for each rule.
    """
    rows = _papers_rows(result)
    if not rows:
        raise ValueError("no effective depth is read from this result; give one of logit_lens or relative_contribution")
    order = ["metric", "layers", "ed", "low", "high", "ratio", "ratio_low", "ratio_high", "note"]
    return Shown(_frame(rows, order).set_index("metric"))


def _papers_rows(result: Mapping) -> list[dict]:
    """A row for each of the papers' metrics that a result has the keys of."""
    return [
        {"metric": name} | _with_interval(_depth(METRICS[name], result), name, result)
        for name in PAPER_METRICS
        if METRICS[name].reads(result)
    ]


def _depth(metric: Metric, result: Mapping) -> dict:
    """Layers, effective depth, ratio, depth score with its interval and, where they are undefined, why."""
    n_layers = len(result[metric.keys[0]]) - (metric.keys[0] in _BEFORE_AND_AFTER)
    depth = {"layers": n_layers, "note": ""}
    if metric.keys[0] == "att_cos" and np.isnan(as_array(result["att_cos"])).all():
        return depth | {"note": "attention and MLP cannot be told apart in this model"}
    if reason := metric.no_signal(result):
        return depth | {"note": reason}
    try:
        arguments = metric.arguments(result)
        if metric.rule:
            ed = metric.rule(*arguments)
            depth |= {"ed": ed, "ratio": ratio(ed, n_layers)}
        if metric.profile:
            depth["score"] = depth_score(metric.profile(*arguments))
    except ValueError as error:
        return {"layers": n_layers, "note": str(error)}
    by_prompt = f"{metric.keys[0]}_by_prompt"
    if depth.get("score") is not None and by_prompt in result:
        with suppress(NoInterval):  # too few prompts; the score stands alone
            score = centre_of_mass(as_array(result[by_prompt]).astype(float).clip(0))
            depth |= {"score_low": score.low, "score_high": score.high}
    return depth


def _with_interval(row: dict, metric: str, result: Mapping) -> dict:
    """A row with the interval of its depth as in `depths`, or the reason why there is none."""
    if row["note"]:
        return row
    try:
        interval = depth_interval(result, metric)
    except NoInterval as reason:
        return row | {"note": f"no interval: {reason}"}
    low, high = interval.low, interval.high
    row = row | {"prompts": interval.n_prompts, "same": interval.same, "without": interval.without}
    if interval.without == 1:
        return row | {"note": "no interval: no draw of the prompts has an effective depth"}
    if low is None and high is None:
        return row | {"note": "no interval: the prompts rule out no layer"}
    if low is None or high is None:
        end = "low" if low is None else "high"
        row["note"] = f"{end} end open: a curve without an effective depth fits the prompts too"
    ratios = {"ratio_low": ratio(low, row["layers"]), "ratio_high": ratio(high, row["layers"])}
    return row | {"low": low, "high": high} | ratios


def _frame(rows: list, columns: Sequence[str]) -> pd.DataFrame:
    """Rows with whole numbers as Int64, so that one may be missing, and others as float64, which matplotlib draws."""
    kinds = {name: "Int64" if name in _WHOLE else "float64" for name in columns if name not in _TEXTS}
    return pd.DataFrame(rows, columns=[*columns]).astype(kinds).fillna({"note": ""})
