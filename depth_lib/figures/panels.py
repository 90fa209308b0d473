"""What one panel is made of: bars and lines over layers, and maps of layers by layers or by tokens.

Each mark takes the axes, one array for each of its kind's keys and the tokens (None where there are none), and gives
what it drew a label where a legend should name it. A map returns its image, for the colour bar.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, NullFormatter

from ..effective_depth.rules import LATE, METRICS, settles_late, settling_depth
from .token_labels import label_tokens

PLAIN, MARKED = "#56B4E9", "#D55E00"
PARTS = ("tab:blue", "tab:orange", "tab:green")  # attention, MLP, both: the papers' colours
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
PERCENTILE = 98

Curves = Sequence[np.ndarray]


def parts(
    ax: Axes,
    curves: Curves,
    tokens: None,
    *,
    labels: Sequence[str],
    top: float | None = None,
    metric: str = "",
    log: bool = False,
) -> None:
    """Attention and MLP as steps over the filled steps of the third curve; a dotted line at the metric's depth.

    top: where the axis is cut at the latest, with a mark over each layer that lies beyond. log: a logarithmic axis,
    for what spans orders of magnitude.
    """
    attention, mlp, filled = (curve[: len(curves[0])] for curve in curves)  # of h_0..h_L, what enters the blocks
    edges = np.arange(len(attention) + 1) - 0.5
    floor = 0.5 * min((curve[curve > 0].min() for curve in curves if (curve > 0).any()), default=1) if log else 0
    ax.stairs(attention, edges, baseline=None, color=PARTS[0], linewidth=0.9, zorder=2.2, label=labels[0])
    ax.stairs(mlp, edges, baseline=None, color=PARTS[1], linewidth=1.3, zorder=2.1, label=labels[1])
    ax.stairs(filled, edges, baseline=floor, fill=True, color=PARTS[2], alpha=0.4, linewidth=0, label=labels[2])
    layer_axis(ax, len(attention))
    if log:
        ax.set(yscale="log", ylim=(floor, None))
        ax.yaxis.set_minor_formatter(NullFormatter())
        return
    ax.axhline(0, color="black", linewidth=0.5)
    highest = np.max(curves, axis=0)
    if top is not None and (highest > top).any():
        ax.set_ylim(top=top)
        cut = np.flatnonzero(highest > top)
        ax.plot(cut, np.full(len(cut), 0.96 * top), "k^", markersize=3, linestyle="none", label=f"above {top}, cut")
    depth = _depth(metric, curves)
    if depth is not None:
        ax.axvline(depth + 0.5, color="black", linestyle=":", linewidth=1, label="effective depth")


def bars(ax: Axes, curves: Curves, tokens: None, *, metric: str = "") -> None:
    """A bar a layer; that of the metric's effective depth in another colour, its threshold as a dashed line."""
    heights = curves[0].reshape(-1)
    depth = _depth(metric, curves)
    colours = [MARKED if layer == depth else PLAIN for layer in range(len(heights))]
    _add_bars(ax, heights, colours)
    if depth is not None:
        ax.plot([], [], "s", color=MARKED, label="effective depth")
    if metric:
        share = METRICS[metric].threshold
        level = share * np.nanmax(heights) if metric == "kl" else share
        ax.axhline(level, color="grey", linestyle="--", linewidth=0.7, label="threshold")
    layer_axis(ax, len(heights))


def filled_and_line(ax: Axes, curves: Curves, tokens: None, *, labels: Sequence[str]) -> None:
    """Filled steps, and over them a line, so that neither hides the other."""
    filled, line = (curve.reshape(-1) for curve in curves)
    edges = np.arange(len(filled) + 1) - 0.5
    ax.stairs(filled, edges, fill=True, color=PLAIN, linewidth=0, label=labels[0])
    ax.stairs(line, edges, baseline=None, color="black", linewidth=0.9, label=labels[1])
    layer_axis(ax, len(filled))


def lines(ax: Axes, curves: Curves, tokens: None, *, labels: Sequence[str], log: bool = False) -> None:
    """A line a key over the layers, each thinner than the one below it, so that none hides another."""
    for i, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        ax.plot(curve.reshape(-1), label=label, color=LINES[i % len(LINES)], linewidth=2.2 / (1 + 0.6 * i))
    layer_axis(ax, max(curve.size for curve in curves))
    if log:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())


def settling(ax: Axes, curves: Curves, tokens: None, *, labels: Sequence[str]) -> None:
    """Divergence and share of settled tokens as lines, where half have settled, and how many settle late.

    Neither line rises above 1, so the words above that cover nothing.
    """
    lines(ax, curves, tokens, labels=labels)
    ax.set(ylim=(-0.05, 1.35), yticks=(0, 0.5, 1))
    depth = settling_depth(curves[1])
    if depth is not None:
        ax.vlines(depth, 0, 1, color="black", linestyle=":", linewidth=1, label="half of the tokens have settled")
    few = (1 - LATE) * len(curves[1]) < 1  # the last 15% are less than a layer
    when = "behind the last layer" if few else f"in the last {1 - LATE:.0%} of the layers"
    words = f"{settles_late(curves[1]):.0%} of tokens settle {when}"
    ax.text(0.02, 1.18, words, transform=ax.get_yaxis_transform(), fontsize=6, va="center")


def layer_map(ax: Axes, curves: Curves, tokens: None, **colours: Any) -> AxesImage:
    """Layers by layers, the first row at the top."""
    image = ax.imshow(curves[0], interpolation="nearest", aspect="auto", **{"vmin": 0, "vmax": 1} | colours)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    return image


def token_map(
    ax: Axes,
    curves: Curves,
    tokens: list[str] | None,
    *,
    limits: Callable | tuple = (0, 1),
    cmap: str = "viridis",
    rough: Sequence[int] = (),
) -> AxesImage:
    """Layers by tokens, layers upwards, without the last token, which predicts nothing.

    limits: of the colours, or what computes them from the values shown. rough: layers to mark at the right edge.
    """
    shown = curves[0][:, : max(curves[0].shape[1] - 1, 1)]
    low, high = limits(shown) if callable(limits) else limits
    image = ax.imshow(shown, origin="lower", interpolation="nearest", aspect="auto", vmin=low, vmax=high, cmap=cmap)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    label_tokens(ax, tokens, shown.shape[1])
    if len(rough):
        edge = np.full(len(rough), shown.shape[1] - 0.5)
        look = {"color": "black", "markersize": 3, "linestyle": "none", "clip_on": False}
        ax.plot(edge, rough, "<", label="rough: error above the tolerance", **look)
        ax.set_xlim(-0.5, shown.shape[1] - 0.5)
    return image


def symmetric(values: np.ndarray) -> tuple[float, float]:
    """Colour limits about zero that neither the first token nor a few huge values decide: ± the 98th percentile."""
    high = _high(np.abs(values))
    return -high, high


def from_zero(values: np.ndarray) -> tuple[float, float]:
    """Colour limits from zero to the 98th percentile of all tokens but the first."""
    return 0.0, _high(values)


def layer_axis(ax: Axes, n_layers: int) -> None:
    ax.set_xlim(-0.7, n_layers - 0.3)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5))


def _high(values: np.ndarray) -> float:
    others = values[:, 1:] if values.shape[1] > 1 else values
    return float(np.nanpercentile(others, PERCENTILE, method="higher")) or 1.0


def _add_bars(ax: Axes, heights: np.ndarray, colours: Sequence[str], width: float = 0.8) -> None:
    """Bars from zero as one collection: `ax.bar` is ten times slower over many panels."""
    x, zero = np.arange(len(heights)), np.zeros_like(heights)
    left, right = x - width / 2, x + width / 2
    corners = [(left, zero), (left, heights), (right, heights), (right, zero)]
    drawn = PolyCollection(np.stack([np.stack(corner, -1) for corner in corners], 1), facecolors=colours, linewidths=0)
    drawn.sticky_edges.y.append(0)
    ax.add_collection(drawn)
    ax.autoscale_view()


def _depth(metric: str, curves: Curves) -> int | None:
    """A curve with nan has no effective depth to mark, but what there is of it can be seen."""
    try:
        return METRICS[metric].rule(*curves) if metric else None
    except ValueError:
        return None
