"""The card: where models lie among the papers' twelve, a line per rule."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..effective_depth.across import model_ratios
from ..effective_depth.published import published_depths
from ..effective_depth.rules import PAPER_METRICS
from .grid import DOTS_PER_INCH, short_name
from .marks import COLOURS, STYLE

_NAMES = {"cosine": "Cosine", "kl": "Logit lens KL", "overlap": "Logit lens overlap"}


@plt.rc_context({**STYLE, "font.size": 8})  # pyright: ignore[reportCallIssue] (it decorates, too)
def card_figure(depths: pd.DataFrame) -> Figure | None:
    """Each model's share of depth by the papers' three rules as a coloured dot, the papers' twelve as grey ones.

    depths: what `effective_depth.tables.depths` returns. Of several datasets a model's median counts. Of more models
    than colours all dots have one. None if no model has a depth.
    """
    ours = pd.DataFrame({metric: model_ratios(depths, metric) for metric in PAPER_METRICS})
    ours = ours.reindex(depths.model.unique()).dropna(how="all")
    if ours.empty:
        return None
    groups = [ours.loc[[model]] for model in ours.index] if len(ours) <= len(COLOURS) else [ours]
    figure = Figure(figsize=(4.8, 1.5 + 0.16 * -(-len(groups) // 3)), layout="constrained", dpi=2 * DOTS_PER_INCH)
    ax = figure.subplots()
    heights = range(len(PAPER_METRICS), 0, -1)
    dots = {"linestyle": "", "marker": "o", "alpha": 0.85, "mew": 0}
    for group, colour in zip(groups, COLOURS, strict=False):
        name = short_name(group.index[0]) if len(group) == 1 else f"{len(group)} models"
        places = np.tile(heights, len(group)) + 0.16
        ax.plot(group.to_numpy().ravel(), places, color=colour, markersize=6, label=name, **dots)
    for metric, height in zip(PAPER_METRICS, heights, strict=True):
        ax.axhline(height, color="#dddddd", linewidth=0.8, zorder=0)
        papers, name = model_ratios(published_depths(), metric), "the papers' twelve" if height == 1 else None
        ax.plot(papers, [height - 0.12] * len(papers), color="#aaaaaa", markersize=4.5, label=name, **dots)
    ax.set_yticks(heights, [_NAMES[metric] for metric in PAPER_METRICS])
    ax.set(xlim=(0, 1), ylim=(0.5, len(PAPER_METRICS) + 0.5))
    ax.set_xlabel("Effective depth as a share of all layers (median over datasets)")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7.5, handletextpad=0.2)
    return figure
