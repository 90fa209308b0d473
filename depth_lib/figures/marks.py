"""The two marks that a probe's figures are made of: curves over layers, and heat maps.

A mark draws into axes, and labels what a legend should name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from ..effective_depth.rules import METRICS, PAPER_METRICS, as_array
from ..results.artifacts import escape_token

STYLE = {
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
BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK = "#0072B2 #E69F00 #009E73 #CC79A7 #D55E00 #56B4E9 #000000".split()
COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK)
GREY = "#777777"
ROUNDING = "#bbbbbb"  # values that may be rounding
BARS, MARKED_BAR = "#a5d3ea", RED
# A colour per level of difficulty; the first six, all that most datasets have, differ most.
LEVELS = {
    f"level {level}": colormaps["viridis"](np.interp(level, (1, 6, 12), (0, 0.88, 1)).item()) for level in range(1, 13)
}

LAYER = "Layer index $l$"
_BEGINNINGS = {"<|begin_of_text|>", "<|begin▁of▁sentence|>", "<｜begin▁of▁sentence｜>", "<s>", "<bos>", "<|endoftext|>"}
_SPACES = str.maketrans("Ġ▁Ċ", "  \n")  # what tokenizers write for them
_LONGEST_LABEL = 8
_EFFECTS = ("max_future_layer", "max_future_local", "max_all_local", "mean_layer_effect")  # on later layers only

Panel = dict[str, np.ndarray]  # key of the result, or name of the curve -> values


@dataclass(frozen=True)
class Kind:
    """A figure: the probe and the keys it reads, its title, labels and caption.

    keys: key of the result -> what it is called in the legend or above its panel; those that a result has are drawn.
    of_question: about one question and its answer, not about a dataset.
    read: makes the panels, if they are not the keys' values themselves. note: a line above each panel.
    """

    aspect: ClassVar[float] = 0.62  # height of a panel by its width

    probe: str
    title: str
    caption: str
    keys: Mapping[str, str]
    ylabel: str
    xlabel: str = LAYER
    of_question: bool = False
    read: Callable[[Mapping], dict[str, Panel]] | None = None
    note: Callable[[Mapping], str] | None = None

    def can_draw(self, result: Mapping) -> bool:
        return any(key in result for key in self.keys)

    def panels(self, result: Mapping) -> dict[str, Panel]:
        """Title of each panel, "" for one that needs none -> the values it shows."""
        if self.read:
            return self.read(result)
        values = {key: as_array(result[key]) for key in self.keys if key in result}
        if isinstance(self, Heat):
            return {self.keys[key]: {key: value} for key, value in values.items()}
        return {"": values}

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        """Draw one of the result's panels, without text around it."""
        raise NotImplementedError


def rounding_floor(result: Mapping, key: str) -> float:
    """Smaller values of a key may be rounding: the largest floor of any prompt."""
    return float(as_array(result[f"{key}_rounding_floor"]).max())


@dataclass(frozen=True)
class Curves(Kind):
    """Curves [L] or [L + 1] over layers: the key `filled`, or one that is alone, as bars, the others as lines.

    metric: the effective depth to mark, with its threshold: a bar in another colour where there are only bars, else a
    dotted line, depth_at to the right of it, and the mean curve that a rule of several keys reads, with each layer that
    satisfies it; and the key whose curve each prompt has as a thin line. cut: where the axis ends at the latest. log: a
    logarithmic axis, on which there are no bars. Where the result has the rounding floor of a curve, what is below it
    is grey.
    """

    filled: str = ""
    metric: str = ""
    depth_at: float = 0
    cut: float | None = None
    log: bool = False

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        alone = len(panel) == 1
        for i, (key, values) in enumerate(panel.items()):
            curve, name = values.ravel(), self.keys.get(key, key)
            if name.startswith(("Attention:", "MLP:")) and not curve.any():
                name += " = 0, one mixer only"
            if np.isnan(curve).all():  # of a model that is read block by block
                name += " is not known"
            if (alone or key == self.filled) and not self.log:
                _fill(ax, curve, name, BARS)
                if self.metric:
                    ax.plot(_per_prompt(result, key).T, color=GREY, linewidth=0.3, alpha=0.6)
            else:  # thinner and thinner, so that no line hides one on the same values
                colour = LEVELS.get(name, COLOURS[i % len(COLOURS)])
                ax.plot(curve, label=name, color=colour, linewidth=0.7 + 1.2 / (1 + i))
            if f"{key}_rounding_floor" in result:
                _fill(ax, np.full(len(curve), rounding_floor(result, key)), "within rounding", ROUNDING)
        metric = METRICS.get(self.metric)
        if metric and metric.turns and set(metric.keys) <= panel.keys():
            mean = metric.curve([panel[key].ravel() for key in metric.keys])
            if np.isfinite(mean).all():
                ax.plot(mean, color="black", linewidth=0.8, label="mean of the three")
                turns = np.flatnonzero(metric.crosses(mean))
                if turns.size:
                    ax.plot(turns + self.depth_at, 0 * turns, "k^", markersize=4, label="mean crosses zero upwards")
        if (depth := self.depth(result)) is not None:
            if alone:
                _fill(ax, curve[depth : depth + 1], self.depth_name, MARKED_BAR, first=depth)
            else:
                ax.axvline(depth + self.depth_at, color="black", ls=":", label=self.depth_name)
        if (threshold := self.threshold(result)) is not None:
            ax.axhline(threshold, color=GREY, ls="--", linewidth=0.8, label="threshold")
        if self.log:
            ax.set_yscale("log")
        else:
            ax.axhline(0, color="black", linewidth=0.5)
        ax.locator_params("x", integer=True)

    @property
    def depth_name(self) -> str:
        return "effective depth" if self.metric in PAPER_METRICS else f"{self.metric} depth"

    def depth(self, result: Mapping) -> int | None:
        """The layer to mark; None if there is none, or if the result lacks what the metric reads."""
        metric = METRICS.get(self.metric)
        if metric is None or not all(key in result for key in metric.keys):
            return None
        try:
            return metric.rule(*metric.arguments(result))
        except ValueError:  # a curve with nan has no effective depth, but the rest of it is drawn
            return None

    def threshold(self, result: Mapping) -> float | None:
        """The metric's threshold in the curve's unit."""
        metric = METRICS.get(self.metric)
        if metric is None or metric.threshold is None or metric.keys[0] not in result:
            return None
        curve = np.nan_to_num(as_array(result[metric.keys[0]]))
        return float(np.max(metric.level(curve, metric.threshold))) if metric.level else metric.threshold


@dataclass(frozen=True)
class Heat(Kind):
    """Heat maps, a panel per key, a row per layer: by layers, the first at the top, or by tokens, upwards.

    colorbar: its label. alone: each panel has its own colour bar, else all of a figure share one; it ends at this
    percentile of all tokens but the first, and is pointed where values lie beyond. diverging: from blue to red, as far
    below zero as above. tokens: columns are tokens, without the last one, which predicts nothing. Cells that can hold
    nothing are white, unlike a zero. Layers whose relative error is above the tolerance are marked. Where the result
    has the rounding floor of a map, what is below it is grey.
    """

    aspect: ClassVar[float] = 0.95

    colorbar: str = ""
    alone: bool = False
    percentile: int = 90
    diverging: bool = False
    tokens: bool = False

    def draw(self, ax: Axes, panel: Panel, result: Mapping) -> None:
        ((key, values),) = panel.items()
        values = self.shown(key, values)
        width, origin = values.shape[1], "lower" if self.tokens else "upper"
        ax.imshow(values, cmap="seismic" if self.diverging else "viridis", origin=origin)
        if f"{key}_rounding_floor" in result:
            within = np.abs(values) < rounding_floor(result, key)
            ax.imshow(np.where(within, 0, np.nan), cmap=ListedColormap([ROUNDING]), origin=origin)
            ax.plot([], [], "s", color=ROUNDING, label="within rounding")
        ax.locator_params(integer=True)
        rough = self.rough(result)
        if len(rough):  # marks outside the axes: none at all would count as one at the figure's corner
            label = "rough: error above the tolerance"
            ax.plot(0 * rough + width - 0.5, rough, "k<", markersize=3, clip_on=False, label=label)
            ax.set_xlim(-0.5, width - 0.5)
        if self.tokens and result.get("tokens"):
            label_tokens(ax, result["tokens"][:width])

    def shown(self, key: str, values: np.ndarray) -> np.ndarray:
        """The values without the last token, nan in cells that can hold nothing.

        Those are effects on layers up to the skipped one (in all mode before it: the skipped tokens are measured too),
        and the past of the first two tokens.
        """
        if self.tokens and values.shape[1] > 1:
            values = values[:, :-1]
        row, column = np.indices(values.shape)
        first = {"past_erasure": 2, "max_all_layer": row}.get(key, row + 1 if key in _EFFECTS else 0)
        return np.where(column < first, np.nan, values)

    def rough(self, result: Mapping) -> np.ndarray:
        """The layers whose relative error is above the tolerance that the probe was given."""
        tolerance = result.get("meta", {}).get("settings", {}).get("tolerance", 0.01)
        return np.flatnonzero(as_array(result.get("error", ())) > tolerance)

    def limits_of(self, maps: Sequence[np.ndarray]) -> tuple[float, float]:
        """Colour limits of maps: a percentile, without the first token."""
        others = [np.abs(values[:, 1:] if self.tokens and values.shape[1] > 1 else values).ravel() for values in maps]
        high = float(np.nanpercentile(np.concatenate(others), self.percentile, method="higher")) or 1.0
        return -high if self.diverging else 0.0, high


def label_tokens(ax: Axes, tokens: Sequence[str]) -> None:
    """Label the columns of a heat map with their tokens, upright where they have one or two characters.

    Where not all fit, blank tokens lose their labels, and those too near to the label before them.
    """
    inches = ax.figure.get_figwidth() / ax.get_subplotspec().get_gridspec().ncols - 0.5  # before the layout: about
    needed, labels = 0.12 * len(tokens) / max(inches, 0.5), {}  # columns per label
    for place, label in enumerate(map(token_label, tokens)):
        if needed <= 1 or (label != "␣" and place - max(labels, default=-math.inf) >= needed):
            labels[place] = label
    ax.set_xticks(list(labels), labels.values(), parse_math=False)  # a token may be a dollar sign
    for text in ax.get_xticklabels():
        text.set_rotation(90 if len(text.get_text()) > 2 else 0)


def token_label(token: str) -> str:
    """A token as a short label: "Ġ5", "▁5" and " 5" are "5", a blank one "␣", the beginning of text "BOS"."""
    if token in _BEGINNINGS:
        return "BOS"
    plain = token.translate(_SPACES)
    text = escape_token(plain.strip(" ") or plain[:1])
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def question_of(result: Mapping) -> str:
    """A result's question with its answer, from its `meta` or else its tokens; "" if neither has it."""
    settings = result.get("meta", {}).get("settings", {})
    text = "".join(token for token in result.get("tokens") or () if token not in _BEGINNINGS)
    return settings.get("question", "") + settings.get("answer", "") or text.translate(_SPACES).strip()


def _per_prompt(result: Mapping, key: str) -> np.ndarray:
    """Each prompt's mean over its tokens, [P, L]; no row where the result does not have it."""
    if f"{key}_sums" not in result or "n_tokens" not in result:
        return np.empty((0, 0))
    return as_array(result[f"{key}_sums"]) / as_array(result["n_tokens"])[:, None]


def _fill(ax: Axes, heights: np.ndarray, label: str, colour: str, first: int = 0) -> None:
    """Bars side by side as one patch: `ax.bar` is ten times slower over many panels."""
    edges = np.arange(first, first + len(heights) + 1) - 0.5
    ax.stairs(heights, edges, fill=True, color=colour, linewidth=0, label=label, zorder=0.9)
