"""Every effective depth of a study in one tidy frame, and what each rests on as further columns and rows."""

import warnings
from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np
import pandas as pd

from ..results.schemas import of_pair
from ..results.study import Study
from .intervals import NoInterval, depth_interval
from .readings import READINGS
from .rules import METRICS, PAPER_METRICS, Curve, Metric, checked_curve, depth_score, mean_cosine, ratio

ALL_METRICS = METRICS | READINGS
_BEFORE_AND_AFTER = ("erasure_effect", "progress")  # have L + 1 rows: what enters each block, and what leaves the last
_WHOLE = ("layers", "prompts", "ed", "low", "high", "thresholds_low", "thresholds_high")
_PARTS = ("ratio", "ratio_low", "ratio_high", "same", "without", "fractional", "score", "threshold")


def depths(study: Study, metrics: Iterable[str] = tuple(ALL_METRICS)) -> pd.DataFrame:
    """The effective depths of a study, a row a model × dataset × metric of `ALL_METRICS` that has a result.

    Depths about another question than the papers' are metrics of their own, such as "erasure:spouse".
    Columns model, dataset, metric, layers (L), ed (a layer, NA where no layer satisfies the rule), ratio (ED + 1) / L,
    score (depth score in layers, of metrics that have an effect of each layer), note: why a depth is undefined, such as
    a curve that is not finite; a warning says it too.
    """
    rows = []
    for model in study.models:
        for dataset in study.datasets:
            for pair, name in product(("", *study.pairs), metrics):
                metric = ALL_METRICS[name]
                result = study.get((dataset, model, of_pair(metric.probe, pair)))
                if result and all(key in result for key in metric.keys):
                    row = {"model": model, "dataset": dataset, "metric": of_pair(name, pair)} | _depth(metric, result)
                    if row["note"]:
                        warnings.warn(f"{dataset} × {model} has no effective depth: {row['note']}", stacklevel=2)
                    rows.append(row)
    return _frame(rows, ["model", "dataset", "metric", "layers", "ed", "ratio", "score", "note"])


def depths_with_intervals(study: Study, found: pd.DataFrame) -> pd.DataFrame:
    """The papers' three depths with what each rests on; found: what `depths` returns.

    Columns: layers (L), prompts, ed, ratio; low, high (95 % interval, layers) and ratio_low, ratio_high; same and
    without (the shares of bootstrap draws with this ED and with none); fractional (ED between layers); thresholds_low,
    thresholds_high (ED over all thresholds of `depths_by_threshold`); crossings (of the cosine, all); note (why there
    is no depth or no interval, or that curves without an effective depth fit too).
    """
    rows = []
    for row in found[found.metric.isin(PAPER_METRICS)].to_dict("records"):
        metric = METRICS[row["metric"]]
        result = study[row["dataset"], row["model"], metric.probe]
        row.pop("score")
        rows.append(row if row["note"] else row | _rests_on(row["metric"], result))
    order = ["model", "dataset", "metric", "layers", "prompts", "ed", "low", "high", "ratio", "ratio_low", "ratio_high"]
    order += ["same", "without", "fractional", "thresholds_low", "thresholds_high", "crossings", "note"]
    return _frame(rows, order)


def depths_by_threshold(study: Study, found: pd.DataFrame) -> pd.DataFrame:
    """ED and ratio at other thresholds than the papers', a row a model × dataset × metric × threshold.

    Columns model, dataset, metric, threshold, ed, ratio. found: what `depths` returns.
    """
    rows = []
    for row in found[found.metric.isin(METRICS) & (found.note == "")].itertuples():
        metric = METRICS[row.metric]
        for threshold in metric.thresholds:
            result = study[row.dataset, row.model, metric.probe]
            ed = metric.rule(*metric.arguments(result), threshold)
            place = {"model": row.model, "dataset": row.dataset, "metric": row.metric, "threshold": threshold}
            rows.append(place | {"ed": ed, "ratio": ratio(ed, row.layers)})
    return _frame(rows, ["model", "dataset", "metric", "threshold", "ed", "ratio"])


def cosine_crossings(att_cos: Curve, mlp_cos: Curve, layer_cos: Curve) -> list[int]:
    """Every l in 0..L-2 with c[l] < 0 and c[l+1] >= 0, c the mean of the three; the last is the effective depth.

    Shapes and errors as in `effective_depth_cosine`. More than one: the choice of the last decides the result.
    """
    c = mean_cosine(att_cos, mlp_cos, layer_cos)
    return np.flatnonzero((c[:-1] < 0) & (c[1:] >= 0)).tolist()


def fractional_depth(metric: str, *curves: Curve, threshold: float | None = None) -> float | None:
    """Where the curve, drawn as straight lines between layers, crosses the threshold at its effective depth; layers.

    Between ED and ED + 1 for the cosine, which crosses after its ED, between ED - 1 and ED for kl and overlap. None
    without an effective depth, 0.0 where the first layer is already across. threshold: the papers' unless given.
    """
    threshold = METRICS[metric].threshold if threshold is None else threshold
    ed = METRICS[metric].rule(*curves, *([] if threshold is None else [threshold]))
    if ed is None:
        return None
    curve = mean_cosine(*curves) if metric == "cosine" else checked_curve(metric, *curves)
    level = 0.0 if metric == "cosine" else threshold * float(curve.max()) if metric == "kl" else threshold
    l = ed if metric == "cosine" else ed - 1
    return l + (level - float(curve[l])) / (float(curve[l + 1]) - float(curve[l])) if l >= 0 else 0.0


def _depth(metric: Metric, result: Mapping) -> dict:
    """Layers, effective depth, ratio, depth score and, where they are undefined, why."""
    n_layers = len(result[metric.keys[0]]) - (metric.keys[0] in _BEFORE_AND_AFTER)
    found = {"layers": n_layers, "ed": None, "ratio": None, "score": None, "note": ""}
    try:
        arguments = metric.arguments(result)
        ed = metric.rule(*arguments)
        score = depth_score(metric.profile(*arguments)) if metric.profile else None
    except ValueError as error:
        return found | {"note": str(error)}
    return found | {"ed": ed, "ratio": ratio(ed, n_layers), "score": score}


def _rests_on(name: str, result: Mapping) -> dict:
    metric = METRICS[name]
    curves = metric.arguments(result)
    found = _interval(result, name, len(curves[0])) | {"fractional": fractional_depth(name, *curves)}
    if name == "cosine":
        return found | {"crossings": ", ".join(map(str, cosine_crossings(*curves)))}
    over = [depth for threshold in metric.thresholds if (depth := metric.rule(*curves, threshold)) is not None]
    return found | {"thresholds_low": min(over, default=None), "thresholds_high": max(over, default=None)}


def _interval(result: Mapping, metric: str, n_layers: int) -> dict:
    try:
        found = depth_interval(result, metric)
    except NoInterval as reason:
        return {"note": f"no interval: {reason}"}
    drawn = {"prompts": found.n_prompts, "same": found.same, "without": found.without}
    if found.without == 1:
        return drawn | {"note": "no interval: no draw of the prompts has an effective depth"}
    open_ends = [end for end, layer in (("low", found.low), ("high", found.high)) if layer is None]
    note = f"{' and '.join(open_ends)} end open: a curve without an effective depth fits the prompts too"
    ends = {"low": found.low, "high": found.high}
    ratios = {f"ratio_{end}": ratio(layer, n_layers) for end, layer in ends.items()}
    return drawn | ends | ratios | {"note": note if open_ends else ""}


def _frame(rows: list[dict], columns: list[str]) -> pd.DataFrame:
    """Rows with layers as Int64 and shares as Float64, so that a missing one is NA in both."""
    frame = pd.DataFrame(rows, columns=columns)
    types = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_PARTS, "Float64")
    frame = frame.astype({name: kind for name, kind in types.items() if name in frame})
    return frame.fillna({name: "" for name in ("crossings", "note") if name in frame})
