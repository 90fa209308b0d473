"""Panels in a figure: of one run, or one for every model × dataset in a folder of results."""

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

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


def plot(kind: str, result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw one kind of figure (a name in `KINDS`) of what a probe or `load_artifact` returned; the axes drawn into.

    ax: where to draw; else a new figure, with a panel for each part that the result has and the legend under them,
    whose first axes are returned. title: instead of the kind's own. What is shown, KINDS[kind].caption says. ValueError
    for an unknown kind, a result without the keys it reads, or one axes for a result with several panels.
    """
    row = find_kind(kind)
    if not row.can_draw(result):
        raise ValueError(
            f"{kind} needs {' or '.join(row.keys)}, and the result has {', '.join(result)}; it is {row.probe}'s"
        )
    subject = question_of(result) if row.of_question else ""
    title = title or f"{row.title}: {subject}".rstrip(": ")
    panels = row.panels(result)
    if ax is None:
        cells = [Cell(name, panel, result) for name, panel in panels.items()]
        figure = plt.figure()  # outside the style: a notebook's first figure starts its backend, which keeps settings
        width = WIDTH if len(cells) > 1 else 0.7 * WIDTH
        return lay_out(row, cells, len(cells), title, figure, width).axes[0]
    if len(panels) > 1:
        raise ValueError(f"{kind} draws {len(panels)} panels of this result, {', '.join(panels)}; leave out ax")
    with plt.rc_context(STYLE):
        (panel,) = panels.values()
        image = row.draw(ax, panel, result)
        ax.set(xlabel=row.xlabel, ylabel=row.ylabel)
        ax.set_title(title, parse_math=False)
        if isinstance(row, Heat):
            _add_colorbar(image, ax, row.colorbar)
        if handles := _legend_handles([ax]):
            ax.legend(handles=handles, frameon=True)  # its frame keeps it readable over lines and bars
    return ax


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
    names = list(dict.fromkeys(name for one in panels for name in one))
    cells = [
        Cell(f"{run}\n{name}".strip(), shown.get(name), result)
        for (run, result), shown in zip(runs, panels, strict=True)
        for name in names
    ]
    per_model = len(cells) // len(models)
    if columns is None:
        n_tokens = max(len(result.get("tokens") or ()) for result in results.values())
        fitting = max(1, int(WIDTH / (per_model * max(_NARROWEST, _PER_TOKEN * n_tokens))))
        if len(names) > 1 and not isinstance(kind, Heat):  # curves in a row have one y axis
            fitting = 1
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
        images = [image for ax, cell in zip(axes, cells, strict=True) if (image := _draw(kind, ax, cell, inches))]
        for ax in axes[-across:]:
            ax.set_xlabel(kind.xlabel)
        figure.supylabel(kind.ylabel) if rows > 1 else axes[0].set_ylabel(kind.ylabel)
        figure.suptitle(textwrap.fill(title, int(13 * width)), parse_math=False)
        lines = 2 + max(cell.title.count("\n") for cell in cells)
        height = rows * (min(max(kind.aspect * inches, _LOWEST), _TALLEST) + 0.14 * lines) + 0.5
        if is_map and kind.limits is None:
            for image in images:
                _add_colorbar(image, image.axes, label=kind.colorbar if image is images[-1] else "")
        elif is_map:
            _add_colorbar(images[0], axes, label=kind.colorbar, shrink=min(1, 2.4 / height))
        handles = _legend_handles(axes)
        if handles:
            longest = max(len(handle.get_label().replace("\\mathrm", "")) for handle in handles)
            columns = max(1, int(16 * width / (longest + 8)))
            figure.legend(handles=handles, loc="outside lower center", ncols=columns)
            height += 0.15 * math.ceil(len(handles) / columns)
        figure.set_figheight(height)
    return figure


def _draw(kind: Kind, ax: Axes, cell: Cell, inches: float) -> AxesImage | None:
    title = short_name(cell.title)
    longest = max(map(len, title.split("\n")))
    ax.set_title(title, fontsize=min(7.5, 110 * inches / max(longest, 1)), pad=4, parse_math=False)
    if cell.panel:
        return kind.draw(ax, cell.panel, cell.result)
    ax.tick_params(bottom=False, labelbottom=False)
    ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center", va="center", color="grey")
    return None


def short_name(model: str) -> str:
    """A model's name as in the paper's figures."""
    return model.replace("DeepSeek-R1-Distill-", "DS-R1-")


def _add_colorbar(image: AxesImage, axes: Axes | Sequence[Axes], label: str, shrink: float = 1) -> None:
    """A colour bar, pointed where values may lie beyond its ends."""
    extend = "both" if image.get_clim()[0] < 0 else "max"
    image.figure.colorbar(image, ax=axes, extend=extend, label=label, aspect=25, shrink=shrink)


def _legend_handles(axes: Iterable[Axes]) -> list[Artist]:
    """What the panels drew and named, each name once, levels of difficulty in order."""
    found = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    return [found[label] for label in sorted(found, key=lambda label: label if label.startswith("level") else "")]
