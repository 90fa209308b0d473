"""The effective depths that all five probes give, side by side, and the depth score of each effect."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from ..prompts import ANSWER
from ..results.schemas import ARTIFACTS
from ..results.study import PAPER_DATASETS, models_in, read_results
from .rules import (
    METRICS,
    depth_score,
    effective_depth_erasure,
    effective_depth_future,
    effective_depth_igrads,
    erasure_profile,
    future_profile,
    igrads_profile,
    ratio,
)

DEPTHS = (*METRICS, "future", "erasure", "igrads")


def five_probes_table(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] = PAPER_DATASETS
) -> pd.DataFrame:
    """Effective depth, ratio and depth score by every probe, a row a model × dataset × metric that has a result.

    Columns model, dataset, metric, layers, ed (Int64), ratio, score (Float64, layers; of future effects, erasure and
    integrated gradients). Rules: `effective_depth_cosine`, `_kl`, `_overlap`, `_future`, `_erasure`, `_igrads`. A
    result that is not finite, or without a question token, is missing with a warning.
    """
    models, datasets = models_in(folder) if models is None else list(models), list(datasets)
    results = {probe: read_results(folder, probe, models, datasets) for probe in ARTIFACTS}
    rows = []
    for model in models:
        for dataset in datasets:
            found = {probe: results[probe].get((dataset, model)) for probe in ARTIFACTS}
            for metric in DEPTHS:
                row = _depth(metric, found, f"{dataset} × {model}")
                if row:
                    rows.append((model, dataset, metric, *row))
    frame = pd.DataFrame(rows, columns=["model", "dataset", "metric", "layers", "ed", "ratio", "score"])
    return frame.astype({"layers": "Int64", "ed": "Int64", "ratio": "Float64", "score": "Float64"})


def n_answer_tokens(result: Mapping) -> int:
    """How many tokens at the end of an erasure result are the answer's: those whose text reaches into it.

    The answer is the one in `meta`, or the papers' ("28") where there is none; 1 if the tokens are not known.
    """
    answer = result.get("meta", {}).get("settings", {}).get("answer", ANSWER)
    tokens = result.get("tokens")
    if not tokens:
        return 1
    length, count = 0, 0
    while length < len(answer) and count < len(tokens):
        count += 1
        length += len(tokens[-count])
    return count


def _depth(metric: str, found: Mapping, where: str) -> tuple | None:
    """(layers, ED, ratio, depth score) by one metric; None without a result."""
    probe = METRICS[metric][0] if metric in METRICS else _OF_EFFECTS[metric]
    result = found[probe]
    if result is None:
        return None
    try:
        if metric in METRICS:
            _, keys, rule = METRICS[metric]
            ed, n_layers, score = rule(*(result[key] for key in keys)), len(result[keys[0]]), None
        else:
            ed, n_layers, profile = _from_effects(metric, result)
            score = depth_score(profile)
    except ValueError as error:
        warnings.warn(f"{where} has no effective depth by {metric}: {error}", stacklevel=3)
        return None
    return n_layers, ed, ratio(ed, n_layers), score


def _from_effects(metric: str, result: Mapping) -> tuple:
    """Effective depth, number of layers and the effect of each layer."""
    if metric == "future":
        effects = result["max_future_layer"]
        return effective_depth_future(effects), len(effects), future_profile(effects)
    if metric == "erasure":
        effects, n_answer = result["erasure_effect"], n_answer_tokens(result)
        return effective_depth_erasure(effects, n_answer), len(effects) - 1, erasure_profile(effects, n_answer)
    return effective_depth_igrads(result["igrads"]), len(result["igrads"]), igrads_profile(result["igrads"])


_OF_EFFECTS = {"future": "layer_effects", "erasure": "residual_erasure", "igrads": "integrated_gradients"}
