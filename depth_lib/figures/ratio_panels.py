"""How ratios of effective depth are compared: three panels, marks of datasets and models, lines that all are seen.

Colours are Okabe and Ito's (2008), which people with any colour vision can tell apart; shapes say the same.
"""

from collections.abc import Callable, Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..effective_depth.rules import PAPER_METRICS
from ..results.study import PAPER_DATASETS, by_paper, read_name
from .layout import STYLE

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
SHAPES = ("o", "s", "^", "D", "v", "P", "X")
LINES = {"R1-distill": "-.", "instruct": "--", "base": "-"}
PAPER_WIDTH = 7.2  # inches; two columns
GREY = "#777777"


def three_panels(height: float, title: str, n: int = 3) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(PAPER_WIDTH, height), layout="constrained", dpi=160)
    axes = figure.subplots(1, n, sharey=True)
    figure.suptitle(title)
    for ax, metric in zip(axes, PAPER_METRICS if n == 3 else ("kl", "overlap"), strict=True):
        ax.set_title(metric)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def points_by_dataset(ax: Axes, rows: pd.DataFrame, x: str, mean: bool = True) -> None:
    """Dots, and the mean at each x as a line that is broken where no model of a size has a depth.

    Each dataset is drawn thinner and smaller than the one before it, so that none hides another.
    """
    places, datasets = sorted(set(rows[x])), datasets_of(rows)
    for size, dataset in zip(nested(len(datasets)), datasets, strict=True):
        mine = rows[rows.dataset == dataset].astype({"ratio": float})
        colour, shape = mark_of(dataset)
        ax.plot(mine[x], mine.ratio, shape, color=colour, markersize=2.5 + size, linestyle="none")
        if mean:
            means = mine.groupby(x).ratio.mean().reindex(places)
            ax.plot(means.index, means, color=colour, linewidth=size)
    ax.set_ylim(0, 1.04)
    ax.label_outer()
    if ax.get_subplotspec().is_first_col():
        ax.set_ylabel("Ratio (ED + 1) / L")


def nested(n: int) -> list[float]:
    """Line widths from wide to narrow, points: lines drawn in this order on the same values are all seen."""
    return [0.8 + 1.8 * (n - 1 - i) / max(n - 1, 1) for i in range(n)]


def lines_of_models(rows: pd.DataFrame, title: str, metrics: list[str], axis: Callable[[Axes], object]) -> Figure:
    models = list(rows.model.unique())
    names = {model: read_name(model) for model in models}
    sizes = sorted({named.billions or 0 for named in names.values()})
    with plt.rc_context(STYLE):
        legend_rows = -(-(len(models) + 1) // 3)
        figure, axes = three_panels(2.5 + 0.17 * legend_rows, title, len(metrics))
        marks = []
        for i, (model, width) in enumerate(zip(models, nested(len(models)), strict=True)):
            k = sizes.index(names[model].billions or 0) if len(sizes) > 1 else i
            look = {
                "color": OKABE_ITO[k % len(OKABE_ITO)],
                "marker": SHAPES[k % len(SHAPES)],
                "markersize": 2.5 + width,
                "linewidth": width,
                "linestyle": LINES[names[model].training],
            }
            marks.append(Line2D([], [], label=model.replace("$", r"\$"), **look))
            for ax, metric in zip(axes, metrics, strict=True):
                of_metric = rows[rows.metric == metric].astype({"ratio": float})
                mine = of_metric[of_metric.model == model].set_index("x").ratio
                mine = mine.reindex(sorted(set(of_metric.x)))  # a line is broken where a value is missing
                ax.plot(mine.index, mine, **look)
        for ax in axes:
            ax.set_ylim(0, 1.04)
            axis(ax)
        axes[0].set_ylabel("Ratio (ED + 1) / L")
        marks += axes[0].get_legend_handles_labels()[0]
        figure.legend(handles=marks, loc="outside lower center", ncols=min(3, len(marks)), frameon=False, fontsize=7)
    return figure


def sizes(stability: pd.DataFrame) -> pd.Series:
    """Billions of parameters where every model's name says it, else the number of blocks."""
    billions = stability.model.map(lambda m: read_name(m).billions)
    return (billions if billions.notna().all() else stability.layers).astype(float)


def size_axis(ax: Axes, ticks: list[float], label: str) -> None:
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlim(min(ticks, default=1) / 1.25, max(ticks, default=1) * 1.25)
    ax.set_xlabel(label)


def datasets_of(frame: pd.DataFrame) -> list[str]:
    return sorted(frame.dataset.unique(), key=by_paper)


def mark_of(dataset: str) -> tuple[str, str]:
    """Colour and shape of a dataset, the same in every figure."""
    known = (
        PAPER_DATASETS.index(dataset)
        if dataset in PAPER_DATASETS
        else len(PAPER_DATASETS) + sum(map(ord, dataset)) % (len(OKABE_ITO) - len(PAPER_DATASETS))
    )
    return OKABE_ITO[known], SHAPES[known]


def dataset_marks(datasets: Iterable[str], linewidth: float = 1) -> list[Line2D]:
    look = {"markersize": 4, "linewidth": linewidth}
    return [Line2D([], [], color=mark_of(d)[0], marker=mark_of(d)[1], label=d, **look) for d in datasets]


def legend(figure: Figure, marks: list[Line2D]) -> None:
    figure.legend(handles=marks, loc="outside lower center", ncols=max(len(marks), 1), frameon=False)
