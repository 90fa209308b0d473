"""What the effective depths say: ratios with their intervals, the paper's three questions, and the thresholds.

Colours are Okabe and Ito's (2008), which people with any colour vision can tell apart; shapes say the same.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..effective_depth.published import published_depths
from ..effective_depth.rules import METRICS, PAPER_METRICS
from ..results.study import PAPER_DATASETS, TRAINING, read_name
from .grids import save
from .layout import STYLE

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
SHAPES = ("o", "s", "^", "D", "v", "P", "X")
LINES = {"R1-distill": "-.", "instruct": "--", "base": "-"}
PAPER_WIDTH = 7.2  # inches; two columns
_GREY = "#777777"


def intervals_figure(stability: pd.DataFrame) -> Figure:
    """ED ratio of every model × dataset × metric with its 95 % interval over prompts, a panel a metric.

    stability: what `depths_with_intervals` returns. Hollow: no interval. An arrow: a curve without an effective
    depth fits the prompts too.
    """
    models, datasets = list(stability.model.unique()), _datasets_of(stability)
    with plt.rc_context(STYLE):
        height = max(1.9, 0.9 + len(models) * (0.12 + 0.1 * len(datasets)))
        figure, axes = _three_panels(height, "Ratio of effective depth, with 95 % intervals over prompts")
        for ax, metric in zip(axes, PAPER_METRICS, strict=True):
            ax.set(xlim=(0, 1.04), ylim=(len(models) - 0.5, -0.5), xlabel="Ratio (ED + 1) / L")
            ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
            ax.set_yticks(range(len(models)), models, parse_math=False)
            ax.label_outer()
            ax.hlines(np.arange(len(models) - 1) + 0.5, 0, 1.04, color="#dddddd", linewidth=0.5)
            for j, dataset in enumerate(datasets):
                rows = stability[(stability.metric == metric) & (stability.dataset == dataset)]
                shift = 0.24 * (j - (len(datasets) - 1) / 2) * min(1, 3 / len(datasets))
                for row in rows.itertuples():
                    _whisker(ax, row, models.index(row.model) + shift)
        marks = [
            *_dataset_marks(datasets),
            Line2D(
                [],
                [],
                color=_GREY,
                marker="o",
                markerfacecolor="white",
                linestyle="none",
                markersize=4,
                label="no interval",
            ),
        ]
        _legend(figure, marks)
    return figure


def _whisker(ax: Axes, row: tuple, y: float) -> None:
    colour, shape = _mark(row.dataset)
    measured = not pd.isna(row.low) or not pd.isna(row.high)
    if measured:
        low = 0.0 if pd.isna(row.ratio_low) else row.ratio_low
        high = 1.0 if pd.isna(row.ratio_high) else row.ratio_high
        ax.plot([low, high], [y, y], color=colour, linewidth=1, solid_capstyle="butt")
        ends = (("<" if pd.isna(row.low) else "|", low), (">" if pd.isna(row.high) else "|", high))
        for mark, x in ends:
            ax.plot(x, y, mark, color=colour, markersize=4, clip_on=False)
    if not pd.isna(row.ratio):
        ax.plot(row.ratio, y, shape, color=colour, markersize=3.5, markerfacecolor=colour if measured else "white")


def ratio_by_size_figure(stability: pd.DataFrame) -> Figure:
    """Does a larger model use a larger share of its depth? Ratio against size, with the mean of each size as a line.

    Size is billions of parameters where every model's name says it, else the number of blocks. Grey: the published
    values, their mean over models of a size and all datasets.
    """
    frame = stability.dropna(subset=["ratio"]).assign(billions=stability.model.map(lambda m: read_name(m).billions))
    by_parameters = len(frame) and frame.billions.notna().all()
    frame = frame.assign(size=(frame.billions if by_parameters else frame.layers).astype(float))
    published = published_depths().assign(size=lambda table: table.model.map(lambda m: read_name(m).billions))
    with plt.rc_context(STYLE):
        figure, axes = _three_panels(2.7, "Ratio of effective depth against model size")
        for ax, metric in zip(axes, PAPER_METRICS, strict=True):
            if by_parameters:
                means = published[published.metric == metric].groupby("size").ratio.mean()
                ax.plot(means.index, means, color=_GREY, linewidth=1, linestyle="--", zorder=1)
            _points_by_dataset(ax, frame[frame.metric == metric], "size")
            ticks = sorted(set(frame["size"]) | (set(published["size"]) if by_parameters else set()))
            _size_axis(ax, ticks, "Parameters (billions)" if by_parameters else "Blocks")
        marks = _dataset_marks(_datasets_of(frame))
        paper = Line2D([], [], color=_GREY, linestyle="--", label="published, mean")
        _legend(figure, [*marks, paper] if by_parameters else marks)
    return figure


def ratio_by_training_figure(stability: pd.DataFrame) -> Figure:
    """Does training change it? Ratio of base, instruct, R1-distilled models, those of one size and dataset joined."""
    frame = stability.dropna(subset=["ratio"]).assign(kind=stability.model.map(lambda m: read_name(m).training))
    frame["billions"] = frame.model.map(lambda m: read_name(m).billions)
    order = TRAINING[::-1]
    with plt.rc_context(STYLE):
        figure, axes = _three_panels(2.7, "Ratio of effective depth by training")
        for ax, metric in zip(axes, PAPER_METRICS, strict=True):
            rows = frame[frame.metric == metric].assign(x=lambda table: table.kind.map(order.index))
            for _, joined in rows.dropna(subset=["billions"]).groupby(["billions", "dataset"]):
                joined = joined.sort_values("x")
                ax.plot(joined.x, joined.ratio.astype(float), color="#bbbbbb", linewidth=0.6, zorder=1)
            _points_by_dataset(ax, rows, "x", mean=False)
            ax.set_xlim(-0.4, len(order) - 0.6)
            ax.set_xticks(range(len(order)), order)
        _legend(figure, _dataset_marks(_datasets_of(frame)))
    return figure


def ratio_by_task_figure(stability: pd.DataFrame) -> Figure:
    """Does a harder task use more of it? Ratio on each dataset, easy to hard, a line a model."""
    datasets = _datasets_of(stability)
    rows = stability.assign(x=stability.dataset.map(datasets.index))

    def axis(ax: Axes) -> None:
        ax.set_xlim(-0.3, len(datasets) - 0.7)
        ax.set_xticks(range(len(datasets)), datasets)

    return _lines_of_models(rows, "Ratio of effective depth by task", list(PAPER_METRICS), axis)


def thresholds_figure(sweep: pd.DataFrame, dataset: str) -> Figure:
    """How much hangs on the threshold: ratio over KL and overlap thresholds on one dataset, a line a model.

    sweep: what `depths_by_threshold` returns. The dotted line is the papers' threshold.
    """
    rows = sweep[sweep.dataset == dataset].assign(x=lambda table: table.threshold)

    def axis(ax: Axes) -> None:
        ticks = METRICS[ax.get_title()].thresholds
        ax.set(xlim=(ticks[0] - 0.05, ticks[-1] + 0.05), xticks=ticks)
        ax.axvline(METRICS[ax.get_title()].threshold, color=_GREY, linestyle=":", linewidth=1)
        ax.set_xlabel("Threshold" + (" (share of the maximum)" if ax.get_title() == "kl" else " (overlap)"))

    return _lines_of_models(rows, f"Ratio of effective depth over the threshold, {dataset}", ["kl", "overlap"], axis)


def save_summary_figures(folder: str | Path, stability: pd.DataFrame, sweep: pd.DataFrame) -> list[Path]:
    """Write the figures of this module to `folder/figures/summary/<name>.pdf` and `.png`, of what there is."""
    stem = Path(folder) / "figures" / "summary"
    figures = {
        "ratio_intervals": intervals_figure,
        "ratio_by_size": ratio_by_size_figure,
        "ratio_by_training": ratio_by_training_figure,
        "ratio_by_task": ratio_by_task_figure,
    }
    written = []
    for name, draw in figures.items() if len(stability) else ():
        written += save(draw(stability), stem / name)
    for dataset in _datasets_of(sweep):
        written += save(thresholds_figure(sweep, dataset), stem / f"thresholds_{dataset}")
    return written


def _three_panels(height: float, title: str, n: int = 3) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(PAPER_WIDTH, height), layout="constrained", dpi=160)
    axes = figure.subplots(1, n, sharey=True)
    figure.suptitle(title)
    for ax, metric in zip(axes, PAPER_METRICS if n == 3 else ("kl", "overlap"), strict=True):
        ax.set_title(metric)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _points_by_dataset(ax: Axes, rows: pd.DataFrame, x: str, mean: bool = True) -> None:
    """Dots, and the mean at each x as a line."""
    for dataset in _datasets_of(rows):
        mine = rows[rows.dataset == dataset].astype({"ratio": float})
        colour, shape = _mark(dataset)
        ax.plot(mine[x], mine.ratio, shape, color=colour, markersize=3.5, alpha=0.75, linestyle="none")
        if mean:
            means = mine.groupby(x).ratio.mean()
            ax.plot(means.index, means, color=colour, linewidth=1)
    ax.set_ylim(0, 1.04)
    ax.label_outer()
    if ax.get_subplotspec().is_first_col():
        ax.set_ylabel("Ratio (ED + 1) / L")


def _lines_of_models(rows: pd.DataFrame, title: str, metrics: list[str], axis: Callable[[Axes], object]) -> Figure:
    models = list(rows.model.unique())
    names = {model: read_name(model) for model in models}
    sizes = sorted({named.billions or 0 for named in names.values()})
    with plt.rc_context(STYLE):
        legend_rows = -(-len(models) // 3)
        figure, axes = _three_panels(2.5 + 0.17 * legend_rows, title, len(metrics))
        marks = []
        for i, model in enumerate(models):
            k = sizes.index(names[model].billions or 0) if len(sizes) > 1 else i
            look = {
                "color": OKABE_ITO[k % len(OKABE_ITO)],
                "marker": SHAPES[k % len(SHAPES)],
                "markersize": 3.5,
                "linewidth": 1,
                "linestyle": LINES[names[model].training],
            }
            marks.append(Line2D([], [], label=model.replace("$", r"\$"), **look))
            for ax, metric in zip(axes, metrics, strict=True):
                mine = rows[(rows.model == model) & (rows.metric == metric)].sort_values("x")
                ax.plot(mine.x.astype(float), mine.ratio.astype("Float64").to_numpy(float, na_value=np.nan), **look)
        for ax in axes:
            ax.set_ylim(0, 1.04)
            axis(ax)
        axes[0].set_ylabel("Ratio (ED + 1) / L")
        figure.legend(handles=marks, loc="outside lower center", ncols=min(3, len(models)), frameon=False, fontsize=7)
    return figure


def _size_axis(ax: Axes, ticks: list[float], label: str) -> None:
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlim(min(ticks, default=1) / 1.25, max(ticks, default=1) * 1.25)
    ax.set_xlabel(label)


def _datasets_of(frame: pd.DataFrame) -> list[str]:
    found = list(frame.dataset.unique())
    return sorted(found, key=lambda d: (PAPER_DATASETS.index(d) if d in PAPER_DATASETS else len(PAPER_DATASETS), d))


def _mark(dataset: str) -> tuple[str, str]:
    """Colour and shape of a dataset, the same in every figure."""
    known = (
        PAPER_DATASETS.index(dataset)
        if dataset in PAPER_DATASETS
        else len(PAPER_DATASETS) + sum(map(ord, dataset)) % (len(OKABE_ITO) - len(PAPER_DATASETS))
    )
    return OKABE_ITO[known], SHAPES[known]


def _dataset_marks(datasets: Iterable[str]) -> list[Line2D]:
    return [Line2D([], [], color=_mark(d)[0], marker=_mark(d)[1], markersize=4, linewidth=1, label=d) for d in datasets]


def _legend(figure: Figure, marks: list[Line2D]) -> None:
    figure.legend(handles=marks, loc="outside lower center", ncols=max(len(marks), 1), frameon=False)
