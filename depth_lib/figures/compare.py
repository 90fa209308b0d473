"""Comparisons over runs: ratios of effective depth by size, training, task and threshold; proxies; linear maps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..effective_depth.rules import METRICS, PAPER_METRICS, as_array
from ..results.study import TRAINING, Study, by_paper, facts_of
from .grid import DOTS_PER_INCH, WIDTH, add_legend, save, short_name
from .marks import COLOURS, GREY, RED, STYLE

RATIO = "Ratio (ED + 1) / L"
_PALETTE = (*COLOURS, "#8c564b", "#9467bd", "#7fc97f", "#bcbd22", "#7f0000")
_SHAPES = "os^DvPX*phd"


@plt.rc_context(STYLE)
def intervals_figure(intervals: pd.DataFrame) -> Figure | None:
    """ED ratio of every model × dataset × metric with its interval (at least 95 %) over prompts, a panel per metric.

    intervals: what `depths_with_intervals` returns. Hollow: no interval. An arrow: a curve without an effective depth
    fits the prompts too, so that the interval is open at this end. None if no run has an effective depth.
    """
    if intervals.ratio.isna().all():
        return None
    intervals = intervals.astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float))
    models, looks = list(intervals.model.unique()), _looks(sorted(intervals.dataset, key=by_paper))
    title = "Ratio of effective depth, with intervals (at least 95 %) over prompts"
    figure, axes = _figure(title, 1 + len(models) * max(0.25, 0.12 + 0.1 * len(looks)), PAPER_METRICS)
    offsets = np.linspace(-0.36, 0.36, 2 * len(looks) + 1)[1::2]
    for metric, ax in zip(PAPER_METRICS, axes[0], strict=True):
        ax.set(title=metric, xlabel=RATIO, xlim=(0, 1.04), ylim=(len(models) - 0.5, -0.5))
        ax.set_yticks(range(len(models)), map(short_name, models))
        ax.hlines(np.arange(len(models) - 1) + 0.5, 0, 1.04, color="#dddddd", linewidth=0.5)
        for (dataset, look), offset in zip(looks.items(), offsets, strict=True):
            rows = intervals[(intervals.metric == metric) & (intervals.dataset == dataset)]
            rows = rows.assign(y=[models.index(model) + offset for model in rows.model])
            known = rows.dropna(subset=["ratio_low", "ratio_high"], how="all")
            ax.hlines(known.y, known.ratio_low.fillna(0), known.ratio_high.fillna(1), color=look["color"], linewidth=1)
            for end, edge, arrow in ((known.ratio_low, 0, "<"), (known.ratio_high, 1, ">")):
                for y in known.y[end.isna()]:
                    ax.plot(edge, y, arrow, color=look["color"], markersize=4, clip_on=False)
            ax.plot(rows.ratio, rows.y, ls="", markersize=3.5, fillstyle="none", **look)
            ax.plot(known.ratio, known.y, ls="", markersize=3.5, label=dataset, **look)
    add_legend(figure, axes.flat)
    return figure


def ratio_by_size_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does a larger model use a larger share of its depth? Ratio against size, with the mean of each size as a line.

    Size is billions of parameters where every model's params file says it, else the number of blocks.
    """
    billions = intervals.model.map(lambda model: facts_of(model).billions)
    known = billions.notna().all()
    sizes = [f"{size:g}" for size in (billions if known else intervals.layers)]
    title = f"Ratio of effective depth against {'billions of parameters' if known else 'number of blocks'}"
    return _ratio_figure(title, intervals, pd.Categorical(sizes, sorted(set(sizes), key=float)))


def ratio_by_training_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does training change it? Ratio of models by the training that their params files name, the mean as a line."""
    training = intervals.model.map(lambda model: facts_of(model).training)
    known = training[training != "unknown"]
    order = [name for name in reversed(TRAINING) if name in set(known)]
    return _ratio_figure(
        "Ratio of effective depth by training", intervals.loc[known.index], pd.Categorical(known, order)
    )


def ratio_by_task_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does the task change it? Ratio on each dataset, a line per model."""
    datasets = pd.Categorical(intervals.dataset, sorted(intervals.dataset.unique(), key=by_paper))
    return _ratio_figure("Ratio of effective depth by task", intervals, datasets, per="model")


def thresholds_figure(thresholds: pd.DataFrame) -> Figure | None:
    """How much hangs on the threshold: ratio over KL and overlap thresholds, a row per dataset, a line per model.

    thresholds: what `depths_by_threshold` returns. The dotted line is the papers' threshold.
    """
    if thresholds.empty:
        return None
    title = "Ratio of effective depth over the threshold (kl: share of the maximum)"
    datasets = sorted(thresholds.dataset.unique(), key=by_paper)
    return _ratio_figure(title, thresholds, pd.Categorical(thresholds.threshold), "model", datasets)


# Measures of each layer from one clean pass: name -> probe, key of its result, and the proxy computed from it.
PROXIES: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "block influence": ("relative_contribution", "io_cos", lambda curve: 1 - curve),
    "relative contribution": ("relative_contribution", "rc_layer", lambda curve: curve),
    "fall of the lens' KL divergence": ("logit_lens", METRICS["kl"].keys[0], lambda curve: -np.diff(curve, append=0)),
}


@plt.rc_context(STYLE)
def proxies_figure(study: Study) -> Figure | None:
    """Every proxy of `PROXIES` against the mean damage of skipping a layer, a panel per proxy, a dot per layer.

    Both are shown as ranks among the layers of the run, as a share of their number. Titles have Spearman's rank
    correlation over the layers of a model × dataset: mean, lowest and highest. None if no run has both results.
    """
    figure, axes = _figure("Cheap proxies against what a skip really does", 2.9, PROXIES)
    looks = _looks(study.models)
    for ax, (name, (probe, key, proxy)) in zip(axes[0], PROXIES.items(), strict=True):
        correlations = []
        for (dataset, model), result in study.of(probe).items():
            skips = study.get((dataset, model, "layer_effects"), {})
            if key in result and "all_kl" in skips:
                values = pd.DataFrame({"proxy": proxy(as_array(result[key])), "damage": as_array(skips["all_kl"])})
                ranks = values.rank(pct=True)
                correlations.append(ranks.corr().loc["proxy", "damage"])
                ax.plot(*ranks.to_numpy().T, ls="", markersize=3, alpha=0.7, label=model, **looks[model])
        summary = "rank correlation {:.2f} ({:.2f} to {:.2f})"
        ax.set_title(summary.format(*pd.Series(correlations, dtype=float).agg(["mean", "min", "max"])))
        ax.set_xlabel(f"Rank by {name}")
    axes[0, 0].set_ylabel("Rank by effect of skipping")
    add_legend(figure, axes.flat)
    return figure if figure.legends else None


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
        "Each dot is a layer, placed by its rank among the layers of its run, as a share of their number: across, by "
        "what a pass without intervention says of it (block influence: 1 less the cosine of what enters with what "
        "leaves); upwards, by the damage of skipping it for all tokens but the first: KL divergence of the output from "
        "that with the layer skipped, mean over tokens. In the titles Spearman's rank correlation, its mean over "
        "models and datasets and its range: 1 would be a proxy that ranks layers as skipping them does.",
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
    """name -> colour and marker; the first 132 differ."""
    return {
        name: {"color": _PALETTE[i % len(_PALETTE)], "marker": _SHAPES[i % len(_SHAPES)]}
        for i, name in enumerate(dict.fromkeys(names))
    }


def _figure(title: str, height: float, columns: Sequence, rows: Sequence = ("",)) -> tuple[Figure, np.ndarray]:
    """A figure of the page's width with a panel per row and column."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained", dpi=DOTS_PER_INCH)
    figure.suptitle(title)
    return figure, figure.subplots(len(rows), len(columns), sharex="col", sharey=True, squeeze=False)


@plt.rc_context(STYLE)
def _ratio_figure(
    title: str, frame: pd.DataFrame, x: pd.Categorical, per: str = "dataset", datasets: Sequence[str] = ("",)
) -> Figure | None:
    """Ratio over x: a panel per metric, and per dataset if they are given; a look per model or dataset.

    Points, and the mean at each x as a line, broken where there is no ratio; each thinner and smaller than the one
    before it, so that none hides another. None if only one x has a ratio.
    """
    frame, metrics = frame.assign(x=x, ratio=frame.ratio.astype(float)), sorted(frame.metric.unique())
    if frame[frame.ratio.notna()].x.nunique() < 2:
        return None
    looks = _looks(sorted(frame.dataset, key=by_paper) if per == "dataset" else frame.model)
    height = 0.9 + 1.5 * len(datasets) + 0.15 * -(-len(looks) // 3)
    figure, axes = _figure(title, height, metrics, datasets)
    for (dataset, metric), ax in zip(product(datasets, metrics), axes.flat, strict=True):
        rows = frame[(frame.metric == metric) & frame.dataset.isin([dataset] if dataset else frame.dataset)]
        for i, (name, look) in enumerate(looks.items()):
            own, size = rows[rows[per] == name], 2.6 - 1.8 * i / len(looks)
            means = own.groupby("x", observed=False).ratio.mean()
            ax.plot(own.x.cat.codes, own.ratio, ls="", markersize=2 + size, label=name, **look)
            ax.plot(range(len(means)), means, linewidth=size, markersize=2, **look)
        if dataset:
            threshold = x.categories.get_loc(METRICS[metric].threshold)
            ax.axvline(threshold, color=GREY, linestyle=":", label="the papers' threshold")
        ax.set(title=f"{metric} {dataset}", xlim=(-0.4, len(x.categories) - 0.6), ylim=(0, 1.04))
        ax.set_xticks(range(len(x.categories)), x.categories)
    figure.supylabel(RATIO)
    add_legend(figure, axes.flat)
    return figure
