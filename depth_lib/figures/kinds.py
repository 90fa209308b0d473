"""How each kind of result is drawn in one panel: bars over layers, and maps of layers by layers or tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..effective_depth.rules import (
    KL_THRESHOLD,
    OVERLAP_THRESHOLD,
    effective_depth_cosine,
    effective_depth_kl,
    effective_depth_overlap,
)
from .token_labels import label_tokens

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 9,
    "figure.titlesize": 10,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
}
LAYER = "Layer index $l$"
PARTS = {"Attention": "tab:blue", "MLP": "tab:orange", "Attention + MLP": "tab:green"}
PLAIN, MARKED = "tab:blue", "tab:red"
CONTRIBUTION_TOP = 1.5


@dataclass(frozen=True)
class Kind:
    """What a panel shows: the probe it reads, how it is drawn and labelled, and its size in a grid, inches."""

    probe: str
    title: str
    draw: Callable[[Axes, dict], AxesImage | None]
    ylabel: str
    xlabel: str = LAYER
    size: tuple[float, float] = (2.7, 1.5)
    legend: Callable[[], list[Artist]] = list
    colorbar: str | None = None
    shared_scale: bool = True  # one colour bar for all panels; else one a panel
    over_tokens: bool = False


def add_colorbar(image: AxesImage, ax: Any, kind: Kind, **placing: Any) -> None:
    """A colour bar for one panel or many, pointed where values lie beyond its ends."""
    low, high = image.get_clim()
    values = np.asarray(image.get_array())
    ends = (values.min() < low, values.max() > high) if not kind.shared_scale else (False, True)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[ends]
    bar = image.figure.colorbar(image, ax=ax, extend=extend, label=kind.colorbar, **placing)
    bar.outline.set_linewidth(0.4)


def panel_size(kind: Kind, results: list[dict]) -> tuple[float, float]:
    """Width and height of a panel in a grid, inches; token axes get room for a label a token, up to 45 tokens."""
    width, height = kind.size
    if kind.over_tokens:
        n_tokens = max(result[_TOKEN_KEY[kind.probe]].shape[-1] for result in results)
        width = max(width, min(0.11 * n_tokens, 5.0) + 0.4) + (0 if kind.shared_scale else 0.8)
    return width, height


def _draw_parts(ax: Axes, curves: list, top: float | None = None) -> None:
    values = np.stack([np.asarray(curve, dtype=float) for curve in curves])
    layers = np.arange(values.shape[1])
    colours = np.array(list(PARTS.values()))
    order = np.argsort(-np.abs(values), axis=0, kind="stable")
    # The largest bar of every layer first, the smallest last and so in front.
    _add_bars(ax, np.tile(layers, 3), np.take_along_axis(values, order, 0).ravel(), colours[order].ravel(), width=1.0)
    ax.axhline(0, color="black", linewidth=0.5)
    _layer_axis(ax, len(layers))
    highest = values.max(axis=0)
    if top is not None and highest.max() > top:
        ax.set_ylim(top=top)
        cut = layers[highest > top]
        ax.plot(cut, np.full(len(cut), 0.97 * top), "^", color="black", markersize=3, linestyle="none")


def _draw_cosine(ax: Axes, result: dict) -> None:
    curves = [result[key] for key in ("att_cos", "mlp_cos", "layer_cos")]
    _draw_parts(ax, curves)
    ed = _depth_or_none(effective_depth_cosine, *curves)
    if ed is not None:
        ax.axvline(ed + 0.5, color="black", linestyle=":", linewidth=1)


def _draw_contribution(ax: Axes, result: dict) -> None:
    _draw_parts(ax, [result[key] for key in ("rc_att", "rc_mlp", "rc_layer")], top=CONTRIBUTION_TOP)


def _draw_bars(ax: Axes, values: Any, marked: int | None = None) -> None:
    heights = np.asarray(values, dtype=float).reshape(-1)
    colours = [MARKED if layer == marked else PLAIN for layer in range(len(heights))]
    _add_bars(ax, np.arange(len(heights)), heights, colours, width=0.8)
    _layer_axis(ax, len(heights))


def _add_bars(ax: Axes, x: np.ndarray, heights: np.ndarray, colours: Sequence[str], width: float) -> None:
    """Bars from zero, drawn in the order given, as one collection: `ax.bar` is ten times slower over many panels."""
    left, right, zero = x - width / 2, x + width / 2, np.zeros_like(heights)
    corners = [(left, zero), (left, heights), (right, heights), (right, zero)]
    bars = PolyCollection(np.stack([np.stack(corner, -1) for corner in corners], 1), facecolors=colours, linewidths=0)
    bars.sticky_edges.y.append(0)
    ax.add_collection(bars)
    ax.autoscale_view()


def _draw_output_change(ax: Axes, result: dict) -> None:
    _draw_bars(ax, result["max_future_out"])


def _draw_kl(ax: Axes, result: dict) -> None:
    kl = result["res_kl_divs"]
    _draw_bars(ax, kl, _depth_or_none(effective_depth_kl, kl))
    ax.axhline(KL_THRESHOLD * float(max(kl)), color="grey", linestyle="--", linewidth=0.7)


def _draw_overlap(ax: Axes, result: dict) -> None:
    overlap = result["res_overlaps"]
    _draw_bars(ax, overlap, _depth_or_none(effective_depth_overlap, overlap))
    ax.axhline(OVERLAP_THRESHOLD, color="grey", linestyle="--", linewidth=0.7)


def _draw_effects(ax: Axes, result: dict) -> AxesImage:
    effects = np.asarray(result["max_future_layer"], dtype=float)
    image = ax.imshow(effects, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    return image


def _draw_erasure(ax: Axes, result: dict) -> AxesImage:
    return _draw_token_map(ax, result["erasure_effect"], result.get("tokens"), vmin=0, vmax=1, cmap="viridis")


def _draw_igrads(ax: Axes, result: dict) -> AxesImage:
    igrads = np.asarray(result["igrads"], dtype=float)
    limit = np.abs(igrads[:, 1:] if igrads.shape[1] > 1 else igrads).max() or 1.0
    return _draw_token_map(ax, igrads, result.get("tokens"), vmin=-limit, vmax=limit, cmap="seismic")


def _draw_token_map(ax: Axes, values: Any, tokens: list[str] | None, **colours: Any) -> AxesImage:
    values = np.asarray(values, dtype=float)
    n_shown = max(values.shape[1] - 1, 1)
    image = ax.imshow(values[:, :n_shown], origin="lower", interpolation="nearest", aspect="auto", **colours)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    label_tokens(ax, tokens, n_shown)
    return image


def _layer_axis(ax: Axes, n_layers: int) -> None:
    ax.set_xlim(-0.7, n_layers - 0.3)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5))


def _depth_or_none(rule: Callable[..., int | None], *curves: Any) -> int | None:
    """A curve with nan has no effective depth to mark, but what there is of it can be seen."""
    try:
        return rule(*curves)
    except ValueError:
        return None


def _parts_legend() -> list[Artist]:
    return [Patch(color=colour, label=part) for part, colour in PARTS.items()]


def _contribution_legend() -> list[Artist]:
    above = f"above {CONTRIBUTION_TOP}, cut"
    return [*_parts_legend(), Line2D([], [], color="black", marker="^", markersize=4, linestyle="none", label=above)]


def _cosine_legend() -> list[Artist]:
    return [*_parts_legend(), Line2D([], [], color="black", linestyle=":", label="effective depth")]


def _lens_legend() -> list[Artist]:
    return [
        Patch(color=MARKED, label="effective depth"),
        Line2D([], [], color="grey", linestyle="--", label="threshold"),
    ]


_TOKEN_KEY = {"residual_erasure": "erasure_effect", "integrated_gradients": "igrads"}

KINDS = {
    "cosine": Kind(
        "relative_contribution",
        "Cosine similarity of contributions with the residual stream",
        _draw_cosine,
        "Cosine similarity",
        legend=_cosine_legend,
    ),
    "relative_contribution": Kind(
        "relative_contribution",
        "Relative contribution to the residual stream",
        _draw_contribution,
        "Mean relative contribution",
        legend=_contribution_legend,
    ),
    "layer_effects": Kind(
        "layer_effects",
        "Effect of skipping a layer on later layers",
        _draw_effects,
        "Layer skipped",
        xlabel="Effect @ layer",
        size=(2.3, 2.35),
        colorbar="Relative change",
    ),
    "output_change": Kind(
        "layer_effects",
        "Effect of skipping a layer on the output",
        _draw_output_change,
        "Output change norm",
        xlabel="Layer skipped",
    ),
    "lens_kl": Kind(
        "logit_lens",
        "KL divergence of the logit lens from the output",
        _draw_kl,
        "KL divergence (nats)",
        legend=_lens_legend,
    ),
    "lens_overlap": Kind(
        "logit_lens", "Top-5 overlap of the logit lens with the output", _draw_overlap, "Overlap", legend=_lens_legend
    ),
    "residual_erasure": Kind(
        "residual_erasure",
        "Residual erasure",
        _draw_erasure,
        LAYER,
        xlabel="Token",
        size=(2.2, 2.6),
        colorbar="Probability difference norm",
        over_tokens=True,
    ),
    "integrated_gradients": Kind(
        "integrated_gradients",
        "Integrated gradients",
        _draw_igrads,
        LAYER,
        xlabel="Token",
        size=(2.2, 2.6),
        colorbar="Attribution",
        shared_scale=False,
        over_tokens=True,
    ),
}
