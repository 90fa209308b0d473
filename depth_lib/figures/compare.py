"""Comparisons over runs: ratios of effective depth by size, training, task and threshold; proxies; linear maps."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..effective_depth.across import sizes_of, trainings_of
from ..effective_depth.rules import METRICS, as_array
from ..results.study import TABLE_PROBES, Study, by_paper
from .grid import DOTS_PER_INCH, WIDTH, add_legend, cells_of, draw_cells, save_drawn, short_name
from .kinds import KINDS
from .marks import COLOURS, GREY, RED, STYLE

IN_OVERVIEW = ("cosine", "lens_kl", "lens_overlap")  # the kinds that the papers' rules read
RATIO = "Ratio (ED + 1) / L"
_PALETTE = (*COLOURS, "#8c564b", "#9467bd", "#7fc97f", "#bcbd22", "#7f0000")
_SHAPES = "os^DvPX*phd"
_DASHES = ("-", (0, (5, 1)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def overview_figure(study: Study) -> Figure | None:
    """The three curves that the papers' rules read, each with its depth: one panel per model, its datasets together.

    Three panels to a row for up to nine models, six for more.
    """
    drawn = [model for model in study.models if any(_has_three(study, dataset, model) for dataset in study.datasets)]
    cells = []
    for model in drawn:
        datasets = [dataset for dataset in study.datasets if _has_three(study, dataset, model)]
        for name in IN_OVERVIEW:
            kind = KINDS[name]
            results = {dataset: study[dataset, model, kind.probe] for dataset in datasets}
            (cell,) = cells_of(kind, results)[0]
            cells.append(replace(cell, title=f"{short_name(model)}: {kind.ylabel}"))
    if not drawn:
        return None
    across = 3 if len(drawn) <= 9 else 6
    title = "The three curves of each model, and their effective depths"
    return draw_cells(Figure(dpi=DOTS_PER_INCH), cells, across, title)


def _has_three(study: Study, dataset: str, model: str) -> bool:
    return all((dataset, model, probe) in study for probe in TABLE_PROBES)


def intervals_figure(intervals: pd.DataFrame) -> Figure | None:
    """ED ratio of every model × dataset × metric with its 95 % confidence interval over prompts, a panel per metric.

    intervals: rows of `depths`. Hollow: no interval. A whisker to the panel's edge: the interval is
    open, since it includes curves without an effective depth. None if no run has an effective depth.
    """
    title = "Ratio of effective depth, with 95 % confidence intervals over prompts"
    places = _side_by_side(intervals.model.unique())
    return _ratio_figure(title, intervals, intervals.model, places, columns=1, lines=False)


def ratio_by_size_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does a larger model use a larger share of its depth? Ratio against size on a logarithmic axis."""
    sizes, unit = sizes_of(intervals)
    places = {size: math.log2(size) for size in sorted(sizes.unique())}
    return _ratio_figure(f"Ratio of effective depth against size in {unit}", intervals, sizes, places)


def ratio_by_training_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does training change it? Ratio of models by the training that their params files name."""
    training, known = trainings_of(intervals.model)
    return _ratio_figure("Ratio of effective depth by training", intervals, training, _side_by_side(known))


def ratio_by_task_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does the task change it? Ratio on each dataset, a line per model."""
    places = _side_by_side(sorted(intervals.dataset.unique(), key=by_paper))
    return _ratio_figure("Ratio of effective depth by task", intervals, intervals.dataset, places, per="model")


def thresholds_figure(thresholds: pd.DataFrame) -> Figure | None:
    """How the ratio depends on the threshold: over KL and overlap thresholds, a row per dataset, a line per model.

    thresholds: what `depths_by_threshold` returns. The dotted line is the papers' threshold.
    """
    if thresholds.empty:
        return None
    title = "Ratio of effective depth over the threshold (kl: share of the maximum)"
    panels = thresholds.assign(metric=thresholds.metric + " " + thresholds.dataset, ratio_low=None, ratio_high=None)
    places = _side_by_side(sorted(thresholds.threshold.unique()))
    return _ratio_figure(title, panels, thresholds.threshold, places, per="model", columns=2)


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
    figure, axes = _figure(len(PROXIES), columns=3, sharex=True, sharey=True)
    figure.suptitle("Cheap proxies against the effect of skipping")
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
        "divergence and top-5 overlap of the logit lens with the output. Thin: each prompt, in the first panel of "
        "attention and MLP together. Effective depth: coloured bar (first panel: dotted line); of several datasets in "
        "one panel, a dotted line in the colour of each.",
        reads="study",
    ),
    "ratio_intervals": Comparison(
        intervals_figure,
        "Ratio of effective depth with its 95 % confidence interval over prompts. A whisker to the panel's edge: the "
        "interval is open at this end, since it includes curves without an effective depth. Hollow: no interval.",
    ),
    "ratio_by_size": Comparison(
        ratio_by_size_figure,
        "Model size: does a larger model use a larger share of its depth? Lines: means of a size, broken where it "
        "has no effective depth; whiskers: 95 % confidence intervals over prompts.",
    ),
    "ratio_by_training": Comparison(
        ratio_by_training_figure,
        "Training: base, instruct and R1-distilled models. Lines: means over models of all sizes.",
    ),
    "ratio_by_task": Comparison(ratio_by_task_figure, "Task: the ratio on each dataset, a line per model."),
    "thresholds": Comparison(
        thresholds_figure, "Ratio over thresholds; upright: the papers' own. No intervals.", reads="thresholds"
    ),
    "proxies": Comparison(
        proxies_figure,
        "Each dot is a layer, placed by its rank among the layers of its run, as a share of their number: across, by "
        "a score from a pass without intervention (block influence: 1 minus the cosine of a block's input with its "
        "output); upwards, by the damage of skipping it for all tokens but the first: KL divergence of the output from "
        "that with the layer skipped, mean over tokens, then prompts. In the titles Spearman's rank correlation, its "
        "mean over models and datasets and its range: 1 would be a proxy that ranks layers as skipping them does.",
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


def _figure(n_panels: int, columns: int, **shared: bool) -> tuple[Figure, np.ndarray]:
    """A figure of the page's width, and its panels."""
    rows = math.ceil(n_panels / columns)
    figure = Figure(figsize=(WIDTH, 1.5 * rows + 1), layout="constrained", dpi=DOTS_PER_INCH)
    axes = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for ax in axes[n_panels:]:
        ax.remove()
    return figure, axes[:n_panels]


def _looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """name -> label, colour and marker; the first 132 differ."""
    looks = zip(dict.fromkeys(names), cycle(_PALETTE), cycle(_SHAPES), strict=False)
    return {name: {"label": name, "color": colour, "marker": shape} for name, colour, shape in looks}


def _side_by_side(names: Iterable) -> dict:
    return {name: place for place, name in enumerate(names)}


@plt.rc_context(STYLE)
def _ratio_figure(
    title: str,
    frame: pd.DataFrame,
    x: pd.Series,
    places: Mapping,
    per: str = "dataset",
    columns: int = 3,
    lines: bool = True,
) -> Figure | None:
    """Ratio over x with its interval, a panel per metric; places: the value of x -> its place on the axis.

    per: "model" or "dataset", which have a look each; lines join the means of each, broken where a ratio is missing.
    An open end is beyond the panel, a point without an interval is hollow. None if there is no ratio, or lines would
    have nothing to join.
    """
    frame = frame.astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float)).assign(place=x.map(places))
    frame = frame.dropna(subset="place")
    if frame.dropna(subset="ratio").place.nunique() < 1 + lines:
        return None
    looks = _looks(sorted(frame.dataset, key=by_paper) if per == "dataset" else frame.model)
    # between the looks at one place; near a line they stand near its ends
    room = (0.25 if lines else 0.5) * max(0.3, np.diff([*places.values()]).min(initial=1))
    figure, axes = _figure(frame.metric.nunique(), columns, sharex=True, sharey=True)
    for ax, (metric, rows) in zip(axes, frame.groupby("metric", sort=False), strict=True):
        for i, (name, look) in enumerate(looks.items()):
            own, color = rows[rows[per] == name], look["color"]
            own = own.assign(beside=own.place + room * ((i + 0.5) / len(looks) - 0.5))
            known = own[own.ratio_low.notna() | own.ratio_high.notna()]
            ax.vlines(known.beside, known.ratio_low.fillna(-1), known.ratio_high.fillna(2), color=color, linewidth=1)
            ax.plot(own.beside, own.ratio, ls="", markersize=3.5, fillstyle="none", **look)
            ax.plot(known.beside, known.ratio, ls="", markersize=3.5, **look)
            if lines:
                means = (
                    own.groupby("place").ratio.agg(lambda ratios: ratios.mean(skipna=False)).reindex(places.values())
                )
                ax.plot(means, linewidth=0.8, color=color, ls=_DASHES[i % len(_DASHES)])
        if "threshold" in frame:
            ax.axvline(places[METRICS[metric.split()[0]].threshold], color=GREY, ls=":", label="papers")
        labels = [textwrap.fill(short_name(name), 18) if isinstance(name, str) else f"{name:g}" for name in places]
        ax.set_xticks([*places.values()], labels, rotation=0 if lines else 90)
        ax.set(title=metric, ylim=(0, 1.04))
    figure.suptitle(title)
    figure.supylabel(RATIO)
    add_legend(figure)
    return figure
