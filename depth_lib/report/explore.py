"""The report's explorer: curves and maps of every run as plotly figures, which the page shows one at a time."""

import html
import json
import os
import textwrap
import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from ..data.prompts import PromptError, load_prompts
from ..effective_depth.rules import METRICS, as_array
from ..figures.token_labels import question_of, token_label
from ..results.meta import prompts_hash
from ..results.schemas import of_pair
from ..results.study import Study

_SHIPPED = ("embedded", "sample", "drawn")  # sources of prompts that are read without a network
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
# title, probe, key, unit; row = skipped layer, column = affected layer
_LAYER_MAPS = (
    ("Effect of skipping a layer, later tokens", "layer_effects", "max_future_layer", "relative change"),
    ("Effect of skipping a layer, all tokens", "layer_effects", "max_all_layer", "relative change"),
    ("Effect of skipping attention", "attention_effects", "max_future_layer", "relative change"),
    ("Effect of skipping an MLP", "mlp_effects", "max_future_layer", "relative change"),
    ("Direct effect of a layer", "local_effects", "max_future_local", "relative change"),
)
# title, probe, key, unit; row = layer, column = token
_TOKEN_MAPS = (
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
    depth_of = {(row.model, row.dataset, row.metric): row.ed for row in intervals.itertuples()}
    runs = []
    for model in study.models:
        for dataset in study.datasets:
            figures = [*_curves(study, dataset, model, depth_of), *_maps(study, dataset, model)]
            if figures:
                runs.append({"run": f"{model}, {dataset}", "figures": figures})
    return json.dumps(runs, cls=PlotlyJSONEncoder, separators=(",", ":")).replace("<", "\\u003c")


def _curves(study: Study, dataset: str, model: str, depth_of: Mapping) -> list[dict]:
    figures = []
    for title, probe, keys, metric in _CURVES:
        result = study.get((dataset, model, probe))
        if result and all(key in result for key in keys):
            figure = _curve_figure(result, keys, _prompt_names(dataset, result))
            note = "Thick: all prompts together."
            if len(figure.data) > 1:
                note += " Thin: each prompt."
            if metric:
                depth = depth_of.get((model, dataset, metric))
                note += _mark_depth(figure, metric, depth)
            figures.append(_entry(title, note, figure))
    return figures


def _curve_figure(result: Mapping, keys: tuple[str, ...], prompts: list[str]) -> go.Figure:
    """The mean curve over layers, and each prompt's own where the result has it."""
    mean = np.mean([as_array(result[key]) for key in keys], axis=0)
    per_prompt = _per_prompt(result, keys)
    figure = go.Figure(layout=_layout("Layer", ""))
    look = {"mode": "lines", "hovertemplate": "layer %{x}: %{y:.4g}<extra>%{fullData.name}</extra>"}
    for number, curve in enumerate(per_prompt):
        name = prompts[number] if number < len(prompts) else f"prompt {number}"
        figure.add_scatter(y=curve, name=name, line={"color": "#9db7d5", "width": 1}, **look)
    figure.add_scatter(y=mean, name="all prompts", line={"color": "#1f4e79", "width": 3}, **look)
    figure.update_xaxes(_layer_ticks(len(mean)))
    positive = mean[mean > 0]
    if not (mean < 0).any() and len(positive) and positive.max() >= _DECADES * positive.min():
        figure.update_yaxes(type="log", exponentformat="power")  # zeros are gaps
    return figure


def _per_prompt(result: Mapping, keys: tuple[str, ...]) -> list[np.ndarray]:
    """Each prompt's mean over its tokens, [L], or nothing where the result does not have it."""
    if all(f"{key}_by_prompt" in result for key in keys):
        return list(np.mean([as_array(result[f"{key}_by_prompt"]) for key in keys], axis=0))
    if "n_tokens" in result and all(f"{key}_sums" in result for key in keys):
        sums = np.mean([as_array(result[f"{key}_sums"]) for key in keys], axis=0)
        return list(sums / as_array(result["n_tokens"])[:, None])
    return []


def _mark_depth(figure: go.Figure, metric: str, depth: object) -> str:
    """Draw the threshold and the effective depth; the sentence that says so."""
    mean = figure.data[-1].y
    level = METRICS[metric].threshold or 0.0
    if metric == "kl":
        level *= np.nanmax(mean)
    figure.add_hline(float(level), line={"color": "#555555", "width": 1, "dash": "dash"})
    if depth is None or pd.isna(depth):
        return " Dashed: the threshold. No effective depth."
    figure.add_vline(int(depth), line={"color": "#555555", "width": 1, "dash": "dot"})
    return f" Dashed: the threshold; dotted: the effective depth, layer {depth}."


def _maps(study: Study, dataset: str, model: str) -> list[dict]:
    figures = []
    for title, probe, key, unit in _LAYER_MAPS:
        result = study.get((dataset, model, probe))
        if result and key in result:
            figure = _layer_map(as_array(result[key]), unit)
            figures.append(_entry(title, "White: no effect is possible.", figure))
    for pair in ("", *study.pairs):
        for title, probe, key, unit in _TOKEN_MAPS:
            result = study.get((dataset, model, of_pair(probe, pair)))
            if not result or key not in result:
                continue
            figure = _token_map(as_array(result[key]), result.get("tokens"), unit)
            note = question_of(result) if "tokens" in result else "The first prompt."
            if key == "igrads":
                note = f"{note or ''} {_mark_rough_layers(figure, result)}"
            figures.append(_entry(of_pair(title, pair), note or "", figure))
    return figures


def _layer_map(effects: np.ndarray, unit: str) -> go.Figure:
    """Skipped layer × affected layer, the first row at the top; only later layers can be affected."""
    n_layers = len(effects)
    later = np.triu(np.ones((n_layers, n_layers), dtype=bool), 1)
    effects = np.where(later, effects, np.nan)
    figure = go.Figure(layout=_layout("Affected layer", "Skipped layer"))
    hover = "skipped %{y}, affected %{x}: %{z:.4g}<extra></extra>"
    figure.add_heatmap(z=effects.astype(np.float32), hovertemplate=hover, hoverongaps=False, **_colours(effects, unit))
    figure.update_xaxes(_layer_ticks(n_layers))
    figure.update_yaxes(_layer_ticks(n_layers), autorange="reversed")
    return figure


def _token_map(values: np.ndarray, tokens: list[str] | None, unit: str) -> go.Figure:
    """Layer × token, without the last token, which predicts nothing."""
    n_tokens = max(values.shape[1] - 1, 1)
    values = values[:, :n_tokens]
    figure = go.Figure(layout=_layout("Token", "Layer"))
    labels = [html.escape(token_label(token), quote=False) for token in (tokens or [])[:n_tokens]]
    columns = [f"{position} “{label}”" for position, label in enumerate(labels)] or list(range(n_tokens))
    figure.add_heatmap(
        z=values.astype(np.float32),
        x=columns,
        hovertemplate="layer %{y}, token %{x}: %{z:.4g}<extra></extra>",
        **_colours(values[:, 1:] if n_tokens > 1 else values, unit),
    )
    if labels:
        ticks = [position for position, token in enumerate(tokens[:n_tokens]) if token.strip(" Ġ▁")]
        upright = max(len(labels[tick]) for tick in ticks) == 1
        figure.update_xaxes(type="category", tickvals=ticks, ticktext=[labels[tick] for tick in ticks])
        figure.update_xaxes(tickangle=0 if upright else -90)
    figure.update_yaxes(_layer_ticks(len(values)))
    return figure


def _mark_rough_layers(figure: go.Figure, result: Mapping) -> str:
    """Mark layers whose gradients are integrated with a relative error above the tolerance; the sentence about it."""
    error = as_array(result.get("error", []))
    tolerance = (result.get("meta") or {}).get("settings", {}).get("tolerance", 0.01)
    rough = np.flatnonzero(error > tolerance)
    if not len(rough):
        return ""
    figure.add_scatter(
        x=[figure.data[0].x[-1]] * len(rough),
        y=rough,
        customdata=error[rough],
        mode="markers",
        marker={"symbol": "triangle-left", "size": 9, "color": "black"},
        hovertemplate="layer %{y} is rough: relative error %{customdata:.2g}<extra></extra>",
    )
    return f"Triangles: rough layers, whose relative error is above {tolerance:g}."


def _colours(values: np.ndarray, unit: str) -> dict:
    """Colour scale and its limits, which neither the first token nor a few huge values decide."""
    finite = values[np.isfinite(values)]
    high = float(np.percentile(np.abs(finite), _PERCENTILE)) if len(finite) else 1.0
    high = high or 1.0
    bar = {"thickness": 12, "title": {"text": unit, "side": "right"}}
    if (finite < 0).any():
        return {"colorscale": "RdBu", "reversescale": True, "zmin": -high, "zmax": high, "colorbar": bar}
    return {"colorscale": "Viridis", "zmin": 0.0, "zmax": min(high, 1.0), "colorbar": bar}


def _layout(x: str, y: str) -> dict:
    return {
        "template": "none",
        "margin": {"l": 60, "r": 10, "t": 10, "b": 60},
        "height": 460,
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "xaxis": {"title": x, "automargin": True},
        "yaxis": {"title": y, "automargin": True, "zeroline": False},
    }


def _layer_ticks(n_layers: int) -> dict:
    """At most 15 ticks, at round numbers of layers."""
    step = next(step for step in (1, 2, 5, 10, 20, 50) if n_layers <= 15 * step or step == 50)
    return {"tick0": 0, "dtick": step}


def _entry(title: str, note: str, figure: go.Figure) -> dict:
    return {"title": title, "note": note, **figure.to_dict()}


def _prompt_names(dataset: str, result: Mapping) -> list[str]:
    """The texts of a result's prompts without what all begin with, where they ship with the package; else nothing."""
    meta = result["meta"]
    if meta.get("source") not in _SHIPPED:
        return []
    source = "hub" if meta["source"] == "drawn" else meta["source"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a file has fewer prompts than the run
            prompts = load_prompts(dataset, meta["n_prompts"], source, seed=meta["seed"])
    except PromptError:
        return []
    if prompts_hash(prompts) != meta.get("prompts_hash"):
        return []
    same = len(os.path.commonprefix(prompts)) if len(prompts) > 1 else 0
    shortened = [textwrap.shorten(prompt[same:], 120, placeholder=" …") for prompt in prompts]
    return [html.escape(textwrap.fill(text, 45), quote=False).replace("\n", "<br>") for text in shortened]
