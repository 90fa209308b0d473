"""Comparisons over runs: the three curves of each model, ratios of effective depth by size, training and task."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from ..effective_depth.across import sizes_of, trainings_of
from ..effective_depth.rules import as_array
from ..results.study import TABLE_PROBES, Study, by_paper
from .grid import DOTS_PER_INCH, WIDTH, add_legend, cells_of, draw_cells, save_drawn, short_name
from .kinds import KINDS
from .marks import COLOURS, RED, STYLE

IN_OVERVIEW = ("cosine", "lens_kl", "lens_overlap")  # the kinds that the papers' rules read
_PALETTE = (*COLOURS, "#8c564b", "#9467bd", "#7fc97f", "#bcbd22", "#7f0000")
_SHAPES = "os^DvPX*phd"
_DASHES = ("-", (0, (5, 1)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def overview_figure(study: Study) -> Figure | None:
    """The three curves that the papers' rules read, each with its depth: one panel per model, its datasets together.

    Three panels to a row for up to nine models, six for more.
    """
    cells = []
    for model in study.models:
        datasets = [name for name in study.datasets if all((name, model, probe) in study for probe in TABLE_PROBES)]
        for kind in (KINDS[name] for name in IN_OVERVIEW if datasets):
            (cell,), _ = cells_of(kind, {dataset: study[dataset, model, kind.probe] for dataset in datasets})
            cells.append(replace(cell, title=f"{short_name(model)}: {kind.ylabel}"))
    if not cells:
        return None
    title = "The three curves of each model, and their effective depths"
    return draw_cells(cells, 3 if len(cells) <= 27 else 6, title)


def ratio_by_size_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does a larger model use a larger share of its depth? Ratio against size on a logarithmic axis."""
    sizes, unit = sizes_of(intervals)
    places = {size: math.log2(size) for size in sorted(sizes.unique())}
    return _ratio_figure(f"Ratio of effective depth against size in {unit}", intervals, sizes, places)


def ratio_by_training_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does training change it? Ratio of models by the training that their params files name."""
    training, known = trainings_of(intervals.model)
    places = {name: place for place, name in enumerate(known)}
    return _ratio_figure("Ratio of effective depth by training", intervals, training, places)


def ratio_by_task_figure(intervals: pd.DataFrame) -> Figure | None:
    """Does the task change it? Ratio on each dataset, a line per model."""
    places = {name: place for place, name in enumerate(sorted(intervals.dataset.unique(), key=by_paper))}
    return _ratio_figure("Ratio of effective depth by task", intervals, intervals.dataset, places, per="model")


RATIOS = {"size": ratio_by_size_figure, "training": ratio_by_training_figure, "task": ratio_by_task_figure}


@plt.rc_context(STYLE)  # pyright: ignore[reportCallIssue] (it decorates, too)
def _ratio_figure(
    title: str, frame: pd.DataFrame, x: pd.Series, places: Mapping, per: str = "dataset"
) -> Figure | None:
    """Ratio over x with its interval, a panel per metric; places: the value of x -> its place on the axis.

    per: "model" or "dataset", which have a look each; lines join the means of each, broken where a ratio is missing. An
    open end is beyond the panel. None if lines would have nothing to join.
    """
    frame = frame.astype(dict.fromkeys(("ratio", "ratio_low", "ratio_high"), float)).assign(place=x.map(places))
    frame = frame.dropna(subset="place")
    if frame.dropna(subset="ratio").place.nunique() < 2:
        return None
    names = list(dict.fromkeys(sorted(frame.dataset, key=by_paper) if per == "dataset" else frame.model))
    metrics = frame.metric.unique()
    figure = Figure(figsize=(WIDTH, 2.5), layout="constrained", dpi=DOTS_PER_INCH)
    axes = figure.subplots(1, len(metrics), sharex=True, sharey=True, squeeze=False).ravel()
    for ax, metric in zip(axes, metrics, strict=True):
        looks = zip(names, cycle(_PALETTE), cycle(_SHAPES), cycle(_DASHES), strict=False)
        for i, (name, colour, shape, dashes) in enumerate(looks):
            own = frame[(frame[per] == name) & (frame.metric == metric)]
            beside = own.place + 0.1 * ((i + 0.5) / len(names) - 0.5)  # near its place, not on the others'
            known = own.assign(beside=beside).dropna(subset=["ratio_low", "ratio_high"], how="all")
            ends = known.ratio_low.fillna(-1), known.ratio_high.fillna(2)
            ax.vlines(known.beside, *ends, color=colour, linewidth=1)
            ax.plot(beside, own.ratio, shape, color=colour, markersize=3.5, label=name)
            means = own.groupby("place").ratio.agg(lambda ratios: ratios.mean(skipna=False)).reindex(places.values())
            ax.plot(means, linewidth=0.8, color=colour, ls=dashes)
        labels = [name if isinstance(name, str) else f"{name:g}" for name in places]
        ax.set_xticks([*places.values()], labels)
        ax.set(title=metric, ylim=(0, 1.04))
    figure.suptitle(title)
    figure.supylabel("Ratio (ED + 1) / L")
    add_legend(figure)
    return figure


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
        image = ax.imshow(relative, origin="lower", vmin=0, vmax=1)
        ax.plot([0, n_target - 1], [0, n_source - 1], ":", color="white")
        ax.plot(as_array(result["best"]), "o", color=RED, markeredgecolor="white", markersize=4)
        ax.set_xlabel(f"Layer of {target}", parse_math=False)  # a folder's name may hold dollar signs
        ax.set_ylabel(f"Layer of {source}", parse_math=False)
        ax.locator_params(integer=True)
        figure.colorbar(image, extend="max" if relative.max() > 1 else "neither", label="Relative error")
    return figure


def save_comparisons(study: Study, intervals: pd.DataFrame) -> list[Path]:
    """Write each comparison that the study allows to `folder/figures/summary/<name>.pdf` and `.png`."""
    folder = study.folder / "figures" / "summary"
    written = save_drawn(folder / "overview", partial(overview_figure, study))
    for name, draw in RATIOS.items():
        written += save_drawn(folder / f"ratio_by_{name}", partial(draw, intervals))
    return written
