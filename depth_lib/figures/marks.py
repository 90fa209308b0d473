"""The two marks that a probe's figures are made of: curves over layers, and heat maps.

A mark draws into axes, and labels what a legend should name.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from ..effective_depth.rules import METRICS, PAPER_METRICS, as_array
from ..results.artifacts import escape_token
from ..results.schemas import ARTIFACTS

STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 6.5,
    "figure.titlesize": 9,
    "figure.labelsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "image.aspect": "auto",
    "image.interpolation": "nearest",
    "savefig.dpi": "figure",
}
# Okabe and Ito 2008: colours that people with any colour vision can tell apart.
COLOURS = "#0072B2 #E69F00 #009E73 #CC79A7 #D55E00 #56B4E9 #000000".split()
BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK = COLOURS
GREY = "#777777"
ROUNDING = "#bbbbbb"  # values that may be rounding
BARS, MARKED_BAR = "#a5d3ea", RED
# A colour per level of difficulty; the first six, all that most datasets have, differ most.
LEVELS = {
    f"level {level}": colormaps["viridis"](np.interp(level, (1, 6, 12), (0, 0.88, 1)).item()) for level in range(1, 13)
}

BLOCK, INPUT, OUTPUT = "Block $l$", "Input of block $l$", "Output of block $l$"
_BEGINNINGS = {"<|begin_of_text|>", "<|begin▁of▁sentence|>", "<｜begin▁of▁sentence｜>", "<s>", "<bos>", "<|endoftext|>"}
_SPACES = str.maketrans("Ġ▁Ċ", "  \n")  # what tokenizers write for them
_LONGEST_LABEL = 8
# Effects on layers before the skipped one are impossible, and on that one unless skipped tokens are measured too:
# key -> the last diagonal that is impossible.
_IMPOSSIBLE = {
    "max_future_layer": 0,
    "max_all_layer": -1,
    "max_future_local": 0,
    "max_all_local": 0,
    "mean_layer_effect": 0,
}

Panel = dict[str, np.ndarray]  # key of the result, or name of the curve -> values


@dataclass(frozen=True)
class Kind:
    """A figure: the probe and the keys it reads, its title, labels and caption.

    keys: key of the result -> what it is called in the legend or above its panel; those that a result has are drawn.
    limits: the ends of the vertical axis, or of the colours of a heat map; None: they follow the numbers.
    """

    aspect: ClassVar[float] = 0.62  # height of a panel by its width
    overlays: ClassVar[bool] = False  # several results are drawn into one panel, not side by side

    probe: str
    keys: Mapping[str, str]
    title: str
    caption: str
    ylabel: str
    xlabel: str = BLOCK
    limits: tuple[float, float] | None = None

    @property
    def of_question(self) -> bool:
        """Whether it is about one question and its answer, not about a dataset."""
        return ARTIFACTS[self.probe].of_pair

    def can_draw(self, result: Mapping) -> bool:
        return any(key in result for key in self.keys)

    def panels(self, result: Mapping) -> dict[str, Panel]:
        """Title of each panel, "" for one that needs none -> the values it shows."""
        return {"": {key: as_array(result[key]) for key in self.keys if key in result}}

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        """Draw one of the result's panels, without text around it."""
        raise NotImplementedError

    def note(self, result: Mapping) -> str:
        """A line above each panel."""
        return ""

    def finish(self, axes: Sequence[Axes]) -> None:
        """Set what all panels of a figure have in common, once they are drawn."""
        for ax in axes:
            if self.limits:
                ax.set_ylim(self.limits)


def rounding_floor(result: Mapping, key: str) -> float:
    """Smaller values of a key may be rounding: the largest floor of any prompt (of a mean: that of its values); 0 if it
    is not known."""
    return float(as_array(result.get(f"{key.removeprefix('mean_')}_rounding_floor", 0)).max())


@dataclass(frozen=True)
class Curves(Kind):
    """Curves [L] or [L + 1] over layers: the key `filled`, or one that is alone, as bars, the others as lines.

    metric: the effective depth to mark, with its threshold, which `threshold` names: a bar in another colour where
    there are only bars, else a dotted line, `depth_at` to the right of it. log: a logarithmic axis, without bars.
    What is below a curve's rounding floor is on grey.
    """

    overlays: ClassVar[bool] = True
    depth_at: ClassVar[float] = 0

    filled: str = ""
    metric: str = ""
    threshold: str = "threshold"
    log: bool = False

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        for i, (key, values) in enumerate(panel.items()):
            curve, name = values.ravel(), self.keys.get(key, key)
            if name.startswith(("Attention:", "MLP:")) and not curve.any():
                name += " = 0, one mixer only"
            if np.isnan(curve).all():  # of a model that is read block by block
                name += " is not known"
            if (len(panel) == 1 or key == self.filled) and not self.log:
                _fill(ax, curve, name, BARS)
            else:  # thinner and thinner, so that no line hides one on the same values
                colour = LEVELS.get(name, COLOURS[i % len(COLOURS)])
                ax.plot(curve, label=name, color=colour, linewidth=0.7 + 1.2 / (1 + i))
            if floor := rounding_floor(result, key):
                ax.axhspan(0, floor, color=ROUNDING, linewidth=0, label="within rounding")
        if self.metric and METRICS[self.metric].reads(panel):
            self.mark_depth(ax, panel, result)
        self._scale(ax)

    def overlay(self, ax: Axes, results: Mapping[str, Mapping]) -> None:
        """Several results in one panel, by their names: a colour each, a dash per key; dotted: the depth of each.

        Of a kind with a metric the one curve that its rule reads is drawn.
        """
        for i, ((name, result), colour) in enumerate(zip(results.items(), cycle(COLOURS), strict=False)):
            (panel,), depth = self.panels(result).values(), None
            if self.metric and METRICS[self.metric].reads(panel):
                metric, depth = METRICS[self.metric], self._depth(result)
                panel = {"": metric.curve([panel[key] for key in metric.keys])}
            for (key, values), dashes in zip(panel.items(), cycle(("-", "--", ":", "-.")), strict=False):
                label = f"{name}, {self.keys[key]}" if len(panel) > 1 else name
                ax.plot(values.ravel(), color=colour, ls=dashes, linewidth=1, label=label)
            if depth is not None:
                dots = -2 * i, (1.5, 2 * len(results) - 1.5)  # between those of others on the same layer
                ax.axvline(depth + self.depth_at, color=colour, ls=dots, linewidth=1)
        self._scale(ax)

    def _scale(self, ax: Axes) -> None:
        if self.log:
            ax.set_yscale("log")
        else:
            ax.axhline(0, color="black", linewidth=0.5)
        ax.locator_params("x", integer=True)

    def _depth(self, result: Mapping) -> int | None:
        """The layer that the metric's rule finds; None if there is none, no signal, or a value that is not finite."""
        metric = METRICS[self.metric]
        with suppress(ValueError):
            return None if metric.no_signal(result) else metric.layer(result)

    def mark_depth(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        """Mark the layer that the metric's rule finds, and the threshold that it compares with."""
        metric, depth = METRICS[self.metric], self._depth(result)
        if reason := metric.no_signal(result):
            ax.plot([], [], " ", label=reason)
            return
        name = "effective depth" if self.metric in PAPER_METRICS else f"{self.metric} depth"
        curve = panel[metric.keys[0]]
        if depth is not None and len(panel) == 1:
            _fill(ax, curve[depth : depth + 1], name, MARKED_BAR, first=depth)
        elif depth is not None:
            ax.axvline(depth + self.depth_at, color="black", ls=":", label=name)
        if metric.threshold is not None and np.isfinite(curve).all():
            level = metric.level(curve, metric.threshold) if metric.level else metric.threshold
            ax.axhline(np.max(level), color=GREY, ls="--", linewidth=0.8, label=self.threshold)


@dataclass(frozen=True)
class Heat(Kind):
    """Heat maps, a panel per key, a row per layer from the bottom upwards, a column per layer or token.

    colorbar: its label. With `limits` all panels share one bar; without them each has its own, which ends at this
    percentile of all tokens but the first. A bar is pointed where values lie beyond. diverging: from blue to red, as
    far below zero as above. tokens: columns are tokens, without the last one, which of an answer predicts nothing.
    Cells that can hold nothing are white, unlike a zero; those within rounding are grey. Layers whose estimated
    error is above the tolerance have a mark at the right, and are counted above.
    """

    aspect: ClassVar[float] = 0.95

    colorbar: str = ""
    percentile: int = 90
    diverging: bool = False
    tokens: bool = False

    def panels(self, result: Mapping) -> dict[str, Panel]:
        return {name: {key: as_array(result[key])} for key, name in self.keys.items() if key in result}

    def cells(self, panel: Panel) -> np.ndarray:
        """The values of a panel that are shown; those that can hold nothing are nan."""
        ((key, values),) = panel.items()
        if self.tokens and values.shape[1] > 1:
            values = values[:, :-1]
        if key in _IMPOSSIBLE:
            impossible = np.tri(len(values), values.shape[1], _IMPOSSIBLE[key], dtype=bool)
            values = np.where(impossible, np.nan, values)
        if key == "past_erasure":  # nothing is before the first two tokens
            values = np.where(np.arange(values.shape[1]) < 2, np.nan, values)
        return values

    def ends(self, values: np.ndarray) -> tuple[float, float]:
        """The ends of the colours of a panel's cells."""
        if self.limits:
            return self.limits
        others = np.abs(values[:, int(self.tokens and values.shape[1] > 1) :])
        others = others[np.isfinite(others)]
        high = float(np.percentile(others, self.percentile, method="higher")) if others.size else 0.0
        high = high or 1.0  # where nothing but zeros is shown
        return (-high if self.diverging else 0.0), high

    def note(self, result: Mapping) -> str:
        rough, tolerance = _rough_layers(result)
        return f"estimated error above {tolerance:.0%} at {len(rough)} layers" if len(rough) else ""

    def words(self, result: Mapping) -> np.ndarray | None:
        """What is written in the cells, if anything."""
        return None

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        values = self.cells(panel)
        low, high = self.ends(values)
        ax.imshow(values, cmap="seismic" if self.diverging else "viridis", origin="lower", vmin=low, vmax=high)
        if floor := rounding_floor(result, *panel):
            within = np.where(np.abs(values) < floor, 0, np.nan)
            ax.imshow(within, cmap=ListedColormap([ROUNDING]), origin="lower")
            ax.plot([], [], "s", color=ROUNDING, label="within rounding")
        rough, _ = _rough_layers(result)
        if rough.size:  # marks outside the axes: none at all would count as one at the figure's corner
            right = values.shape[1] - 0.5
            ax.plot(0 * rough + right, rough, "k<", markersize=3, clip_on=False)
            ax.set_xlim(-0.5, right)
        ax.locator_params(integer=True)
        if self.tokens and result.get("tokens"):
            label_tokens(ax, result["tokens"][: values.shape[1]])

    def finish(self, axes: Sequence[Axes]) -> None:
        """Add the colour bars."""
        images = [ax.images[0] for ax in axes if ax.images]
        for group in [images] if self.limits else [[image] for image in images]:
            shown = np.concatenate([np.ma.filled(np.asanyarray(image.get_array()), np.nan).ravel() for image in group])
            low, high = group[0].get_clim()
            extend = ("neither", "min", "max", "both")[(shown < low).any() + 2 * (shown > high).any()]
            label = self.colorbar if group[-1] is images[-1] else ""
            beside = list(axes) if self.limits else group[0].axes
            group[0].figure.colorbar(group[0], ax=beside, label=label, extend=extend, aspect=40)


def _rough_layers(result: Mapping) -> tuple[np.ndarray, float]:
    """The layers whose estimated relative error is above the tolerance of the result's settings, and that tolerance."""
    tolerance = result.get("meta", {}).get("settings", {}).get("tolerance", 0.01)
    return np.flatnonzero(as_array(result.get("error", ())) > tolerance), tolerance


def label_tokens(ax: Axes, tokens: Sequence[str]) -> None:
    """Label the columns of a heat map with their tokens; where not all fit, without blanks and those too near."""
    gap = 0.1 * len(tokens) * ax.figure.dpi / ax.bbox.width  # columns that a label takes
    labels, free = {}, 0.0  # the next column where a label fits
    for column, label in enumerate(map(token_label, tokens)):
        if gap <= 1 or (label != "␣" and column >= free):
            labels[column], free = label, column + gap
    ax.set_xticks(list(labels), labels.values(), rotation=90, parse_math=False)  # a token may be a dollar sign


def token_label(token: str) -> str:
    """A token as a short label: "Ġ5", "▁5" and " 5" are "5", a blank one "␣", the beginning of text "BOS"."""
    if token in _BEGINNINGS:
        return "BOS"
    text = escape_token(token.translate(_SPACES).strip(" ")) or ("␣" if token else "")
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def question_of(result: Mapping) -> str:
    """A result's question with its answer, from its `meta` or else its tokens; "" if neither has it."""
    settings = result.get("meta", {}).get("settings", {})
    text = "".join(token for token in result.get("tokens") or () if token not in _BEGINNINGS)
    return settings.get("question", "") + settings.get("answer", "") or text.translate(_SPACES).strip()


def _fill(ax: Axes, heights: np.ndarray, label: str, colour: str, first: int = 0) -> None:
    """Bars side by side as one patch: `ax.bar` is ten times slower over many panels."""
    edges = np.arange(first, first + len(heights) + 1) - 0.5
    ax.stairs(heights, edges, fill=True, color=colour, linewidth=0, label=label, zorder=0.9)
