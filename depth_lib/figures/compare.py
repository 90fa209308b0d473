"""Comparisons over runs: ratios of effective depth by size, training, task and threshold; proxies; linear maps."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..effective_depth.rules import METRICS, as_array
from ..results.study import TABLE_PROBES, TRAINING, Study, by_paper, facts_of
from .grid import DOTS_PER_INCH, WIDTH, add_legend, save_drawn, short_name
from .kinds import KINDS
from .marks import COLOURS, GREY, LAYER, RED, STYLE

RATIO = "Ratio (ED + 1) / L"
_PALETTE = (*COLOURS, "#8c564b", "#9467bd", "#7fc97f", "#bcbd22", "#7f0000")
_SHAPES = "os^DvPX*phd"
_DASHES = ("-", (0, (5, 1)), (0, (1, 1)), (0, (5, 1, 1, 1)))


@plt.rc_context(STYLE)
def overview_figure(study: Study) -> Figure | None:
    """The three curves that the papers' rules read, each with its depth, a row per model and dataset."""
    rows = [(m, d) for m in study.models for d in study.datasets if all((d, m, p) in study for p in TABLE_PROBES)]
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 1.5 * len(rows) + 0.8), layout="constrained", dpi=DOTS_PER_INCH)
    grid = figure.subplots(len(rows), 3, squeeze=False)
    for axes, (model, dataset) in zip(grid, rows, strict=True):
        for ax, name in zip(axes, ("cosine", "lens_kl", "lens_overlap"), strict=True):
            kind = KINDS[name]
            result = study[dataset, model, kind.probe]
            (panel,) = kind.panels(result).values()
            kind.draw(ax, panel, result)
            ax.set_ylabel(kind.ylabel)
        axes[1].set_title(f"{short_name(model)}, {dataset}", parse_math=False)
    for ax in grid[-1]:
        ax.set_xlabel(LAYER)
    add_legend(figure)
    return figure


def intervals_figure(intervals: pd.DataFrame) -> Figure | None:
    """ED ratio of every model × dataset × metric with its 95 % confidence interval over prompts, a panel per metric.

    intervals: what `depths_with_intervals` returns. Hollow: no interval. A whisker to the panel's edge: the interval is
    open, since it includes curves without an effective depth. None if no run has an effective depth.
    """
    models = pd.Categorical(intervals.model, intervals.model.unique())
    title = "Ratio of effective depth, with 95 % confidence intervals over prompts"
    return _ratio_figure(title, intervals, models, columns=1, fewest=1)


def ratio_by_size_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does a larger model use a larger share of its depth? Ratio against size on a logarithmic axis.

    Size is billions of parameters where every model's params file says it, else the number of blocks.
    """
    sizes, unit = intervals.model.map(lambda model: facts_of(model).billions), "billions of parameters"
    if sizes.isna().any():
        sizes, unit = intervals.layers, "number of blocks"
    return _ratio_figure(f"Ratio of effective depth against {unit}", intervals, sizes.astype(float))


def ratio_by_training_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does training change it? Ratio of models by the training that their params files name."""
    training = intervals.model.map(lambda model: facts_of(model).training)
    known = [name for name in reversed(TRAINING) if name != "unknown" and name in set(training)]
    by_training = pd.Categorical(training.mask(training == "unknown"), known)
    return _ratio_figure("Ratio of effective depth by training", intervals, by_training)


def ratio_by_task_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does the task change it? Ratio on each dataset, a line per model."""
    datasets = pd.Categorical(intervals.dataset, sorted(intervals.dataset.unique(), key=by_paper))
    return _ratio_figure("Ratio of effective depth by task", intervals, datasets, per="model")


def thresholds_figure(thresholds: pd.DataFrame) -> Figure | None:
    """How the ratio depends on the threshold: over KL and overlap thresholds, a row per dataset, a line per model.

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
    figure, axes = _figure("Cheap proxies against the effect of skipping", len(PROXIES), columns=3)
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
    """A figure over runs: the function that draws it (None: nothing to compare), its source, and its caption.

    reads: its source, "intervals" or "thresholds" (frames of depths) or "study".
    """

    draw: Callable[..., Figure | None]
    caption: str
    reads: str = "intervals"


COMPARISONS = {
    "overview": Comparison(
        overview_figure,
        "The three curves that the effective depth is read from: cosine of updates with the residual stream, KL "
        "divergence and top-5 overlap of the logit lens with the output. Thin: each prompt. Marked: the depth.",
        reads="study",
    ),
    "ratio_intervals": Comparison(
        intervals_figure,
        "Ratio of effective depth with its 95 % confidence interval over prompts. A whisker to the panel's edge: the "
        "interval is open at this end, since it includes curves without an effective depth. Hollow: no interval.",
    ),
    "ratio_by_size": Comparison(
        ratio_by_size_figure,
        "Model size: does a larger model use a larger share of its depth? Lines: means of a size; whiskers: 95 % "
        "confidence intervals over prompts.",
    ),
    "ratio_by_training": Comparison(
        ratio_by_training_figure,
        "Training: base, instruct and R1-distilled models. Lines: means over models of all sizes.",
    ),
    "ratio_by_task": Comparison(ratio_by_task_figure, "Task: the ratio on each dataset, a line per model."),
    "thresholds": Comparison(thresholds_figure, "Ratio over thresholds; dotted: the papers' own.", reads="thresholds"),
    "proxies": Comparison(
        proxies_figure,
        "Each dot is a layer, placed by its rank among the layers of its run, as a share of their number: across, by "
        "a score from a pass without intervention (block influence: 1 minus the cosine of a block's input with its "
        "output); upwards, by the damage of skipping it for all tokens but the first: KL divergence of the output from "
        "that with the layer skipped, mean over tokens. In the titles Spearman's rank correlation, its mean over "
        "models and datasets and its range: 1 would be a proxy that ranks layers as skipping them does.",
        reads="study",
    ),
}


def save_comparisons(study: Study, intervals: pd.DataFrame, thresholds: pd.DataFrame) -> list[Path]:
    """Write each of `COMPARISONS` that the study allows to `folder/figures/summary/<name>.pdf` and `.png`."""
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
    title: str,
    frame: pd.DataFrame,
    x: pd.Categorical | pd.Series,
    per: str = "dataset",
    columns: int = 3,
    fewest: int = 2,
) -> Figure | None:
    """Ratio over x with its interval, a panel per metric; x are names side by side, or sizes on a logarithmic axis.

    per: "model" or "dataset", which have a look each; lines join the means of each, broken where there is none. An open
    end is beyond the panel, a point without an interval is hollow. None if fewer than `fewest` x have a
    ratio.
    """
    shares = [name for name in ("ratio", "ratio_low", "ratio_high") if name in frame]
    frame = frame.assign(x=x).astype(dict.fromkeys(shares, float)).dropna(subset="x")
    if frame[frame.ratio.notna()].x.nunique() < fewest:
        return None
    by_name = isinstance(x, pd.Categorical)
    names = x.categories if by_name else np.unique(frame.x)
    places = range(len(names)) if by_name else names
    looks = _looks(sorted(frame.dataset, key=by_paper) if per == "dataset" else frame.model)
    figure, axes = _figure(title, frame.metric.nunique(), columns)
    for ax, (metric, rows) in zip(axes, frame.groupby("metric", sort=False), strict=True):
        for i, (name, look) in enumerate(looks.items()):
            own, shift = rows[rows[per] == name], (i + 0.5) / len(looks) - 0.5
            beside = own.x.cat.codes + 0.5 * shift if by_name else own.x * 1.1**shift
            _points_with_intervals(ax, own.assign(place=beside), look)
            if fewest > 1:
                joined = own.groupby("x", observed=True).ratio.mean().reindex(names)
                ax.plot(places, joined, linewidth=0.8, color=look["color"], ls=_DASHES[i % len(_DASHES)])
        if "threshold" in frame:
            ax.axvline(names.get_loc(METRICS[metric.split()[0]].threshold), color=GREY, ls=":", label="papers")
        ax.set(title=metric, ylim=(0, 1.04))
        if not by_name:
            ax.set_xscale("log")
            ax.minorticks_off()
        labels = [textwrap.fill(short_name(name), 18) if isinstance(name, str) else f"{name:g}" for name in names]
        ax.set_xticks(places, labels)
        ax.tick_params("x", rotation=0 if fewest > 1 else 90)
    figure.supylabel(RATIO)
    add_legend(figure)
    return figure


def _points_with_intervals(ax: Axes, rows: pd.DataFrame, look: Mapping) -> None:
    known = rows.iloc[:0]
    if "ratio_low" in rows:
        known = rows[rows.ratio_low.notna() | rows.ratio_high.notna()]
        ax.vlines(known.place, known.ratio_low.fillna(-1), known.ratio_high.fillna(2), color=look["color"], linewidth=1)
    ax.plot(rows.place, rows.ratio, ls="", markersize=3.5, fillstyle="none", **look)
    ax.plot(known.place, known.ratio, ls="", markersize=3.5, **look)
