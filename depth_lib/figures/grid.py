"""Panels in a figure: of one run, or one for every model × dataset in a folder of results."""

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from ..files import write_together
from ..results.schemas import MissingArtifact, of_pair
from ..results.study import Study
from .kinds import KINDS, find_kind
from .marks import STYLE, Heat, Kind, Panel, question_of

Results = Mapping[tuple[str, str], dict]

WIDTH = 7.2  # inches: two columns of a paper, the text of a page
DOTS_PER_INCH = 160
_NARROWEST, _LOWEST, _TALLEST = 1.1, 0.8, 2.6  # inches, of a panel
_PER_TOKEN = 0.088  # inches


@dataclass(frozen=True)
class Cell:
    """One panel of a figure: its title and what it shows of which result; without that it says "missing"."""

    title: str
    panel: Panel | None
    result: Mapping


def plot(kind: str, result: dict, title: str | None = None) -> Axes:
    """Draw one kind of figure (a name in `KINDS`) of what a probe or `load_artifact` returned.

    A new figure of pyplot, with a panel for each part that the result has and the legend under them; returns its first
    axes. title: instead of the kind's own. KINDS[kind].caption says what is shown. ValueError for an unknown kind, or a
    result without the keys that it reads.
    """
    row = find_kind(kind)
    if not row.can_draw(result):
        raise ValueError(
            f"{kind} needs {' or '.join(row.keys)}, and the result has {', '.join(result)}; it is {row.probe}'s"
        )
    subject = question_of(result) if row.of_question else ""
    cells = [Cell(name, panel, result) for name, panel in row.panels(result).items()]
    figure = plt.figure()  # outside the style: a notebook's first figure starts its backend, which keeps settings
    width = WIDTH if len(cells) > 1 else 0.7 * WIDTH
    return lay_out(row, cells, len(cells), title or f"{row.title}: {subject}".rstrip(": "), figure, width).axes[0]


def grid(kind: str, study: Study) -> Figure:
    """One kind of figure (a name in `KINDS`) with a panel for every model × dataset of a study.

    Datasets on which no model has this kind are left out; "missing" stands where one model's is not there. ValueError
    for an unknown kind; MissingArtifact if the study has nothing of it.
    """
    row = find_kind(kind)
    results = drawable(row, study)
    if not results:
        raise MissingArtifact(
            f"no {row.probe} artifacts under {study.folder} for {kind}; run: make sweep PROBES={row.probe} "
            f"OUT={study.folder}"
        )
    return draw_grid(row, results, study.models, study.datasets)


def save_figures(study: Study) -> list[Path]:
    """Write every kind the results allow to `folder/figures/<kind>.pdf` and `.png`; the paths written.

    Kinds about a question have one more for each other pair of the study, `<kind>_<pair>`. Bars, lines and text are
    vectors in the PDF, heat maps images.
    """
    written = []
    for name, kind in KINDS.items():
        for pair in ("", *study.pairs) if kind.of_question else ("",):
            results = drawable(kind, study, pair)
            figure = draw_grid(kind, results, study.models, study.datasets) if results else None
            written += save(figure, study.folder / "figures" / (f"{name}_{pair}" if pair else name))
    return written


def save(figure: Figure | None, stem: Path) -> list[Path]:
    """Write a figure as `stem.png` and `stem.pdf`, from one layout; `savefig` would draw each twice.

    None removes what a study drew there when it had other results.
    """
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]
    if figure is None:
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = io.BytesIO(), io.BytesIO()
    with plt.rc_context(STYLE):
        FigureCanvasAgg(figure).print_png(png)
        figure.set_layout_engine("none")
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})  # the same bytes of the same results
    write_together(dict(zip(paths, (png.getvalue(), pdf.getvalue()), strict=True)))
    return paths


def drawable(kind: Kind, study: Study, pair: str = "") -> Results:
    """(dataset, model) -> result, of those results that have any key of a kind; pair: about this question."""
    return {run: result for run, result in study.of(of_pair(kind.probe, pair)).items() if kind.can_draw(result)}


def draw_grid(
    kind: Kind, results: Results, models: list[str], datasets: Iterable[str], columns: int | None = None
) -> Figure:
    """The figure of a kind for these results: models in rows of `columns`, their datasets and panels side by side.

    A question is asked once per model, whatever dataset it ran beside.
    """
    datasets = [dataset for dataset in datasets if any(has == dataset for has, _ in results)]
    if kind.of_question:
        subject = question_of(next(iter(results.values())))
        of_model = {model: result for (_, model), result in reversed(results.items())}
        runs = [(model, of_model.get(model, {})) for model in models]
    else:
        subject = datasets[0] if len(datasets) == 1 else ""
        runs = [
            (model if subject else f"{model}\n{dataset}", results.get((dataset, model), {}))
            for model in models
            for dataset in datasets
        ]
    panels = [kind.panels(result) if result else {} for _, result in runs]
    names = list(dict.fromkeys(name for shown in panels for name in shown))
    cells = [
        Cell(f"{run}\n{name}".strip(), shown.get(name), result)
        for (run, result), shown in zip(runs, panels, strict=True)
        for name in names
    ]
    per_model = len(cells) // len(models)
    if columns is None:
        n_tokens = max(len(result.get("tokens") or ()) for result in results.values())
        fitting = max(1, int(WIDTH / (per_model * max(_NARROWEST, _PER_TOKEN * n_tokens))))
        # as many as fit without leaving more than a quarter of the places empty
        columns = max(n for n in range(1, fitting + 1) if -len(models) % n <= len(models) / 4)
    return lay_out(kind, cells, per_model * columns, f"{kind.title}: {subject}".rstrip(": "))


def lay_out(
    kind: Kind, cells: Sequence[Cell], across: int, title: str, figure: Figure | None = None, width: float = WIDTH
) -> Figure:
    """A figure with `across` panels side by side, row by row; curves in a row have one y axis.

    figure: an empty one to draw into, such as one that a notebook shows. width: inches.
    """
    rows, is_map = math.ceil(len(cells) / across), isinstance(kind, Heat)
    inches = (width - 0.6) / across  # from panel to panel, about
    with plt.rc_context(STYLE):
        figure = figure or Figure(dpi=DOTS_PER_INCH)
        figure.set_layout_engine("constrained", h_pad=0.02, w_pad=0.02)
        figure.set_figwidth(width)
        axes = figure.subplots(rows, across, sharey=False if is_map else "row", squeeze=False).ravel()
        for ax in axes[len(cells) :]:
            ax.remove()
        axes = axes[: len(cells)]
        for ax, cell in zip(axes, cells, strict=True):
            _draw(kind, ax, cell, inches)
        for ax in axes[-across:]:
            ax.set_xlabel(kind.xlabel)
        figure.supylabel(kind.ylabel) if rows > 1 else axes[0].set_ylabel(kind.ylabel)
        figure.suptitle(textwrap.fill(title, int(13 * width)), parse_math=False)
        lines = 2 + max(cell.title.count("\n") for cell in cells)
        height = rows * (min(max(kind.aspect * inches, _LOWEST), _TALLEST) + 0.14 * lines) + 0.5
        if is_map:
            _add_colorbars(kind, axes, height)
        figure.set_figheight(height + add_legend(figure, axes))
    return figure


def add_legend(figure: Figure, axes: Iterable[Axes]) -> float:
    """What the panels drew and named, each name once, under them; the height in inches that it takes."""
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if not handles:
        return 0
    longest = max(len(label.replace("\\mathrm", "")) for label in handles)
    columns = max(1, int(16 * figure.get_figwidth() / (longest + 8)))
    names = map(short_name, handles)
    figure.legend(handles.values(), names, loc="outside lower center", ncols=columns)
    return 0.15 * math.ceil(len(handles) / columns)


def short_name(model: str) -> str:
    """A model's name as in the paper's figures."""
    return model.replace("DeepSeek-R1-Distill-", "DS-R1-")


def _draw(kind: Kind, ax: Axes, cell: Cell, inches: float) -> None:
    title = short_name(cell.title)
    longest = max(map(len, title.split("\n")))
    ax.set_title(title, fontsize=min(7.5, 110 * inches / max(longest, 1)), pad=4, parse_math=False)
    if cell.panel:
        kind.draw(ax, cell.panel, cell.result)
    else:
        ax.tick_params(bottom=False, labelbottom=False)
        ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center", va="center", color="grey")


def _add_colorbars(kind: Heat, axes: Sequence[Axes], height: float) -> None:
    """One colour bar for all maps, or one per map if each has its own limits; pointed where values may lie beyond."""
    maps = [ax for ax in axes if ax.images]
    look = {"extend": "both" if kind.diverging else "max", "aspect": 25}
    if kind.limits:
        maps[0].figure.colorbar(maps[0].images[0], ax=axes, label=kind.colorbar, shrink=min(1, 2.4 / height), **look)
        return
    for ax in maps:
        ax.figure.colorbar(ax.images[0], ax=ax, label=kind.colorbar if ax is maps[-1] else "", **look)
