"""The marks: curves over layers, scores with intervals, and heat maps."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..effective_depth.intervals import NoInterval, depth_interval
from ..effective_depth.rules import RULES, Rule, as_array
from .kinds import Kind, token_label

STYLE: Any = {
    "font.size": 7,
    "axes.titlesize": 6.5,
    "figure.titlesize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "image.aspect": "auto",
    "image.interpolation": "nearest",
    "savefig.dpi": "figure",
}
# Okabe and Ito 2008: colours that people with any colour vision can tell apart.
COLOURS = "#0072B2 #E69F00 #009E73 #CC79A7 #D55E00 #56B4E9 #000000".split()
DASHES = "-", "--", ":", "-."
WORDS = 16  # words of eight letters beside each other, as wide as a page
BARS, MARKED, GREY = "#a5d3ea", "#D55E00", "#777777"
_OF_RESPONSES = "jsd", "tokens", "settling"  # lists of one item per response
PUBLISHED = "published (Hu et al. 2025)"


def draw_curves(
    ax: Axes, kind: Kind, results: Mapping[str, Mapping], prompts: bool = False, published: int | None = None
) -> None:
    """The curves of one result, a colour each, a single one as bars; of several by name, a colour for each result.

    For several results, only the curve of the kind's rule is drawn, with a dot at the effective depth.
    prompts: each prompt's curve too, thin and grey. published: the layer of the published depth.
    """
    rule, alone = RULES.get(kind.rule), len(results) == 1
    rule = rule if rule and all(map(rule.reads, results.values())) else None
    if published is not None:
        ax.axvline(published, color=GREY, linestyle="--", label=PUBLISHED)
    for (name, result), colour in zip(results.items(), cycle(COLOURS), strict=False):
        curves = kind.values(result)
        if rule and len(curves) > 1:
            curves = (curves if alone else {}) | {"mean of the three" * alone: rule.curve(result)}
        for values in kind.by_prompt(result) * prompts:
            labels = ["one prompt", *[None] * (len(values) - 1)]
            ax.plot(values.T, color=GREY, alpha=0.4, linewidth=0.4, zorder=1, label=labels)
        if alone and len(curves) == 1:
            (values,) = curves.values()
            ax.stairs(values.ravel(), np.arange(values.size + 1) - 0.5, fill=True, color=BARS, zorder=0)
        else:
            looks = zip(cycle(COLOURS), cycle("-")) if alone else zip(cycle([colour]), cycle(DASHES))
            for (label, values), (of_curve, dash) in zip(curves.items(), looks, strict=False):
                values = np.where(values > 0, values, np.nan) if kind.log else values
                label = ", ".join(filter(None, ["" if alone else name, label]))
                ax.plot(values.ravel(), dash, color=of_curve, label=label)
        if rule:
            _mark_depth(ax, rule, result, MARKED if alone else colour)
    ax.set_yscale("log" if kind.log else "linear")
    if not kind.log:
        ax.axhline(0, color="black", linewidth=0.5)
    ax.locator_params("x", integer=True)
    ax.set_ylim(*kind.limits)
    for result in results.values():
        _draw_passes(ax, kind, result)


def _draw_passes(ax: Axes, kind: Kind, result: Mapping, shown: Sequence[int] = ()) -> None:
    """A line between the passes of an unrolled model, across every axis of blocks; shown: the blocks, if not all."""
    places = np.flatnonzero(np.diff(as_array(result.get("layer_passes", ())))) + 0.5
    for place in np.interp(places, shown, range(len(shown))) if len(shown) else places:
        if "lock" in kind.xlabel:
            ax.axvline(place, color=GREY, linewidth=0.7, linestyle=":")
        if "lock" in kind.ylabel and "map" in kind.mark:
            ax.axhline(place, color=GREY, linewidth=0.7, linestyle=":")


def _mark_depth(ax: Axes, rule: Rule, result: Mapping, colour: str) -> None:
    """A dot on the curve at the effective depth, a wide line over its interval; or why there is none.

    A hollow dot has no interval, or an end without a limit.
    """
    problem = rule.no_signal(result) or rule.impossible(result)
    if problem or (depth := rule.depth(result)) is None:
        said = "no effective depth" if not problem else problem.partition(":")[0]
        ax.text(0.5, 0.98, said, transform=ax.transAxes, ha="center", va="top", size=5)
        return
    curve, low, high = rule.curve(result), None, None
    with suppress(NoInterval):
        low, high = depth_interval(result, rule)
        layers = np.arange(depth if low is None else low, (depth if high is None else high) + 1)
        ax.plot(layers, curve[layers], color=colour, linewidth=4, alpha=0.4, label="95% interval over prompts")
    full = "none" if None in (low, high) else "full"
    ax.plot(depth, curve[depth], "o", color=colour, fillstyle=full, markersize=4, label="effective depth")


def draw_scores(ax: Axes, kind: Kind, result: Mapping) -> None:
    """A point with its interval for each level, a colour for each score; hollow without an interval, or where it
    reaches the first or the last layer."""
    last = as_array(result["output_effect"]).shape[-1] - 1 if "output_effect" in result else np.inf
    for k, (label, rows) in enumerate(kind.values(result).items()):
        for level, score, low, high in rows:
            within = low > 0 and high < last
            ends = [[np.nan_to_num(score - low)], [np.nan_to_num(high - score)]]
            look = {"color": COLOURS[k], "fillstyle": "full" if within else "none", "capsize": 2 * within}
            ax.errorbar(level + 0.1 * k, score, ends, fmt="o", label=label, **look)
    ax.locator_params("x", integer=True)


def draw_worth(ax: Axes, kind: Kind, result: Mapping, values: np.ndarray) -> None:
    """The cost of each block as bars, with its interval if it has one; a circle where loss and accuracy disagree.

    values: [K], or [3, K] with the ends of the interval.
    """
    cost, *ends = np.atleast_2d(values)
    ax.stairs(cost, np.arange(cost.size + 1) - 0.5, fill=True, color=BARS)
    if ends:
        ax.vlines(range(cost.size), *ends, color=COLOURS[0], label="95% interval over questions")
    loss, (fall, *_) = kind.values(result).values()
    (apart,) = ((loss > 0) != (fall > 0)).nonzero()
    look = {"color": MARKED, "fillstyle": "none", "markersize": 6}
    ax.plot(apart, cost[apart], "o", **look, label="only one of the two rises")
    ax.axhline(0, color="black", linewidth=0.5)
    ax.locator_params("x", integer=True)
    _draw_passes(ax, kind, result)


def draw_map(ax: Axes, kind: Kind, result: Mapping, values: np.ndarray) -> None:
    """A heat map. The last token predicts nothing and is left out; what is not later cannot change and is white."""
    by_token, of_answer = "oken" in kind.xlabel, kind.mark == "answer map"
    if by_token and not of_answer:
        values = values[:, :-1]
    if later := kind.mark == "map of later layers":
        values = np.where((np.tri(*values.shape) > 0) & (values == 0), np.nan, values)
    low, high = kind.limits
    if signed := kind.mark == "signed map":
        high = np.percentile(np.abs(values[:, 1:]), 98) or 1
        low = -high
    if of_answer and high is None:
        signed, high = True, np.abs(values).max() or 1
        low = -high
    ax.imshow(values, "RdBu_r" if signed else "viridis", vmin=low, vmax=high, origin="upper" if later else "lower")
    ax.locator_params(integer=True)
    if kind.probe == "linear_map":
        best = values.argmin(0)
        ax.plot([0, len(best) - 1], [0, len(values) - 1], ":", color=COLOURS[3], label="equal relative depth")
        ax.plot(best, "o", color="red", markersize=3, label="best source layer")
    _draw_passes(ax, kind, result)
    if "settling" in result:
        if len({len(result[key]) for key in _OF_RESPONSES}) > 1:
            raise ValueError(f"{', '.join(_OF_RESPONSES)} are not of the same responses; take the same slice of each")
        settling = as_array(result["settling"][0])
        ax.plot(np.where(settling < len(values), settling, np.nan), "o", color="red", markersize=2, label="settles")
    if by_token:
        tokens = result["tokens"][0] if "settling" in result else result["tokens"]
        labels = [token_label(token) for token in tokens][: values.shape[1]]
        size = min(6, 72 * ax.bbox.width / ax.figure.dpi / len(labels))  # points: as wide as a column
        ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=size, parse_math=False)


def draw_words(ax: Axes, kind: Kind, result: Mapping, values: np.ndarray) -> None:
    """A column for each layer, the last and at most 15 others, with its most likely token in the row of each token.

    values: the colours of the cells, [L + 1, tokens].
    """
    last = len(values) - 1
    layers = sorted({*range(0, last, math.ceil(last / (WORDS - 1)) or 1), last})
    image = ax.imshow(values[layers].T)
    ax.set_xticks(range(len(layers)), [*map(str, layers)])
    ax.set_yticks(
        range(values.shape[1]), [token_label(token) for token in result["tokens"]], fontsize=6, parse_math=False
    )
    for column, row in np.ndindex(len(layers), values.shape[1]):
        colour = "black" if np.asarray(image.norm(values[layers[column], row])) > 0.6 else "white"
        word = token_label(result["top_tokens"][layers[column]][row][0])
        ax.text(column, row, word, size=5, ha="center", va="center", color=colour, parse_math=False)
    _draw_passes(ax, kind, result, layers)
