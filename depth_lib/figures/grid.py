"""Figures of panels: of one result, of several by name, of a study in the papers' layout, and of all depths."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from ..effective_depth.rules import RULES
from ..effective_depth.tables import CONTROL, published_depths
from ..files import write_again
from ..params import TRAINING, facts_of, in_order, listed
from ..results.result import Result, fitting
from ..results.study import Study
from .kinds import KINDS, Kind, find_kind
from .marks import COLOURS, GREY, PUBLISHED, STYLE, draw_curves, draw_map, draw_scores, draw_words, draw_worth

WIDTH, DPI = 7.2, 160  # inches: two columns of a paper
TOKEN, WORD, BESIDE = (0.055, 0.11, 0.55)  # inches: a token's name on its side, a line of words, an axis


class Panel(NamedTuple):
    """A panel's title, what draws it, and the number of tokens along its axis."""

    title: str
    draw: Callable[[Axes], object]
    tokens: int = 0


def plot(kind: str, result: Mapping, ax: Axes | None = None, title: str | None = None, prompts: bool = False) -> Axes:
    """Draw a figure of a result.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.plot("lens_kl", dl.logit_lens(llm, prompts))
    <Axes: xlabel=...>

    - kind: the figure's name; `dl.kinds_of` lists them
    - result: a result, or a dict {name: result}; curves share a panel, heat maps have a row each
    - ax: where to draw a figure of one panel; by default a new figure
    - title: replaces the figure's default title
    - prompts: also draw each prompt's curve, thin and grey

    Returns the first axes.

    Raises ValueError for an unknown figure, a result of a different probe, or `ax` for a figure of several panels.
    Cost: no forward pass.
    """
    row = find_kind(kind)
    panels, across = _panels_of(row, result, prompts)
    if ax is None:
        return _drawn(panels, across, plt.figure(), row, title).axes[0]
    if not isinstance(ax, Axes):
        raise ValueError(f"ax must be matplotlib axes, such as plt.gca(), got {type(ax).__name__}")
    if len(panels) > 1:
        raise ValueError(f"{kind} of this result has {len(panels)} panels; leave out ax=")
    with plt.rc_context(STYLE):
        panels[0].draw(ax)
        ax.set(title=panels[0].title or (row.title if title is None else title), xlabel=row.xlabel, ylabel=row.ylabel)
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
    return ax


def figure_of(kind: Kind, result: Mapping, title: str | None = None) -> Figure:
    """The figure of `plot`, unknown to pyplot, so that a notebook shows it once."""
    return _drawn(*_panels_of(kind, result, False), Figure(dpi=DPI), kind, title)


def by_name(result: Mapping) -> Mapping[str, Mapping]:
    """Several results by name; a single result has the name "". Raises ValueError for a file or an edited one."""
    if file := next((one for one in result.values() if isinstance(one, str | Path) and str(one).endswith(".pt")), ""):
        raise ValueError(f"{str(file)!r} is the name of a file; pass its result: dl.load_artifact({str(file)!r})")
    several = result if result and all(isinstance(one, Mapping) for one in result.values()) else {"": result}
    return {str(name): fitting(one) for name, one in several.items()}


def _panels_of(kind: Kind, result: Mapping, prompts: bool) -> tuple[list[Panel], int]:
    """The panels of one result or several, and how many stand side by side."""
    results = by_name(result)
    for name, one in results.items():
        if not kind.values(one):
            whose = f'"{name}"' if name else "yours"
            named = dict.fromkeys(
                re.findall(r'"\w+"', kind.needs.split(": dl.")[0])
            )  # not in the call that it suggests
            lacking = [key for key in named if key[1:-1] not in one]
            has = f"has no {listed(lacking)}" if lacking else f"lacks the {kind.needs.split()[0]}"
            if isinstance(one, Result) and one.probe != kind.probe:
                has = f"is from {one.probe}"
            raise ValueError(f"this figure needs a result of {kind.probe} with {kind.needs}; {whose} {has}")
    if kind.mark == "curves":
        return [Panel("", partial(draw_curves, kind=kind, results=results, prompts=prompts))], 1
    panels = [panel for name, one in results.items() for panel in _panels(kind, name, one)]
    return panels, _readable(kind, panels, len(panels) // len(results) or 1)


def study_figure(
    kind: str | Kind, study: Study, datasets: Sequence[str], pair: str = "", title: str | None = None
) -> Figure | None:
    """A panel for each model × data set in the papers' layout: a row per training, sizes from left to right.

    datasets: side by side; pair: the question, for a kind about one; title: replaces the figure's default title. None
    if the study has no such result.
    """
    kind = find_kind(kind) if isinstance(kind, str) else kind
    results, rows = study.of(f"{kind.probe}:{pair}" if pair else kind.probe), []
    known = published_depths().set_index(["rule", "dataset", "model"]).ed
    for training in TRAINING:
        models = [model for model in in_order(study.models) if facts_of(model).training == training]
        names = {(dataset, model): f"{model}\n{dataset}" for model, dataset in product(models, datasets)}
        if len(datasets) == 1:
            names = {run: run[1] for run in names}
        rows.append(
            [
                panel
                for run, name in names.items()
                for panel in _panels(kind, name, results.get(run), known.get((kind.rule, *run)))
            ]
        )
    if not any(rows):
        return None
    widest = max(map(len, rows))
    together = len(datasets) * max(len(_panels(kind, "", result)) for result in results.values())
    columns = _readable(kind, [*chain(*rows)], min(widest, max(1, 8 // together) * together), together)
    shown = [panel for row in rows for panel in row + [None] * (-len(row) % columns)]
    about = datasets
    if kind.of_question:  # the question with its answer
        about = ["".join(next(iter(results.values()))["tokens"]).translate(str.maketrans("Ġ▁", "  ")).strip()]
    return _drawn(shown, columns, Figure(dpi=DPI), kind, title or ", ".join([kind.title, *about]))


@plt.rc_context(STYLE)  # pyright: ignore[reportCallIssue] (it decorates, too)
def summary_figure(depths: pd.DataFrame) -> Figure:
    """Every depth as a share of the model's: a row per model, a dot per data set with its interval.

    depths: what `effective_depth.tables.depths` returned. A hollow dot has no interval, or an end without a limit.
    Diamonds are published depths, and crosses are the same architecture with random weights.
    """
    names = (depths.model + ", " + depths.variant.where(depths.variant != CONTROL, "")).str.rstrip(", ")
    models, datasets = [*names.unique()], depths.dataset.unique()
    figure = Figure((WIDTH, 1.2 + max(0.3, 0.11 * len(datasets)) * len(models)), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, len(RULES), sharex=True, sharey=True)
    for (ax, rule), (k, dataset) in product(zip(axes, RULES, strict=True), enumerate(datasets)):
        own = depths[(depths.rule == rule) & (depths.dataset == dataset)]
        place = names[own.index].map(models.index).astype(float) + 0.7 * ((k + 0.5) / len(datasets) - 0.5)
        control, colour = own.variant == CONTROL, COLOURS[k % len(COLOURS)]
        sure = own.ratio_low.notna() & own.ratio_high.notna()
        ends = own.ratio_low.fillna(own.ratio), own.ratio_high.fillna(own.ratio)
        ax.hlines(place[~control], *(end[~control] for end in ends), color=colour, linewidth=1)
        for rows, look in ((~control & ~sure, {"fillstyle": "none"}), (~control & sure, {"label": dataset})):
            ax.plot(own.ratio[rows], place[rows], "o", color=colour, markersize=4, **look)
        shares = ((own.published + 1) / own.layers).astype(float)
        if shares.notna().any():
            ax.plot(shares, place, "D", color=GREY, fillstyle="none", markersize=5, label=PUBLISHED)
        if own.ratio[control].notna().any():
            ax.plot(own.ratio[control], place[control], "x", color="black", markersize=4, label="random weights")
        ax.set(title=RULES[rule].title, xlim=(0, 1.02), xticks=(0, 0.5, 1))
        ax.set_yticks(range(len(models)), models)
        ax.set_ylim(len(models) - 0.5, -0.5)
    for ax, line in product(axes, range(1, len(models))):
        ax.axhline(line - 0.5, color="#dddddd", linewidth=0.5)
    axes[len(axes) // 2].set_xlabel("effective depth / depth, (ED + 1) / L")
    _add_legend(figure)
    return figure


def save_figures(study: Study, folder: str | Path) -> dict[str, list[Path]]:
    """Write every kind that the results allow to `folder/<dataset>_<kind>.png` and `.pdf`; each kind's name with its
    files.

    A kind about a question is the same on every data set, and is written once for each question: `<kind>_<pair>`.
    """
    pictures = {}
    for (name, kind), dataset, pair in product(KINDS.items(), study.datasets, ["", *study.pairs]):
        stem = "_".join(filter(None, [name, pair] if kind.of_question else [dataset, name]))
        path = Path(folder) / f"{stem}.png"
        done = pictures.setdefault(name, [])
        if path not in done and (figure := study_figure(kind, study, [dataset], pair * kind.of_question)):
            done.append(save(figure, path))
    return {name: paths for name, paths in pictures.items() if paths}


def save(figure: Figure, path: Path, put: Callable = write_again) -> Path:
    """Write a figure as .png, and as .pdf beside it, with one layout; the same results give the same bytes.

    put: the function that writes both files.
    """
    png, pdf = io.BytesIO(), io.BytesIO()
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        if layout := figure.get_layout_engine():
            layout.execute(figure)
        figure.set_layout_engine("none")
        FigureCanvasAgg(figure).print_png(png)  # savefig would draw each file twice
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})
    put({path: png.getvalue(), path.with_suffix(".pdf"): pdf.getvalue()})
    return path


def _panels(kind: Kind, name: str, result: Mapping | None, published: int | None = None) -> list[Panel]:
    """The panels of one result: one for all its curves, or one per map."""
    result = result or {}
    values = kind.values(result)
    if kind.mark == "curves":
        draw = partial(draw_curves, kind=kind, results={name: result}, published=published)
        return [Panel(name, draw)] * bool(values)
    if kind.mark == "scores":
        return [Panel(name, partial(draw_scores, kind=kind, result=result))] * bool(values)
    draw = {"worth": draw_worth, "words": draw_words}.get(kind.mark, draw_map)
    return [
        Panel(
            "\n".join(filter(None, [name, label])),
            partial(draw, kind=kind, result=result, values=one),
            one.shape[-1] if "oken" in kind.xlabel + kind.ylabel else 0,
        )
        for label, one in values.items()
    ]


def _readable(kind: Kind, panels: Sequence[Panel], columns: int, together: int = 1) -> int:
    """The number of columns that leaves room for the tokens' names; words have one column."""
    tokens = max((panel.tokens for panel in panels), default=0) if kind.mark != "words" else math.inf
    columns = min(columns, max(1, int(WIDTH / (TOKEN * tokens + BESIDE)))) if tokens else columns
    return columns - columns % together if columns > together else columns


def _drawn(
    panels: Sequence[Panel | None], columns: int, figure: Figure, kind: Kind, title: str | None = None
) -> Figure:
    """Draw panels into an empty figure, `across` in a row; kind: the kind whose labels they have."""
    tokens = max(panel.tokens for panel in panels if panel)
    words = kind.mark == "words"
    rows, width = (
        math.ceil(len(panels) / columns),
        min(WIDTH / columns, WIDTH if words else max(4, TOKEN * tokens + BESIDE)),
    )
    with plt.rc_context(STYLE):
        figure.set_layout_engine("constrained")
        height = max(5, tokens) * WORD if words else width * (0.95 if "map" in kind.mark else 0.7)  # of a panel
        names = [
            "\n".join(textwrap.fill(x, int(12 * width)) for x in panel.title.split("\n")) if panel else ""
            for panel in panels
        ]
        above = 0.14 + 0.11 * (1 + max(name.count("\n") for name in names))  # a panel's title
        figure.set_size_inches(max(columns * width, 3), rows * (height + above) + 0.9)
        axes = figure.subplots(rows, columns, squeeze=False)
        for k, (ax, panel, name) in enumerate(zip_longest(axes.ravel(), panels, names)):
            if panel:
                panel.draw(ax)
                ax.set_title(name)
                if not any(panels[k + columns :: columns]):  # the lowest of its column
                    ax.set_xlabel(kind.xlabel, fontsize=min(7, 7 * width))
            else:
                ax.remove()
        figure.supylabel(kind.ylabel, fontsize=7)
        _add_colour_bars(figure, kind)
        title = kind.title if title is None else title
        figure.suptitle(textwrap.fill(title, int(13 * figure.get_figwidth())), parse_math=False)
        _add_legend(figure)
    return figure


def _add_colour_bars(figure: Figure, kind: Kind) -> None:
    """One colour bar for all maps if the kind has limits, else one per map."""
    images = [ax.images[0] for ax in figure.axes if ax.images]
    if kind.limits == (None, None):
        for image in images:
            figure.colorbar(image, ax=image.axes, aspect=40)
    elif images:
        arrays = [array for image in images if (array := image.get_array()) is not None]
        above = any(np.nanmax(array) > kind.limits[1] for array in arrays)
        figure.colorbar(images[0], ax=figure.axes, aspect=40, label=kind.colours, extend="max" if above else "neither")


def _add_legend(figure: Figure) -> None:
    """Every label once, below the panels."""
    handles = {}
    for ax in figure.axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if handles:
        columns = max(1, int(figure.get_figwidth() / (0.7 + 0.06 * max(map(len, handles)))))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
