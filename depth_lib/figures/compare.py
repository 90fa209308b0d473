"""Comparisons over runs: ratios of effective depth by size, training, task and threshold; proxies; linear maps."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..effective_depth.rules import METRICS, as_array
from ..results.study import TRAINING, Study, by_paper, facts_of
from .grid import DOTS_PER_INCH, WIDTH, add_legend, save_drawn, short_name
from .marks import COLOURS, GREY, RED, STYLE

RATIO = "Ratio (ED + 1) / L"
_PALETTE = (*COLOURS, "#8c564b", "#9467bd", "#7fc97f", "#bcbd22", "#7f0000")
_SHAPES = "os^DvPX*phd"


def intervals_figure(intervals: pd.DataFrame) -> Figure | None:
    """ED ratio of every model × dataset × metric with its interval (at least 95 %) over prompts, a panel per metric.

    intervals: what `depths_with_intervals` returns. Hollow: no interval. A whisker to the panel's edge: a curve without
    an effective depth fits the prompts too, so that the interval is open. None if no run has an effective depth.
    """
    models = pd.Categorical(intervals.model, intervals.model.unique())
    title = "Ratio of effective depth, with intervals (at least 95 %) over prompts"
    return _ratio_figure(title, intervals, models, columns=1, whiskers=True)


def ratio_by_size_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does a larger model use a larger share of its depth? Ratio against size, with the mean of each size as a line.

    Size is billions of parameters where every model's params file says it, else the number of blocks.
    """
    sizes, unit = intervals.model.map(lambda model: facts_of(model).billions), "billions of parameters"
    if sizes.isna().any():
        sizes, unit = intervals.layers, "number of blocks"
    return _ratio_figure(f"Ratio of effective depth against {unit}", intervals, pd.Categorical(sizes))


def ratio_by_training_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does training change it? Ratio of models by the training that their params files name, the mean as a line."""
    training = intervals.model.map(lambda model: facts_of(model).training)
    known = [name for name in reversed(TRAINING) if name != "unknown" and name in set(training)]
    return _ratio_figure(
        "Ratio of effective depth by training", intervals, pd.Categorical(training.mask(training == "unknown"), known)
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
    panels = thresholds.assign(metric=thresholds.metric + " " + thresholds.dataset)
    return _ratio_figure(title, panels, pd.Categorical(thresholds.threshold), per="model", columns=2)


# Measures of each layer from one clean pass: name -> probe, key of its result, and the proxy computed from it.
PROXIES = {
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
    figure, axes = _figure("Cheap proxies against what a skip really does", len(PROXIES), columns=3)
    looks = _looks(study.models)
    for ax, (name, (probe, key, proxy)) in zip(axes, PROXIES.items(), strict=True):
        correlations = []
        for (dataset, model), result in study.of(probe).items():
            skips = study.get((dataset, model, "layer_effects"), {})
            if key in result and "all_kl" in skips:
                values = pd.DataFrame({"proxy": proxy(as_array(result[key])), "damage": as_array(skips["all_kl"])})
                ranks = values.rank(pct=True)
                correlations.append(ranks.corr().loc["proxy", "damage"])
                ax.plot(ranks.proxy, ranks.damage, ls="", markersize=3, alpha=0.7, **looks[model])
        summary = "rank correlation {:.2f} ({:.2f} to {:.2f})"
        ax.set_title(summary.format(*pd.Series(correlations, dtype=float).agg(["mean", "min", "max"])))
        ax.set_xlabel(f"Rank by {name}")
    figure.supylabel("Rank by effect of skipping")
    add_legend(figure)
    return figure if figure.legends else None


def linear_maps_figure(result: Mapping, source: str, target: str) -> Figure:
    """relative[m, l] of `linear_maps`, source layers upwards and target layers to the right.

    Layer 0 of a residual stream is the embeddings. A dot marks the source layer that predicts each target layer best,
    the line equal relative depth. Errors beyond 1, which predicting the mean hardly exceeds, share one colour.
    """
    relative = as_array(result["relative"])
    n_source, n_target = relative.shape
    # pyplot's, so that a notebook shows it; outside the style, since the first one starts the inline backend
    figure = plt.figure(figsize=(5, 3.7), layout="constrained", dpi=DOTS_PER_INCH)
    with plt.rc_context(STYLE):
        ax = figure.subplots()
        image = ax.imshow(relative, origin="lower", aspect="auto", vmin=0, vmax=1, interpolation="none")
        ax.plot([0, n_target - 1], [0, n_source - 1], ":", color="white")
        ax.plot(as_array(result["best"]), "o", color=RED, markeredgecolor="white", markersize=4)
        ax.set_xlabel(f"Layer of {target}", parse_math=False)  # a folder's name may hold dollar signs
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
        "Ratio of effective depth with its interval. A whisker to the panel's edge: open at this end, since a curve "
        "without an effective depth fits the prompts too. Hollow: no interval.",
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
    folder = study.folder / "figures" / "summary"
    return [
        path for name, row in COMPARISONS.items() for path in save_drawn(folder / name, row.draw, sources[row.reads])
    ]


def _looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """name -> label, colour and marker; the first 132 differ."""
    return {
        name: {"label": name, "color": _PALETTE[i % len(_PALETTE)], "marker": _SHAPES[i % len(_SHAPES)]}
        for i, name in enumerate(dict.fromkeys(names))
    }


def _figure(title: str, n_panels: int, columns: int) -> tuple[Figure, np.ndarray]:
    """A figure of the page's width, and its panels."""
    rows = math.ceil(n_panels / columns)
    figure = Figure(figsize=(WIDTH, 1.5 * rows + 1), layout="constrained", dpi=DOTS_PER_INCH)
    figure.suptitle(title)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in axes[n_panels:]:
        ax.remove()
    return figure, axes[:n_panels]


@plt.rc_context(STYLE)
def _ratio_figure(
    title: str, frame: pd.DataFrame, x: pd.Categorical, per: str = "dataset", columns: int = 3, whiskers: bool = False
) -> Figure | None:
    """Ratio over x, a panel per metric, with its mean at each x, or with whiskers each point's interval.

    per: "model" or "dataset", which have a look each. None if fewer than two x have a ratio, with whiskers none.
    """
    frame = frame.assign(x=x).astype({name: float for name in ("ratio", "ratio_low", "ratio_high") if name in frame})
    frame = frame.dropna(subset="x")
    if frame[frame.ratio.notna()].x.nunique() < 2 - whiskers:
        return None
    looks = _looks(sorted(frame.dataset, key=by_paper) if per == "dataset" else frame.model)
    figure, axes = _figure(title, frame.metric.nunique(), columns)
    for ax, (metric, rows) in zip(axes, frame.groupby("metric", sort=False), strict=True):
        for i, (name, look) in enumerate(looks.items()):
            draw = _points_and_intervals if whiskers else _points_and_means
            draw(ax, rows[rows[per] == name], (i + 0.5) / len(looks), look)
        if "threshold" in frame:
            threshold = x.categories.get_loc(METRICS[metric.split()[0]].threshold)
            ax.axvline(threshold, color=GREY, linestyle=":", label="the papers' threshold")
        ax.set(title=metric, xlim=(-0.5, len(x.categories) - 0.5), ylim=(0, 1.04))
        names = [short_name(value) if isinstance(value, str) else f"{value:g}" for value in x.categories]
        ax.set_xticks(range(len(names)), names)
        ax.tick_params("x", rotation=90 if whiskers else 0)
    figure.supylabel(RATIO)
    add_legend(figure)
    return figure


def _points_and_means(ax: Axes, rows: pd.DataFrame, share: float, look: Mapping) -> None:
    """The mean is broken where there is no ratio. share: 0 to 1, thinner and smaller, so that none hides another."""
    size, means = 2.6 - 1.8 * share, rows.groupby("x", observed=False).ratio.mean()
    ax.plot(range(len(means)), means, linewidth=size, markersize=2, **look)
    ax.plot(rows.x.cat.codes, rows.ratio, ls="", markersize=2 + size, **look)


def _points_and_intervals(ax: Axes, rows: pd.DataFrame, share: float, look: Mapping) -> None:
    """An open end is beyond the panel; a point without an interval is hollow. share: 0 to 1, from left to right."""
    rows = rows.assign(place=rows.x.cat.codes + 0.7 * (share - 0.5))
    known = rows[rows.ratio_low.notna() | rows.ratio_high.notna()]
    ax.vlines(known.place, known.ratio_low.fillna(-1), known.ratio_high.fillna(2), color=look["color"], linewidth=1)
    ax.plot(rows.place, rows.ratio, ls="", markersize=3.5, fillstyle="none", **look)
    ax.plot(known.place, known.ratio, ls="", markersize=3.5, **look)
