"""What the effective depths say: ratios with their intervals, the paper's three questions, and the thresholds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..effective_depth.published import published_depths
from ..effective_depth.rules import METRICS, PAPER_METRICS
from ..results.study import TRAINING, Study, read_name
from .grids import save
from .layout import STYLE
from .proxies import can_compare, proxies_figure
from .ratio_panels import (
    GREY,
    dataset_marks,
    datasets_of,
    legend,
    lines_of_models,
    mark_of,
    points_by_dataset,
    size_axis,
    sizes,
    three_panels,
)


def intervals_figure(stability: pd.DataFrame) -> Figure:
    """ED ratio of every model × dataset × metric with its 95 % interval over prompts, a panel a metric.

    stability: what `depths_with_intervals` returns. Hollow: no interval. An arrow: a curve without an effective
    depth fits the prompts too.
    """
    models, datasets = list(stability.model.unique()), datasets_of(stability)
    with plt.rc_context(STYLE):
        height = max(1.9, 0.9 + len(models) * (0.12 + 0.1 * len(datasets)))
        figure, axes = three_panels(height, "Ratio of effective depth, with intervals (at least 95 %) over prompts")
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
        marks = dataset_marks(datasets)
        if (stability.low.isna() & stability.high.isna() & stability.ratio.notna()).any():
            hollow = {"color": GREY, "marker": "o", "markerfacecolor": "white", "markersize": 4, "linestyle": "none"}
            marks.append(Line2D([], [], label="no interval", **hollow))
        legend(figure, marks)
    return figure


def _whisker(ax: Axes, row: tuple, y: float) -> None:
    colour, shape = mark_of(row.dataset)
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
    frame = stability.assign(size=sizes(stability))
    by_parameters = stability.model.map(lambda m: read_name(m).billions).notna().all()
    published = published_depths().assign(size=lambda table: table.model.map(lambda m: read_name(m).billions))
    with plt.rc_context(STYLE):
        figure, axes = three_panels(2.7, "Ratio of effective depth against model size")
        for ax, metric in zip(axes, PAPER_METRICS, strict=True):
            if by_parameters:
                means = published[published.metric == metric].groupby("size").ratio.mean()
                ax.plot(means.index, means, color=GREY, linewidth=1, linestyle="--", zorder=1)
            points_by_dataset(ax, frame[frame.metric == metric], "size")
            ticks = sorted({*frame["size"], *(published["size"] if by_parameters else ())})
            size_axis(ax, ticks, "Parameters (billions)" if by_parameters else "Blocks")
        marks = dataset_marks(datasets_of(frame))
        paper = Line2D([], [], color=GREY, linestyle="--", label="published, mean")
        legend(figure, [*marks, paper] if by_parameters else marks)
    return figure


def ratio_by_training_figure(stability: pd.DataFrame) -> Figure:
    """Does training change it? Ratio of base, instruct, R1-distilled models, those of one size and dataset joined."""
    order = TRAINING[::-1]
    frame = stability.assign(x=stability.model.map(lambda m: order.index(read_name(m).training)))
    frame["billions"] = frame.model.map(lambda m: read_name(m).billions)
    with plt.rc_context(STYLE):
        figure, axes = three_panels(2.7, "Ratio of effective depth by training")
        for ax, metric in zip(axes, PAPER_METRICS, strict=True):
            rows = frame[frame.metric == metric]
            for _, joined in rows.dropna(subset=["billions"]).groupby(["billions", "dataset"]):
                means = joined.astype({"ratio": float}).groupby("x").ratio.mean().reindex(range(len(order)))
                ax.plot(means.index, means, color="#bbbbbb", linewidth=0.6, zorder=1)
            points_by_dataset(ax, rows, "x", mean=False)
            ax.set_xlim(-0.4, len(order) - 0.6)
            ax.set_xticks(range(len(order)), order)
        legend(figure, dataset_marks(datasets_of(frame), linewidth=0))
    return figure


def ratio_by_task_figure(stability: pd.DataFrame) -> Figure:
    """Does a harder task use more of it? Ratio on each dataset, easy to hard, a line a model."""
    datasets = datasets_of(stability)
    rows = stability.assign(x=stability.dataset.map(datasets.index))

    def axis(ax: Axes) -> None:
        ax.set_xlim(-0.3, len(datasets) - 0.7)
        ax.set_xticks(range(len(datasets)), datasets)

    return lines_of_models(rows, "Ratio of effective depth by task", list(PAPER_METRICS), axis)


def thresholds_figure(sweep: pd.DataFrame, dataset: str) -> Figure:
    """How much hangs on the threshold: ratio over KL and overlap thresholds on one dataset, a line a model.

    sweep: what `depths_by_threshold` returns. The dotted line is the papers' threshold.
    """
    rows = sweep[sweep.dataset == dataset].assign(x=lambda table: table.threshold)

    def axis(ax: Axes) -> None:
        ticks = METRICS[ax.get_title()].thresholds
        ax.set(xlim=(ticks[0] - 0.05, ticks[-1] + 0.05), xticks=ticks)
        ax.axvline(
            METRICS[ax.get_title()].threshold, color=GREY, linestyle=":", linewidth=1, label="the papers' threshold"
        )
        ax.set_xlabel("Threshold" + (" (share of the maximum)" if ax.get_title() == "kl" else " (overlap)"))

    return lines_of_models(rows, f"Ratio of effective depth over the threshold, {dataset}", ["kl", "overlap"], axis)


@dataclass(frozen=True)
class Summary:
    """A figure of all effective depths: how it is drawn, what is written under it, and what it compares, if anything.

    compares: the values of which there must be two, of one model each; a single category is no comparison.
    """

    draw: Callable[[pd.DataFrame], Figure]
    caption: str
    compares: Callable[[pd.DataFrame], pd.Series] | None = None


SUMMARIES = {
    "ratio_intervals": Summary(
        intervals_figure,
        "Ratio of effective depth with its interval. Arrow: a curve without an effective depth fits the prompts too. "
        "Hollow: no interval.",
    ),
    "ratio_by_size": Summary(
        ratio_by_size_figure,
        "Model size: does a larger model use a larger share of its depth? Lines: means of a size, broken where no "
        "model of that size has an effective depth.",
        sizes,
    ),
    "ratio_by_training": Summary(
        ratio_by_training_figure,
        "Training: base, instruct and R1-distilled models. Grey lines join models of one size on one dataset.",
        lambda stability: stability.model.map(lambda model: read_name(model).training),
    ),
    "ratio_by_task": Summary(
        ratio_by_task_figure, "Task: from easy to hard, a line a model.", lambda stability: stability.dataset
    ),
}


def save_summary_figures(study: Study, stability: pd.DataFrame, sweep: pd.DataFrame) -> list[Path]:
    """Write what `SUMMARIES` has to `folder/figures/summary/<name>.pdf` and `.png`, the thresholds of each dataset, and
    cheap proxies against real skips.

    A figure that compares is left out where there is one thing to compare only.
    """
    place, written, found = study.folder / "figures" / "summary", [], stability[stability.ratio.notna()]
    for name, summary in SUMMARIES.items():
        drawn = len(found) and (summary.compares is None or summary.compares(found).nunique() > 1)
        written += save(summary.draw(stability) if drawn else None, place / name)
    for dataset in datasets_of(sweep):
        written += save(thresholds_figure(sweep, dataset), place / f"thresholds_{dataset}")
    return written + save(proxies_figure(study) if can_compare(study) else None, place / "proxies")
