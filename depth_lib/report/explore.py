"""The numbers behind the report's explorer: token maps and curves over depth of every run, for `explore.js` to draw."""

import base64
import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..effective_depth.rules import METRICS, PAPER_METRICS, as_array, mean_cosine
from ..figures import panels
from ..figures.kind import Kind
from ..figures.kinds import KINDS
from ..figures.token_labels import question_of
from ..results.schemas import of_pair
from ..results.study import Study

_STEPS = 65535  # a map's values are 16-bit steps between its least and its largest
_CURVES = {  # title: probe, keys, of which the mean is shown, and the depth that is read off it
    "Mean cosine of contributions": ("relative_contribution", METRICS["cosine"].keys, "cosine"),
    "Cosine of attention": ("relative_contribution", ("att_cos",), None),
    "Cosine of the MLP": ("relative_contribution", ("mlp_cos",), None),
    "Relative contribution of a block": ("relative_contribution", ("rc_layer",), None),
    "KL of the lens": ("logit_lens", ("res_kl_divs",), "kl"),
    "Overlap of the lens": ("logit_lens", ("res_overlaps",), "overlap"),
    "Entropy of the lens": ("logit_lens", ("res_entropy",), None),
}


def explored(study: Study, found: pd.DataFrame) -> str:
    """JSON for the page: a list of runs, each with its `figures`, maps of tokens or curves with a row a prompt.

    found: the depths, as `Tables.intervals` has them. It holds no character that could end a script.
    """
    depths = {(row.model, row.dataset, row.metric): row.ed for row in found.itertuples()}
    runs = []
    for model in study.models:
        for dataset in study.datasets:
            figures = [
                curve
                for title, (probe, keys, metric) in _CURVES.items()
                if (curve := _curve(study.get((dataset, model, probe)), title, keys))
                and _mark(curve, metric, depths.get((model, dataset, metric)))
            ]
            figures += _maps(study, dataset, model)
            if figures:
                runs.append({"run": f"{model}, {dataset}", "figures": figures})
    return json.dumps(runs, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _maps(study: Study, dataset: str, model: str) -> list[dict]:
    """Every kind of token map, of every pair of question and answer that it is there for."""
    kinds = [kind for kind in KINDS.values() if kind.mark is panels.token_map]
    found = [
        (kind, pair, study.get((dataset, model, of_pair(kind.probe, pair))))
        for pair in ("", *study.pairs)
        for kind in kinds
    ]
    return [
        _map(kind, of_pair(kind.title, pair), result)
        for kind, pair, result in found
        if result and kind.can_draw(result)
    ]


def _curve(result: Mapping | None, title: str, keys: tuple[str, ...]) -> dict | None:
    """The mean over tokens of all prompts, and each prompt's own where its sums are known."""
    if not result or not all(key in result for key in keys):
        return None
    mean = np.asarray(mean_cosine(*(result[key] for key in keys)) if len(keys) > 1 else result[keys[0]], dtype=float)
    prompts = []
    if "n_tokens" in result and all(f"{key}_sums" in result for key in keys):
        sums = sum(as_array(result[f"{key}_sums"]).astype(float) for key in keys) / len(keys)
        prompts = [_short(row) for row in sums / as_array(result["n_tokens"]).astype(float)[:, None]]
    return {"title": title, "mean": _short(mean), "prompts": prompts}


def _mark(curve: dict, metric: str | None, depth: object) -> dict:
    """The curve, with its threshold and effective depth where one is read off it."""
    if metric in PAPER_METRICS:
        share = METRICS[metric].threshold
        curve["level"] = 0 if metric == "cosine" else share * max(curve["mean"]) if metric == "kl" else share
        curve["depth"] = None if pd.isna(depth) else int(depth)
    return curve


def _map(kind: Kind, title: str, result: Mapping) -> dict:
    """A map without its last token, as the page's other figures show it, with the same limits of its colours."""
    values = as_array(result[kind.keys[0]]).astype(float)
    values = values[:, : max(values.shape[1] - 1, 1)]
    limits = kind.options.get("limits", (0, 1))
    low, high = limits(values) if callable(limits) else limits
    least, step = float(values.min()), float(np.ptp(values)) / _STEPS
    steps = np.round((values - least) / (step or 1)).astype("<u2")
    about = question_of(result) if kind.of_question else None
    return {
        "title": title,
        "about": about or "the first prompt",
        "tokens": list(result.get("tokens") or ())[: values.shape[1]],
        "shape": list(values.shape),
        "limits": [float(low), float(high)],
        "signed": low < 0,
        "least": least,
        "step": step,
        "values": base64.b64encode(steps.tobytes()).decode(),
    }


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
