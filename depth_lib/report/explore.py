"""The report's explorer: curves and maps of every run as plotly figures, which the page shows one at a time."""

import html
import json
import os
import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from ..data.prompts import PromptError, load_prompts
from ..effective_depth.rules import METRICS, as_array
from ..figures.marks import question_of, token_label
from ..hub import cached_only
from ..results.provenance import prompts_hash
from ..results.schemas import of_pair
from ..results.study import Study

_DECADES = 100  # largest over smallest value of a curve from which its axis is logarithmic
_PERCENTILE = 98  # of the values of a map, at which its colours end

# title, probe, keys whose mean is shown, metric that is read off the curve
_CURVES = (
    ("Mean cosine of contributions", "relative_contribution", METRICS["cosine"].keys, "cosine"),
    ("Cosine of attention", "relative_contribution", ("att_cos",), ""),
    ("Cosine of the MLP", "relative_contribution", ("mlp_cos",), ""),
    ("Relative contribution of a block", "relative_contribution", ("rc_layer",), ""),
    ("KL divergence of the lens (nats)", "logit_lens", ("res_kl_divs",), "kl"),
    ("Overlap of the lens", "logit_lens", ("res_overlaps",), "overlap"),
    ("Entropy of the lens", "logit_lens", ("res_entropy",), ""),
    ("Damage of a skip to later tokens (KL, nats)", "layer_effects", ("future_kl",), ""),
    ("Damage of a skip to all tokens (KL, nats)", "layer_effects", ("all_kl",), ""),
)
# title, probe, key, unit; keys that begin with max are layer × layer, the others layer × token
_MAPS = (
    ("Effect of skipping a layer, later tokens", "layer_effects", "max_future_layer", "relative change"),
    ("Effect of skipping a layer, all tokens", "layer_effects", "max_all_layer", "relative change"),
    ("Effect of skipping attention", "attention_effects", "max_future_layer", "relative change"),
    ("Effect of skipping an MLP", "mlp_effects", "max_future_layer", "relative change"),
    ("Direct effect of a layer", "local_effects", "max_future_local", "relative change"),
    ("Residual erasure", "residual_erasure", "erasure_effect", "change of probabilities, norm"),
    ("Erasure, effect on later tokens", "future_erasure", "future_erasure", "change of probabilities, norm"),
    ("Integrated gradients", "integrated_gradients", "igrads", "attribution"),
    ("Integrated gradients, attention", "attention_gradients", "igrads", "attribution"),
    ("Integrated gradients, MLP", "mlp_gradients", "igrads", "attribution"),
    ("Turn of the residual stream", "relative_contribution", "first_change", "1 − cosine"),
)


def explorer_json(study: Study, intervals: pd.DataFrame) -> str:
    """A JSON list of runs, each with its figures: title, note and plotly's data and layout.

    intervals: the depths, as `depths_with_intervals` returns them. No character of it can end a script; values that
    are not finite are gaps.
    """
    depth_of = intervals.set_index(["model", "dataset", "metric"]).ed.dropna()
    runs = []
    for model in study.models:
        for dataset in study.datasets:
            figures = []
            for title, probe, keys, metric in _CURVES:
                result = study.get((dataset, model, probe))
                if result and all(key in result for key in keys):
                    depth = depth_of.get((model, dataset, metric))
                    figures.append(_curve(title, result, keys, metric, depth, _prompt_names(dataset, result["meta"])))
            for pair in ("", *study.pairs):
                for title, probe, key, unit in _MAPS:
                    result = study.get((dataset, model, of_pair(probe, pair)))
                    if result and key in result:
                        draw = _layer_map if key.startswith("max") else _token_map
                        figures.append(draw(of_pair(title, pair), result, key, unit))
            if figures:
                runs.append({"run": f"{model}, {dataset}", "figures": figures})
    return json.dumps(runs, cls=PlotlyJSONEncoder, separators=(",", ":")).replace("<", "\\u003c")


def _curve(
    title: str, result: Mapping, keys: tuple[str, ...], metric: str, depth: int | None, prompts: list[str]
) -> dict:
    """The mean over layers, each prompt's own where the result has it, and threshold and depth of a metric."""
    mean = np.mean([as_array(result[key]) for key in keys], axis=0)
    figure = _figure("Layer", "")
    look = {"mode": "lines", "hovertemplate": "layer %{x}: %{y:.4g}<extra>%{fullData.name}</extra>"}
    note = "Thick: all prompts together; thin: each prompt."
    for number, curve in enumerate(np.mean([_per_prompt(result, key) for key in keys], axis=0)):
        name = prompts[number] if prompts else f"prompt {number}"
        figure.add_scatter(y=curve, name=name, line={"color": "#9db7d5", "width": 1}, **look)
    figure.add_scatter(y=mean, name="all prompts", line={"color": "#1f4e79", "width": 3}, **look)
    figure.update_xaxes(_layer_ticks(len(mean)))
    positive = mean[mean > 0]
    if not (mean < 0).any() and len(positive) and positive.max() >= _DECADES * positive.min():
        figure.update_yaxes(type="log", exponentformat="power")  # zeros are gaps
    if metric:
        threshold = METRICS[metric].threshold or 0.0
        level = threshold * np.nanmax(mean) if metric == "kl" else threshold
        figure.add_hline(float(level), line={"color": "#555555", "width": 1, "dash": "dash"})
        note += " Dashed: the threshold. No effective depth." if depth is None else ""
    if depth is not None:
        figure.add_vline(int(depth), line={"color": "#555555", "width": 1, "dash": "dot"})
        note += f" Dashed: the threshold; dotted: the effective depth, layer {depth}."
    return {"title": title, "note": note, **figure.to_dict()}


def _per_prompt(result: Mapping, key: str) -> np.ndarray:
    """Each prompt's mean over its tokens, [P, L]; no row where the result does not have it."""
    if f"{key}_by_prompt" in result:
        return as_array(result[f"{key}_by_prompt"])
    if f"{key}_sums" in result:
        return as_array(result[f"{key}_sums"]) / as_array(result["n_tokens"])[:, None]
    return np.empty((0, len(result[key])))


def _layer_map(title: str, result: Mapping, key: str, unit: str) -> dict:
    """Skipped layer × affected layer, the first row at the top; only later layers can be affected."""
    effects = as_array(result[key]).astype(np.float32)
    effects[np.tril_indices(len(effects))] = np.nan
    figure = _figure("Affected layer", "Skipped layer")
    hover = "skipped %{y}, affected %{x}: %{z:.4g}<extra></extra>"
    figure.add_heatmap(z=effects, hovertemplate=hover, hoverongaps=False, **_colours(effects, unit))
    figure.update_xaxes(_layer_ticks(len(effects)))
    figure.update_yaxes(_layer_ticks(len(effects)), autorange="reversed")
    return {"title": title, "note": "White: no effect is possible.", **figure.to_dict()}


def _token_map(title: str, result: Mapping, key: str, unit: str) -> dict:
    """Layer × token, without the last token, which predicts nothing; rough layers are marked."""
    values = as_array(result[key]).astype(np.float32)[:, : max(result[key].shape[1] - 1, 1)]
    n_layers, n_tokens = values.shape
    labels = [html.escape(token_label(token), quote=False) for token in (result.get("tokens") or [])[:n_tokens]]
    columns = [f"{position} “{label}”" for position, label in enumerate(labels)] or list(range(n_tokens))
    figure = _figure("Token", "Layer")
    hover = "layer %{y}, token %{x}: %{z:.4g}<extra></extra>"
    figure.add_heatmap(z=values, x=columns, hovertemplate=hover, **_colours(values[:, min(1, n_tokens - 1) :], unit))
    figure.update_yaxes(_layer_ticks(n_layers))
    note = "The first prompt."
    if labels:
        note = f"{question_of(result)}."
        angle = 0 if max(map(len, labels)) == 1 else -90
        ticks = ["" if label == "␣" else label for label in labels]
        figure.update_xaxes(type="category", tickvals=list(range(n_tokens)), ticktext=ticks, tickangle=angle)
    if "error" in result:
        error = as_array(result["error"])
        tolerance = result["meta"].get("settings", {}).get("tolerance", 0.01)
        rough = np.flatnonzero(error > tolerance)
        if len(rough):
            note += f" Triangles: rough layers, whose relative error is above {tolerance:g}."
        figure.add_scatter(
            x=[columns[-1]] * len(rough),
            y=rough,
            customdata=error[rough],
            mode="markers",
            marker={"symbol": "triangle-left", "size": 9, "color": "black"},
            hovertemplate="layer %{y} is rough: relative error %{customdata:.2g}<extra></extra>",
        )
    return {"title": title, "note": note, **figure.to_dict()}


def _colours(values: np.ndarray, unit: str) -> dict:
    """Colour scale and its limits, which neither the first token nor a few huge values decide."""
    values = values[np.isfinite(values)]
    high = float(np.percentile(np.abs(values), _PERCENTILE)) if values.any() else 1.0
    bar = {"thickness": 12, "title": {"text": unit, "side": "right"}}
    if (values < 0).any():
        return {"colorscale": "RdBu", "reversescale": True, "zmin": -high, "zmax": high, "colorbar": bar}
    return {"colorscale": "Viridis", "zmin": 0.0, "zmax": min(high, 1.0), "colorbar": bar}


def _figure(x_title: str, y_title: str) -> go.Figure:
    layout = {
        "template": "none",
        "margin": {"l": 60, "r": 10, "t": 10, "b": 60},
        "height": 460,
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "xaxis": {"title": x_title, "automargin": True},
        "yaxis": {"title": y_title, "automargin": True, "zeroline": False},
    }
    return go.Figure(layout=layout)


def _layer_ticks(n_layers: int) -> dict:
    """A tick per layer, or where there are many, those that plotly chooses; never one between two layers."""
    return {"dtick": 1} if n_layers <= 15 else {}


def _prompt_names(dataset: str, meta: Mapping) -> list[str]:
    """The texts of a run's prompts, without the beginning that all share; nothing where they are not at hand.

    Prompts of the Hub are read from its cache.
    """
    if "prompts_hash" not in meta:
        return []
    source = "hub" if meta["source"] == "drawn" else meta["source"]
    try:
        with cached_only():
            prompts = load_prompts(dataset, meta["n_prompts"], source, seed=meta["seed"])
    except PromptError:
        return []
    if prompts_hash(prompts) != meta["prompts_hash"]:
        return []
    same = len(os.path.commonprefix(prompts)) if len(prompts) > 1 else 0
    shortened = [textwrap.shorten(prompt[same:], 120, placeholder=" …") for prompt in prompts]
    return [html.escape(textwrap.fill(text, 45), quote=False).replace("\n", "<br>") for text in shortened]
