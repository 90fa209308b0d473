"""The report's explorer: `KINDS` of figures of every run, drawn by plotly; the page shows one at a time."""

import html
import json
import os
import re
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from itertools import cycle

import numpy as np
import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from ..data.prompts import PromptError, load_prompts
from ..effective_depth.rules import as_array
from ..figures.kinds import KINDS, kinds_of
from ..figures.marks import COLOURS, Curves, Heat, Panel, question_of, token_label
from ..hub import cached_only
from ..results.provenance import prompts_hash
from ..results.study import Study

_DECADES = 100  # largest over smallest value of a curve from which its axis is logarithmic


def explorer_json(study: Study) -> str:
    """A JSON list of runs, each with its figures: title, note and plotly's data and layout.

    No character of it can end a script; values that are not finite are gaps.
    """
    runs = {}
    for (dataset, model, probe), result in study.items():
        probe, _, pair = probe.partition(":")
        for kind in map(KINDS.get, kinds_of(probe, result)):
            if isinstance(kind, Curves | Heat):
                for name, panel in kind.panels(result).items():
                    figure = _figure(kind, len(next(iter(panel.values()))))
                    if isinstance(kind, Curves):
                        note = _add_curves(figure, kind, panel, result, dataset)
                    else:
                        note = _add_map(figure, kind, panel, result)
                    title = ": ".join(filter(None, [f"{kind.title} ({pair})" if pair else kind.title, name]))
                    entry = {"title": title, "note": " ".join(note), **figure.to_dict()}
                    runs.setdefault(f"{model}, {dataset}", []).append(entry)
    entries = [{"run": run, "figures": figures} for run, figures in runs.items()]
    return json.dumps(entries, cls=PlotlyJSONEncoder, separators=(",", ":")).replace("<", "\\u003c")


def _figure(kind: Curves | Heat, n_layers: int) -> go.Figure:
    """An empty figure with the kind's labels and a tick per layer, or where there are many, those plotly chooses."""
    is_map = isinstance(kind, Heat)
    layers = {"automargin": True, "zeroline": not is_map, "dtick": 1 if n_layers <= 15 else None}
    every_curve = {"mode": "lines", "hovertemplate": "layer %{x}: %{y:.4g}<extra>%{fullData.name}</extra>"}
    layout = {
        "template": "none" if is_map else {"data": {"scatter": [every_curve]}},  # written once, for a small page
        "margin": {"l": 60, "r": 10, "t": 10, "b": 60},
        "height": 460,
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": -0.2},
        "xaxis": {"title": _plain(kind.xlabel)} | layers,
        "yaxis": {"title": _plain(kind.ylabel)} | (layers if is_map else {"automargin": True}),
    }
    return go.Figure(layout=layout)


def _add_curves(figure: go.Figure, kind: Curves, panel: Panel, result: Mapping, dataset: str) -> list[str]:
    """Curves over layers, each prompt's own where the result has it, and threshold and depth of the kind's metric.

    Returns the sentences under the figure.
    """
    note = []
    for colour, (key, values) in zip(cycle(COLOURS), panel.items(), strict=False):
        by_prompt = _per_prompt(result, key)
        for curve, name in zip(by_prompt, _prompt_names(dataset, result["meta"], len(by_prompt)), strict=True):
            look = {"opacity": 0.35, "line_width": 1, "line_color": colour, "showlegend": False}
            figure.add_scatter(y=curve, name=name, **look)
            note = ["Thick: all prompts together; thin: each prompt."]
        name = _plain(kind.keys.get(key, key)) or "all prompts"
        figure.add_scatter(y=values.ravel(), name=name, line_width=3, line_color=colour, showlegend=len(panel) > 1)
    shown = np.concatenate([values.ravel() for values in panel.values()])
    positive = shown[shown > 0]
    if not (shown < 0).any() and positive.max(initial=0) >= _DECADES * positive.min(initial=np.inf):
        figure.update_yaxes(type="log", exponentformat="power")  # zeros are gaps
    depth, threshold = kind.depth(result), kind.threshold(result)
    if threshold is not None:
        figure.add_hline(threshold, line_width=1, line_dash="dash")
        note.append("Dashed: the threshold.")
    if depth is not None:
        figure.add_vline(depth + kind.depth_at, line_width=1, line_dash="dot")
        note.append(f"Dotted: the {kind.depth_name}, layer {depth}.")
    elif kind.metric:
        note.append(f"No {kind.depth_name}.")
    return note


def _per_prompt(result: Mapping, key: str) -> np.ndarray:
    """Each prompt's mean over its tokens, [P, L]; no row where the result does not have it."""
    if f"{key}_by_prompt" in result:
        by_prompt = as_array(result[f"{key}_by_prompt"])
        return by_prompt.reshape(len(by_prompt), -1)
    if f"{key}_sums" in result:
        return as_array(result[f"{key}_sums"]) / as_array(result["n_tokens"])[:, None]
    return np.empty((0, 0))


def _prompt_names(dataset: str, meta: Mapping, n: int) -> list[str]:
    """A name for each of n prompts: its text where it is at hand, else its number, if none is left out."""
    texts = []
    if {"prompts_hash", "source", "n_prompts", "seed"} <= meta.keys():
        source = "hub" if meta["source"] == "drawn" else meta["source"]
        texts = _prompt_texts(dataset, meta["n_prompts"], source, meta["seed"], meta["prompts_hash"])
    if len(texts) == n:
        return texts
    return ["one prompt" if meta.get("n_prompts", n) != n else f"prompt {number}" for number in range(n)]


@lru_cache
def _prompt_texts(dataset: str, n_prompts: int, source: str, seed: int, expected_hash: str) -> list[str]:
    """The prompts with this hash, without the beginning that all share; none where they are not on this machine."""
    try:
        with cached_only():
            prompts = load_prompts(dataset, n_prompts, source, seed=seed)
    except PromptError:
        return []
    if prompts_hash(prompts) != expected_hash:
        return []
    same = len(os.path.commonprefix(prompts)) if len(prompts) > 1 else 0
    shortened = [textwrap.shorten(prompt[same:], 120, placeholder=" …") for prompt in prompts]
    return [html.escape(textwrap.fill(text, 45), quote=False).replace("\n", "<br>") for text in shortened]


def _add_map(figure: go.Figure, kind: Heat, panel: Panel, result: Mapping) -> list[str]:
    """Layer × layer, the first row at the top, or layer × token upwards, where rough layers are marked.

    Returns the sentences under the figure.
    """
    ((key, values),) = panel.items()
    values = kind.shown(key, values).astype(np.float32)
    low, high = kind.limits or kind.limits_of(values)
    columns = list(range(values.shape[1]))
    if kind.tokens and result.get("tokens"):
        labels = [html.escape(token_label(token), quote=False) for token in result["tokens"][: len(columns)]]
        figure.update_xaxes(tickvals=columns, ticktext=labels, dtick=None)
        columns = [f"{position} “{label}”" for position, label in enumerate(labels)]
    figure.add_heatmap(
        z=values,
        x=columns,
        zmin=low,
        zmax=high,
        colorscale="RdBu" if kind.diverging else "Viridis",
        reversescale=kind.diverging,
        colorbar={"thickness": 12, "title": {"text": _plain(kind.colorbar), "side": "right"}},
        hovertemplate=f"{_plain(kind.ylabel)} %{{y}}, {_plain(kind.xlabel)} %{{x}}: %{{z:.4g}}<extra></extra>",
        hoverongaps=False,
    )
    figure.update_yaxes(autorange=None if kind.tokens else "reversed")
    rough = kind.rough(result)
    if len(rough):
        figure.add_scatter(
            x=[columns[-1]] * len(rough),
            y=rough,
            mode="markers",
            marker={"symbol": "triangle-left", "size": 9, "color": "black"},
            hovertemplate="layer %{y} is rough<extra></extra>",
            showlegend=False,
        )
    sentences = {
        "White: no effect is possible.": np.isnan(values).any(),
        f"{question_of(result)}.": kind.of_question,
        "Triangles: rough layers, whose relative error is above the tolerance.": len(rough),
    }
    return [sentence for sentence, is_true in sentences.items() if is_true]


def _plain(label: str) -> str:
    """A label without matplotlib's mathematics."""
    return re.sub(r"\\mathrm|[\\${}]", "", label)
