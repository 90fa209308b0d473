"""Depth by difficulty: a map a level, the importance of layers by level, and depth scores with their intervals."""

import textwrap
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..effective_depth.difficulty import depth_scores, importance_by_level
from ..effective_depth.intervals import NoInterval
from .layout import STYLE
from .panels import LINES, Curves, layer_axis, layer_map

KEYS = ("level", "layer_effect", "output_effect")
SHARE = "Share of all layers' effect"
_EFFECTS = {"layer": "on later layers", "output": "on the output"}


def importance_lines(ax: Axes, curves: Curves, tokens: None, *, effect: str) -> None:
    """A line a level, dark to bright: the mean importance of each layer, as a share of that of all layers.

    A level has its own colour, whatever other levels there are: 1 to 6 evenly, further ones up to 12 in what is left.
    """
    by_level = importance_by_level(dict(zip(KEYS, curves, strict=True)), effect)
    colours = plt.get_cmap("viridis")(np.interp(list(by_level), (1, 6, 12), (0, 0.88, 1)))
    for (level, values), colour in zip(by_level.items(), colours, strict=True):
        mean = values.mean(0)
        ax.plot(mean / (mean.sum() or 1), color=colour, linewidth=1.1, label=f"level {level}")
    layer_axis(ax, values.shape[1])


def score_bars(ax: Axes, curves: Curves, tokens: None) -> None:
    """The depth score of each level with its 95 % interval, by the effect on later layers and on the output."""
    result, reasons = dict(zip(KEYS, curves, strict=True)), []
    for k, (effect, label) in enumerate(_EFFECTS.items()):
        try:
            scores = depth_scores(result, effect).scores
        except NoInterval as reason:
            reasons.append(textwrap.fill(str(reason), 28))
            continue
        x = np.arange(len(scores)) + 0.4 * k - 0.2
        value, low, high = np.array([(one.value, one.low, one.high) for one in scores.values()]).T
        ax.bar(x, value, 0.36, color=LINES[k], alpha=0.75, label=label)
        ax.errorbar(x, value, [value - low, high - value], fmt="none", ecolor="black", elinewidth=0.8, capsize=1.5)
        ax.set_xticks(range(len(scores)), [str(level) for level in scores])
    if len(reasons) == len(_EFFECTS):
        ax.set(xticks=[], yticks=[])
    look = {"ha": "center", "fontsize": 7, "bbox": {"color": "white", "alpha": 0.8, "pad": 1}}
    for reason in dict.fromkeys(reasons):  # below where bars end, if there are any
        ax.text(0.5, 0.05 if ax.has_data() else 0.4, reason, transform=ax.transAxes, **look)


def difficulty_figure(result: Mapping, title: str = "") -> Figure:
    """All of it for one model and dataset: above a map a level, below importance by level and depth scores.

    result: what `depth_by_difficulty` returns or `load_artifact` reads. Maps are means over the examples of a level,
    row = layer skipped, column = affected; one scale for all. Needs two levels with 3 examples each for the scores.
    """
    curves = [np.asarray(result[key]) for key in KEYS]
    levels = np.unique(curves[0])
    with plt.rc_context(STYLE):
        figure = Figure(figsize=(max(6.5, 1.35 * len(levels) + 0.8), 4.1), layout="constrained", dpi=160)
        figure.suptitle(title or "Depth by difficulty")
        above, below = figure.subfigures(2, 1, height_ratios=(1, 1.15))
        maps = above.subplots(1, len(levels), sharex=True, sharey=True, squeeze=False)[0]
        for ax, level in zip(maps, levels, strict=True):
            image = layer_map(ax, [curves[1][curves[0] == level].mean(0)], None)
            ax.set_title(f"level {level:.0f} (n = {(curves[0] == level).sum()})")
            ax.set_xlabel("Effect @ layer")
        maps[0].set_ylabel("Layer skipped")
        above.colorbar(image, ax=maps, extend="max", label="Relative change,\nmean over examples")
        layer, output, scores = below.subplots(1, 3)
        for ax, effect in ((layer, "layer"), (output, "output")):
            importance_lines(ax, curves, None, effect=effect)
            ax.set(title=f"Importance {_EFFECTS[effect]}", xlabel="Layer skipped", ylabel=SHARE)
        layer.legend(frameon=False, fontsize=6, handlelength=1)
        score_bars(scores, curves, None)
        scores.set(title="Depth score", xlabel="Level", ylabel="Layer")
        if scores.has_data():
            scores.set_ylim(top=1.3 * scores.get_ylim()[1])
            scores.legend(frameon=False, fontsize=6, ncols=1, loc="upper left")
        for ax in (layer, output, scores):
            ax.spines[["top", "right"]].set_visible(False)
    return figure
