"""Toys side by side: what they can do and where in depth, by number of terms or steps, with intervals."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = {"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 8, "axes.linewidth": 0.6}
STYLE |= {"xtick.labelsize": 7, "ytick.labelsize": 7}
BLUE, ORANGE = "#0072B2", "#D55E00"
PANELS = {
    "accuracy": ("Accuracy", "Share exactly right"),
    "erasure": ("Erasure depth", "Layer"),
    "score layer": ("Depth score, on later layers", "Layer"),
    "score output": ("Depth score, on the output", "Layer"),
    "cosine": ("Effective depth, cosine", "Layer"),
    "kl": ("Effective depth, KL", "Layer"),
    "overlap": ("Effective depth, overlap", "Layer"),
}
LOOKS = {  # a colour for ordinary and one for shared layers, open marks and dashes for the loss on everything
    ("ordinary", "all"): dict(color=BLUE, linestyle="--", marker="o", markerfacecolor="white"),
    ("ordinary", "answers"): dict(color=BLUE, linestyle="-", marker="o"),
    ("shared", "all"): dict(color=ORANGE, linestyle="--", marker="s", markerfacecolor="white"),
    ("shared", "answers"): dict(color=ORANGE, linestyle="-", marker="s"),
}
LEVELS = {"sums": ("Number of terms", 6), "nested": ("Number of steps", 5)}  # and the last one seen in training


def training_figure(found: pd.DataFrame, task: str, n_layers: int = 6) -> Figure:
    """A panel a quantity over the levels of a task, and one with the slopes of the depth score; unseen levels are grey.

    found: a row a kind × loss × task × quantity × level with value, low and high, as `over_seeds` returns. A point is
    missing where no layer satisfies the rule.
    """
    of_task = found[found.task == task]
    names = [name for name in PANELS if (of_task.quantity == name).any()]
    rows = -(-(len(names) + 1) // 4)
    # pyplot's, so that a notebook shows it; outside the style, since the first one starts the inline backend
    figure = plt.figure(figsize=(9, 2.1 * rows + 0.4), layout="constrained", dpi=160)
    with plt.rc_context(STYLE):
        axes = figure.subplots(rows, 4, squeeze=False).flat
        for ax, name in zip(axes, names, strict=False):
            _by_level(ax, of_task[of_task.quantity == name], task)
            ax.set_title(PANELS[name][0])
            ax.set_ylabel(PANELS[name][1])
            if name == "accuracy":
                ax.set_ylim(-0.05, 1.05)
            elif name not in ("score layer", "score output"):
                ax.set_ylim(-0.4, n_layers - 0.6)
        _slopes(axes[len(names)], of_task[(of_task.level == "seen")])
        for ax in axes[: len(names) + 1]:
            ax.spines[["top", "right"]].set_visible(False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, handlelength=3)
    return figure


def _by_level(ax: Axes, found: pd.DataFrame, task: str) -> None:
    xlabel, last_seen = LEVELS[task]
    found = found[found.level.str.isdigit()]
    levels = sorted(found.level.astype(int).unique())
    ax.axvspan(last_seen + 0.5, levels[-1] + 0.5, color="0.92", linewidth=0, zorder=0)
    for k, ((kind, loss), look) in enumerate(LOOKS.items()):
        one = found[(found.kind == kind) & (found.loss == loss)]
        x, value = one.level.astype(int) + 0.1 * (k - 1.5), one.value
        ends = np.nan_to_num([value - one.low, one.high - value])
        label = f"{kind}, loss on {'everything' if loss == 'all' else loss}"
        ax.errorbar(x, value, ends, label=label, markersize=3, linewidth=0.9, elinewidth=0.6, capsize=1, **look)
    if found.value.isna().all():
        ax.text(0.5, 0.5, "no layer satisfies the rule", transform=ax.transAxes, ha="center", fontsize=6)
    ax.set_xlim(levels[0] - 0.5, levels[-1] + 0.5)
    ax.set_xticks(levels)
    ax.set_xlabel(xlabel)


def _slopes(ax: Axes, found: pd.DataFrame) -> None:
    """The slope of the depth score over seen levels, by both effects."""
    for k, ((kind, loss), look) in enumerate(LOOKS.items()):
        for x, effect in enumerate(("layer", "output")):
            one = found[(found.kind == kind) & (found.loss == loss) & (found.quantity == f"slope {effect}")].iloc[0]
            ends = [[one.value - one.low], [one.high - one.value]]
            dot = dict(look, linestyle="none")
            ax.errorbar(x + 0.16 * (k - 1.5), one.value, ends, markersize=3, elinewidth=0.8, capsize=1.5, **dot)
    ax.axhline(0, color="black", linewidth=0.5)
    ax.set(xlim=(-0.5, 1.5), title="Slope of the depth score", ylabel="Layers a level, seen levels")
    ax.set_xticks([0, 1], ["on later layers", "on the output"])
