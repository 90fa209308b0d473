"""Comparisons over runs: ratios of effective depth by size, training, task and threshold; proxies; linear maps."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..effective_depth.rules import METRICS, PAPER_METRICS, as_array
from ..results.study import TRAINING, Study, by_paper, facts_of
from .grid import DOTS_PER_INCH, WIDTH, save, short_name
from .marks import COLOURS, GREY, RED, STYLE

RATIO = "Ratio (ED + 1) / L"
_PALETTE = (*COLOURS, "#8c564b", "#9467bd", "#7fc97f", "#bcbd22", "#7f0000")
_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h", "<", ">")


@plt.rc_context(STYLE)
def intervals_figure(intervals: pd.DataFrame) -> Figure | None:
    """ED ratio of every model × dataset × metric with its interval (at least 95 %) over prompts, a panel per metric.

    intervals: what `depths_with_intervals` returns. Hollow: no interval. An arrow: a curve without an effective depth
    fits the prompts too, so that the interval is open at this end.
    """
    if intervals.ratio.isna().all():
        return None
    models, looks = list(intervals.model.unique()), _dataset_looks(intervals)
    title = "Ratio of effective depth, with intervals (at least 95 %) over prompts"
    figure, axes = _figure(title, 1 + len(models) * max(0.25, 0.12 + 0.1 * len(looks)), PAPER_METRICS)
    for metric, ax in zip(PAPER_METRICS, axes[0], strict=True):
        ax.set(title=metric, xlabel=RATIO, xlim=(0, 1.04), ylim=(len(models) - 0.5, -0.5))
        ax.set_yticks(range(len(models)), map(short_name, models))
        ax.hlines(np.arange(len(models) - 1) + 0.5, 0, 1.04, color="#dddddd", linewidth=0.5)
        for row in intervals[intervals.metric == metric].itertuples():
            place = (list(looks).index(row.dataset) + 0.5) / len(looks) - 0.5
            _whisker(ax, row, models.index(row.model) + 0.72 * place, looks[row.dataset])
    _legend(figure, looks)
    return figure


def ratio_by_size_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does a larger model use a larger share of its depth? Ratio against size, with the mean of each size as a line.

    Size is billions of parameters where every model's params file says it, else the number of blocks.
    """
    billions = intervals.model.map(lambda model: facts_of(model).billions)
    known = billions.notna().all()
    sizes = billions if known else intervals.layers
    title = f"Ratio of effective depth against {'billions of parameters' if known else 'number of blocks'}"
    return _ratio_figure(title, intervals, sizes.map("{:g}".format), [f"{size:g}" for size in sorted(set(sizes))])


def ratio_by_training_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does training change it? Ratio of models by the training that their params files name, the mean as a line."""
    training = intervals.model.map(lambda model: facts_of(model).training)
    known = training != "unknown"
    order = [name for name in reversed(TRAINING) if name in set(training[known])]
    return _ratio_figure("Ratio of effective depth by training", intervals[known], training[known], order)


def ratio_by_task_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does the task change it? Ratio on each dataset, a line per model."""
    return _ratio_figure(
        "Ratio of effective depth by task", intervals, intervals.dataset, list(_dataset_looks(intervals)), per="model"
    )


@plt.rc_context(STYLE)
def thresholds_figure(thresholds: pd.DataFrame) -> Figure | None:
    """How much hangs on the threshold: ratio over KL and overlap thresholds, a row per dataset, a line per model.

    thresholds: what `depths_by_threshold` returns. The dotted line is the papers' threshold.
    """
    if thresholds.empty:
        return None
    datasets, looks = list(_dataset_looks(thresholds)), _looks(thresholds.model)
    labels = {"kl": "KL threshold (share of the maximum)", "overlap": "Overlap threshold"}
    figure, axes = _figure("Ratio of effective depth over the threshold", 0.9 + 1.5 * len(datasets), labels, datasets)
    for (dataset, metric), ax in zip(itertools.product(datasets, labels), axes.flat, strict=True):
        rows = thresholds[(thresholds.dataset == dataset) & (thresholds.metric == metric)]
        _lines(ax, rows, rows.threshold, "model", looks)
        ax.axvline(METRICS[metric].threshold, color=GREY, linestyle=":")
        ax.set(title=dataset)
    for ax, label in zip(axes[-1], labels.values(), strict=True):
        ax.set_xlabel(label)
    figure.supylabel(RATIO)
    _legend(figure, looks | {"the papers' threshold": {"color": GREY, "ls": ":"}})
    return figure


# What one clean pass tells of each layer: its name, the probe, its key, and the proxy made of that.
PROXIES: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "block influence": ("relative_contribution", "io_cos", lambda curve: 1 - curve),
    "relative contribution": ("relative_contribution", "rc_layer", lambda curve: curve),
    "fall of the lens' KL divergence": ("logit_lens", "res_kl_divs", lambda curve: -np.diff(curve, append=0)),
}


@plt.rc_context(STYLE)
def proxies_figure(study: Study) -> Figure | None:
    """Every proxy of `PROXIES` against what skipping a layer does to the output, a panel per proxy, a dot per layer.

    That is the mean damage, or where a result lacks it the largest change. Both are shown as ranks among the layers of
    the run, from 0 (least) to 1. Titles have Spearman's rank correlation over the layers of a model × dataset: mean,
    lowest and highest. None where there is nothing to compare.
    """
    models, datasets = _looks(study.models), _looks(sorted(study.datasets, key=by_paper))
    figure, axes = _figure("Cheap proxies against what a skip really does", 2.9, PROXIES)
    drawn: set[str] = set()
    for ax, (name, (probe, key, proxy)) in zip(axes[0], PROXIES.items(), strict=True):
        correlations = []
        for (dataset, model), result in study.of(probe).items():
            skips = study.get((dataset, model, "layer_effects"), {})
            damage = skips.get("all_kl", skips.get("max_all_out"))
            if damage is None or key not in result:
                continue
            ranks = pd.DataFrame({"x": proxy(as_array(result[key])), "y": as_array(damage).ravel()}).rank()
            with np.errstate(all="ignore"):  # a constant has no rank correlation: nan
                correlations.append(ranks.x.corr(ranks.y))
            shares = (ranks - 1) / max(len(ranks) - 1, 1)
            look = models[model] | {"marker": datasets[dataset]["marker"], "markersize": 3}
            ax.plot(shares.x, shares.y, ls="", alpha=0.7, **look)
            drawn |= {dataset, model}
        ax.set(xlabel=f"Rank by {name}", title=_correlation_title(correlations))
    axes[0, 0].set_ylabel("Rank by effect of skipping")
    looks = {model: look | {"marker": "o"} for model, look in models.items()}
    looks |= {dataset: look | {"color": GREY} for dataset, look in datasets.items()}
    _legend(figure, {name: look for name, look in looks.items() if name in drawn})
    return figure if drawn else None


def linear_maps_figure(result: Mapping, source: str, target: str) -> Figure:
    """relative[m, l] of `linear_maps`, source layers upwards and target layers to the right.

    Layer 0 of a residual stream is the embeddings. A dot marks the source layer that predicts each target layer best,
    the line equal relative depth. Errors beyond 1, which predicting the mean hardly exceeds, share one colour.
    """
    relative, best = as_array(result["relative"]), as_array(result["best"])
    n_source, n_target = relative.shape
    # pyplot's, so that a notebook shows it; outside the style, since the first one starts the inline backend
    figure = plt.figure(figsize=(5, 3.7), layout="constrained", dpi=DOTS_PER_INCH)
    with plt.rc_context(STYLE):
        ax = figure.subplots()
        image = ax.imshow(relative, origin="lower", aspect="auto", vmin=0, vmax=1, interpolation="none")
        ax.plot([0, n_target - 1], [0, n_source - 1], ":", color="white", linewidth=1)
        ax.plot(np.arange(n_target), best, "o", color=RED, markeredgecolor="white", markersize=4)
        ax.set_xlabel(f"Layer of {target}", parse_math=False)
        ax.set_ylabel(f"Layer of {source}", parse_math=False)
        ax.locator_params(integer=True)
        figure.colorbar(image, extend="max" if relative.max() > 1 else "neither", label="Relative error")
    return figure


@dataclass(frozen=True)
class Comparison:
    """A figure over runs: how it is drawn (None: there is nothing to compare), from what, and the text under it.

    reads: "intervals" or "thresholds", the frames of these depths, or "study".
    """

    draw: Callable[..., Figure | None]
    caption: str
    reads: str = "intervals"


COMPARISONS = {
    "ratio_intervals": Comparison(
        intervals_figure,
        "Ratio of effective depth with its interval. Arrow: open at this end, since a curve without an effective depth "
        "fits the prompts too. Hollow: no interval.",
    ),
    "ratio_by_size": Comparison(
        ratio_by_size_figure,
        "Model size: does a larger model use a larger share of its depth? Lines: means of a size, broken where no "
        "model of that size has an effective depth.",
    ),
    "ratio_by_training": Comparison(
        ratio_by_training_figure,
        "Training: base, instruct and R1-distilled models. Lines: means over models, whatever their size.",
    ),
    "ratio_by_task": Comparison(ratio_by_task_figure, "Task: the ratio on each dataset, a line per model."),
    "thresholds": Comparison(thresholds_figure, "Ratio over thresholds; dotted: the papers' own.", reads="thresholds"),
    "proxies": Comparison(
        proxies_figure,
        "Each dot is a layer, placed by its rank among the layers of its run: across, by what a pass without "
        "intervention says of it (block influence: 1 less the cosine of what enters with what leaves); upwards, by "
        "what skipping it for all tokens but the first does: KL divergence of the output from that with the layer "
        "skipped, mean over tokens; or, where a result lacks that, the largest change of the output over tokens. In "
        "the titles Spearman's rank correlation, its mean over models and datasets and its range: 1 would be a proxy "
        "that ranks layers as skipping them does.",
        reads="study",
    ),
}


def save_comparisons(study: Study, intervals: pd.DataFrame, thresholds: pd.DataFrame) -> list[Path]:
    """Write what `COMPARISONS` has, and what there is to compare, to `folder/figures/summary/<name>.pdf` and `.png`."""
    sources = {"study": study, "intervals": intervals, "thresholds": thresholds}
    written = []
    for name, row in COMPARISONS.items():
        written += save(row.draw(sources[row.reads]), study.folder / "figures" / "summary" / name)
    return written


def _looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """name -> colour and marker; the first 144 differ."""
    n = len(_PALETTE)
    return {
        name: {"color": _PALETTE[i % n], "marker": _SHAPES[(i + i // n) % n]}
        for i, name in enumerate(dict.fromkeys(names))
    }


def _dataset_looks(frame: pd.DataFrame) -> dict[str, dict[str, str]]:
    return _looks(sorted(frame.dataset.unique(), key=by_paper))


def _figure(title: str, height: float, columns: Sequence, rows: Sequence = ("",)) -> tuple[Figure, np.ndarray]:
    """A figure of the page's width with a panel per row and column."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained", dpi=DOTS_PER_INCH)
    figure.suptitle(title)
    return figure, figure.subplots(len(rows), len(columns), sharex="col", sharey=True, squeeze=False)


@plt.rc_context(STYLE)
def _ratio_figure(
    title: str, intervals: pd.DataFrame, categories: pd.Series, order: Sequence[str], per: str = "dataset"
) -> Figure | None:
    """Ratio by category, a panel per metric and a line per model or dataset; None if only one category has a ratio."""
    if categories[intervals.ratio.notna()].nunique() < 2:
        return None
    looks = _dataset_looks(intervals) if per == "dataset" else _looks(intervals.model)
    figure, axes = _figure(title, 2.4 + 0.15 * -(-len(looks) // 3), PAPER_METRICS)
    for metric, ax in zip(PAPER_METRICS, axes[0], strict=True):
        rows = intervals[intervals.metric == metric]
        _lines(ax, rows, categories[rows.index].map(list(order).index), per, looks)
        ax.set(title=metric, xlim=(-0.4, len(order) - 0.6))
        ax.set_xticks(range(len(order)), order)
    axes[0, 0].set_ylabel(RATIO)
    _legend(figure, looks)
    return figure


def _lines(ax: Axes, rows: pd.DataFrame, x: pd.Series, per: str, looks: Mapping[str, Mapping]) -> None:
    """Points, and the mean at each x as a line that is broken where there is no ratio, for each model or dataset.

    Each is drawn thinner and smaller than the one before it, so that none hides another.
    """
    rows, places = rows.astype({"ratio": float}).assign(x=x), sorted(set(x))
    for i, (name, look) in enumerate(looks.items()):
        mine, size = rows[rows[per] == name], 2.6 - 1.8 * i / len(looks)
        ax.plot(mine.x, mine.ratio, ls="", markersize=2 + size, **look)
        ax.plot(mine.groupby("x").ratio.mean().reindex(places), linewidth=size, markersize=2, **look)
    ax.set_ylim(0, 1.04)


def _whisker(ax: Axes, row: tuple, y: float, look: Mapping[str, str]) -> None:
    """A model's ratio as a point, its interval as a line with an arrow at each open end."""
    has_interval = not (pd.isna(row.low) and pd.isna(row.high))
    if has_interval:
        ends = [(0.0, "<") if pd.isna(row.low) else (row.ratio_low, "|")]
        ends += [(1.0, ">") if pd.isna(row.high) else (row.ratio_high, "|")]
        ax.plot([x for x, _ in ends], [y, y], color=look["color"], linewidth=1)
        for x, marker in ends:
            ax.plot(x, y, marker, color=look["color"], markersize=4, clip_on=False)
    if pd.notna(row.ratio):
        ax.plot(row.ratio, y, markersize=3.5, fillstyle="full" if has_interval else "none", **look)


def _legend(figure: Figure, looks: Mapping[str, Mapping]) -> None:
    """A legend of these names with their colours and markers."""
    handles = [Line2D([], [], label=short_name(name), **{"ls": "", **look}) for name, look in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


def _correlation_title(correlations: Sequence[float]) -> str:
    known = pd.Series(correlations, dtype=float).dropna()
    if known.empty:
        return "no rank correlation"
    spread = f" ({known.min():.2f} to {known.max():.2f})" if len(known) > 1 else ""
    return f"rank correlation {known.mean():.2f}{spread}"
