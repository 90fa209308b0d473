"""Toys side by side: accuracy and depth by number of terms or steps, with intervals."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
COLORS = {"ordinary": BLUE, "shared": ORANGE}
TOYS = [(kind, loss) for kind in COLORS for loss in ("all", "answers")]
LEVELS = {"sums": ("Number of terms", 6), "nested": ("Number of steps", 5)}  # and the last one seen in training


def training_figure(found: pd.DataFrame, task: str, n_layers: int = 6) -> Figure:
    """One panel per quantity over a task's levels, and one with the slopes of the depth score; unseen levels are grey.

    found: one row per kind × loss × task × quantity × level with value, low and high, as `over_seeds` returns. A point
    is missing if no layer satisfies the rule.
    """
    of_task = found[found.task == task]
    names = [name for name in PANELS if (of_task.quantity == name).any()]
    rows = -(-(len(names) + 1) // 4)
    figure = plt.figure(figsize=(9, 2.1 * rows + 0.4), layout="constrained", dpi=160)  # pyplot's: a notebook shows it
    with plt.rc_context({"font.size": 7, "axes.spines.top": False, "axes.spines.right": False}):
        axes = figure.subplots(rows, 4, squeeze=False).flat
        for ax, name in zip(axes, names, strict=False):
            _by_level(ax, of_task[of_task.quantity == name], task)
            ax.set_title(PANELS[name][0])
            ax.set_ylabel(PANELS[name][1])
            if name == "accuracy":
                ax.set_ylim(-0.05, 1.05)
            elif name not in ("score layer", "score output"):
                ax.set_ylim(-0.4, n_layers - 0.6)
        _slopes(axes[len(names)], of_task[of_task.level == "seen"])
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, handlelength=3)
    return figure


def _by_level(ax: Axes, found: pd.DataFrame, task: str) -> None:
    xlabel, last_seen = LEVELS[task]
    found = found[found.level.str.isdigit()].astype({"level": int})
    levels = sorted(found.level.unique())
    ax.axvspan(last_seen + 0.5, levels[-1] + 0.5, color="0.92", linewidth=0, zorder=0)
    for k, toy in enumerate(TOYS):
        one = found[(found.kind == toy[0]) & (found.loss == toy[1])]
        _intervals(ax, one.level + 0.1 * (k - 1.5), one, toy, label=f"{toy[0]}, loss on {toy[1]}")
    if found.value.isna().all():
        ax.text(0.5, 0.5, "no layer satisfies the rule", transform=ax.transAxes, ha="center", fontsize=6)
    ax.set(xlim=(levels[0] - 0.5, levels[-1] + 0.5), xticks=levels, xlabel=xlabel)


def _slopes(ax: Axes, found: pd.DataFrame) -> None:
    """The slope of the depth score over seen levels, by both effects."""
    for k, toy in enumerate(TOYS):
        one = found[(found.kind == toy[0]) & (found.loss == toy[1])].set_index("quantity")
        one = one.loc[["slope layer", "slope output"]]
        _intervals(ax, np.arange(2) + 0.16 * (k - 1.5), one, toy, linestyle="none")
    ax.axhline(0, color="black", linewidth=0.5)
    ax.set(xlim=(-0.5, 1.5), title="Slope of the depth score", ylabel="Layers per level, seen levels")
    ax.set_xticks([0, 1], ["on later layers", "on the output"])


def _intervals(ax: Axes, x: np.ndarray, found: pd.DataFrame, toy: tuple[str, str], **look) -> None:
    """Values with whiskers: a colour for each kind of layers, open marks and dashes for the loss on all tokens."""
    kind, loss = toy
    look = {"linestyle": "--" if loss == "all" else "-", "color": COLORS[kind], "marker": "o", **look}
    fill = "white" if loss == "all" else COLORS[kind]
    whiskers = np.nan_to_num([found.value - found.low, found.high - found.value])
    ax.errorbar(x, found.value, whiskers, markersize=3, markerfacecolor=fill, linewidth=0.9, capsize=1, **look)
