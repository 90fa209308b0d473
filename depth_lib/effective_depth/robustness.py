"""How stable an effective depth is: over the threshold, between layers, and over the crossings a curve has."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ..results.study import PAPER_DATASETS, TABLE_PROBES, models_in, read_results
from .intervals import NoInterval, depth_interval
from .rules import METRICS, Curve, _curve, effective_depth_cosine, effective_depth_kl, effective_depth_overlap, ratio

# The thresholds the papers might have chosen as well; theirs are 0.5 and 0.3.
THRESHOLDS = {"kl": tuple((np.arange(1, 10) / 10).tolist()), "overlap": tuple((np.arange(1, 8) / 10).tolist())}


def cosine_crossings(att_cos: Curve, mlp_cos: Curve, layer_cos: Curve) -> list[int]:
    """Every l in 0..L-2 with c[l] < 0 and c[l+1] >= 0, c the mean of the three; the last is the effective depth.

    Shapes and errors as in `effective_depth_cosine`. More than one: the choice of the last decides the result.
    """
    effective_depth_cosine(att_cos, mlp_cos, layer_cos)  # the checks of the curves
    c = _mean_cosine(att_cos, mlp_cos, layer_cos)
    return np.flatnonzero((c[:-1] < 0) & (c[1:] >= 0)).tolist()


def fractional_depth_cosine(att_cos: Curve, mlp_cos: Curve, layer_cos: Curve) -> float | None:
    """Where between ED and ED + 1 the mean cosine, as straight lines, reaches zero; layers, None without an ED."""
    ed = effective_depth_cosine(att_cos, mlp_cos, layer_cos)
    return None if ed is None else _crossing(_mean_cosine(att_cos, mlp_cos, layer_cos), ed, 0.0)


def fractional_depth_kl(kl: Curve, threshold: float = 0.5) -> float | None:
    """Where between ED - 1 and ED the KL divergence, drawn as straight lines, falls to threshold · max(kl); layers.

    None without an effective depth, 0.0 where the first layer is already below.
    """
    ed, curve = effective_depth_kl(kl, threshold), _curve("kl", kl)
    if ed is None:
        return None
    return _crossing(curve, ed - 1, threshold * float(curve.max())) if ed else 0.0


def fractional_depth_overlap(overlap: Curve, threshold: float = 0.3) -> float | None:
    """Where between ED - 1 and ED the overlap, drawn as straight lines, rises to the threshold; layers.

    None without an effective depth, 0.0 where the first layer is already above.
    """
    ed = effective_depth_overlap(overlap, threshold)
    if ed is None:
        return None
    return _crossing(_curve("overlap", overlap), ed - 1, threshold) if ed else 0.0


FRACTIONAL = {"cosine": fractional_depth_cosine, "kl": fractional_depth_kl, "overlap": fractional_depth_overlap}


def depth_by_threshold(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] = PAPER_DATASETS
) -> pd.DataFrame:
    """ED and ratio at KL thresholds 0.1 to 0.9 and overlap thresholds 0.1 to 0.7, a row a model × dataset × threshold.

    Columns model, dataset, metric, threshold, ed (Int64), ratio (Float64). Curves that are not finite are left out.
    """
    rows = []
    for model, dataset, metric, result in _finite_results(folder, models, datasets):
        for threshold in THRESHOLDS.get(metric, ()):
            curve = result[METRICS[metric][1][0]]
            ed = METRICS[metric][2](curve, threshold)
            rows.append((model, dataset, metric, float(threshold), ed, ratio(ed, len(curve))))
    frame = pd.DataFrame(rows, columns=["model", "dataset", "metric", "threshold", "ed", "ratio"])
    return frame.astype({"ed": "Int64", "ratio": "Float64"})


def stability_table(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] = PAPER_DATASETS
) -> pd.DataFrame:
    """Every effective depth with what it rests on, a row a model × dataset × metric that has a result.

    Columns: layers (L), prompts, ed, ratio; low, high (95 % interval, layers) and ratio_low, ratio_high; same and
    without (the shares of bootstrap draws with this ED and with none); fractional (ED between layers); thresholds_low,
    thresholds_high (ED over all thresholds of `depth_by_threshold`); crossings (of the cosine, all); note (why there is
    no interval, or that curves without an effective depth fit too).
    """
    rows = []
    for model, dataset, metric, result in _finite_results(folder, models, datasets):
        _, keys, rule = METRICS[metric]
        curves = [result[key] for key in keys]
        ed, n_layers = rule(*curves), len(curves[0])
        row = {
            "model": model,
            "dataset": dataset,
            "metric": metric,
            "layers": n_layers,
            "ed": ed,
            "ratio": ratio(ed, n_layers),
            "fractional": FRACTIONAL[metric](*curves),
        }
        row |= _interval_columns(result, metric, n_layers)
        if metric == "cosine":
            row["crossings"] = ", ".join(map(str, cosine_crossings(*curves)))
        else:
            found = [depth for threshold in THRESHOLDS[metric] if (depth := rule(*curves, threshold)) is not None]
            row |= {"thresholds_low": min(found, default=None), "thresholds_high": max(found, default=None)}
        rows.append(row)
    whole = ("layers", "prompts", "ed", "low", "high", "thresholds_low", "thresholds_high")
    parts = ("ratio", "ratio_low", "ratio_high", "same", "without", "fractional")
    columns = [
        "model",
        "dataset",
        "metric",
        "layers",
        "prompts",
        "ed",
        "low",
        "high",
        "ratio",
        "ratio_low",
        "ratio_high",
        "same",
        "without",
        "fractional",
        "thresholds_low",
        "thresholds_high",
        "crossings",
        "note",
    ]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(whole, "Int64") | dict.fromkeys(parts, "Float64"))
    return frame.fillna({"crossings": "", "note": ""})


def _interval_columns(result: Mapping, metric: str, n_layers: int) -> dict:
    try:
        found = depth_interval(result, metric)
    except NoInterval as reason:
        return {"note": f"no interval: {reason}"}
    if found.without == 1:
        note = "no interval: no draw of the prompts has an effective depth"
        return {"prompts": found.n_prompts, "same": found.same, "without": found.without, "note": note}
    open_ends = [end for end, layer in (("low", found.low), ("high", found.high)) if layer is None]
    note = f"{' and '.join(open_ends)} end open: a curve without an effective depth fits the prompts too"
    return {
        "prompts": found.n_prompts,
        "low": found.low,
        "high": found.high,
        "ratio_low": ratio(found.low, n_layers),
        "ratio_high": ratio(found.high, n_layers),
        "same": found.same,
        "without": found.without,
        "note": note if open_ends else "",
    }


def _finite_results(folder: str | Path, models: Iterable[str] | None, datasets: Iterable[str]):
    """(model, dataset, metric, result) of what is there and has finite curves, in the order of the table."""
    models, datasets = models_in(folder) if models is None else list(models), list(datasets)
    results = {probe: read_results(folder, probe, models, datasets) for probe in TABLE_PROBES}
    for model in models:
        for dataset in datasets:
            for metric, (probe, keys, _) in METRICS.items():
                result = results[probe].get((dataset, model))
                if result and all(np.isfinite(np.asarray(result[key].float())).all() for key in keys):
                    yield model, dataset, metric, result


def _mean_cosine(*curves: Curve) -> np.ndarray:
    return sum(_curve("cosine", curve) for curve in curves) / 3


def _crossing(curve: np.ndarray, l: int, level: float) -> float:
    """Where the straight line from layer l to l + 1 has this level."""
    start, end = float(curve[l]), float(curve[l + 1])
    return l + (level - start) / (end - start)
