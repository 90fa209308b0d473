"""The card: where models lie among the papers' twelve, a line per rule."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from ..effective_depth.across import model_ratios
from ..effective_depth.published import published_depths
from ..effective_depth.rules import PAPER_METRICS
from .grid import DOTS_PER_INCH, short_name
from .marks import COLOURS, STYLE

_NAMES = {"cosine": "Cosine", "kl": "Logit lens KL", "overlap": "Logit lens overlap"}
_MOST = len(COLOURS) - 1  # models with a colour each


@plt.rc_context(STYLE | {"font.size": 8})
def card_figure(depths: pd.DataFrame) -> Figure | None:
    """Each model's share of depth by the papers' three rules as a coloured dot, the papers' twelve as grey ones.

    depths: what `effective_depth.tables.depths` returns. Of several datasets a model's median counts. None if no model
    has a depth.
    """
    published, ours = published_depths(), {metric: model_ratios(depths, metric) for metric in PAPER_METRICS}
    models = [*dict.fromkeys(depths.model[depths.ed.notna() & depths.metric.isin(PAPER_METRICS)])]
    if not models:
        return None
    rows = -(-len(models) // 3) if len(models) <= _MOST else 1
    figure = Figure(figsize=(4.8, 1.5 + 0.16 * rows), layout="constrained", dpi=2 * DOTS_PER_INCH)
    ax = figure.subplots()
    for place, metric in enumerate(reversed(PAPER_METRICS)):
        ax.axhline(place, color="#dddddd", linewidth=0.8, zorder=0)
        papers = model_ratios(published, metric)
        ax.plot(papers, [place - 0.12] * len(papers), "o", color="#aaaaaa", alpha=0.8, markersize=4.5, mew=0)
        for i, model in enumerate(models):
            if model in ours[metric]:
                colour = COLOURS[i] if len(models) <= _MOST else COLOURS[0]
                ax.plot(ours[metric][model], place + 0.16, "o", color=colour, markersize=6, alpha=0.85, mew=0)
    for i, model in enumerate(models if len(models) <= _MOST else [f"{len(models)} models"]):
        ax.plot([], [], "o", color=COLOURS[i], markersize=6, mew=0, label=short_name(model))
    ax.plot([], [], "o", color="#aaaaaa", markersize=4.5, mew=0, label="the papers' twelve")
    ax.set_yticks(range(len(PAPER_METRICS)), [_NAMES[metric] for metric in reversed(PAPER_METRICS)])
    ax.set(xlim=(0, 1), ylim=(-0.5, len(PAPER_METRICS) - 0.5), xlabel="Effective depth as a share of all layers")
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7.5, handletextpad=0.2)
    return figure
