"""Panels in a figure: of one result or several, or one for every model × dataset in a folder of results."""

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..files import write_together
from ..params import command
from ..results.schemas import MissingArtifact, of_pair
from ..results.study import Study, by_paper
from .kinds import KINDS, find_kind
from .marks import STYLE, Heat, Kind, question_of

WIDTH, TALLEST = 7.2, 9.6  # inches: two columns of a paper, the text of a page
DOTS_PER_INCH = 160
_WIDEST = 4.5  # inches, of a panel
_IN_A_ROW = 4  # panels, or those of one model, unless that makes a figure too tall


@dataclass(frozen=True)
class Cell:
    """A panel: its title, its kind, and what draws it into axes."""

    title: str
    kind: Kind
    draw: Callable[[Axes], None]


def plot(
    kind: str,
    result: Mapping,
    ax: Axes | Sequence[Axes] | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw one kind of figure (a name in `KINDS`) of what a probe or `load_artifact` returned.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.plot("lens_kl", dl.logit_lens(llm, prompts))
    <Axes: xlabel=...>

    result: one, or {name: result}: curves of several are drawn in one panel, heat maps side by side and, of two with
    the same shape, the difference (second - first). ax: axes to draw into, one per panel; by default a new figure of
    pyplot with its legend under the panels. limits: the ends of the vertical axis, or of the colours of a heat map,
    instead of the kind's own. title: instead of the kind's own. Returns the first axes. KINDS[kind].caption says what
    is shown. ValueError for an unknown kind, a result without the keys that it reads, or another number of axes.
    Cost: no forward pass.
    """
    if not isinstance(result, Mapping) or isinstance(ax, Mapping):
        raise ValueError(f'give several results by name: dl.plot("{kind}", {{"a": one, "b": other}}).')
    row = find_kind(kind)
    if limits is not None:
        low, high = limits
        row = replace(row, limits=(low, high))
    results = result if result and all(isinstance(one, Mapping) for one in result.values()) else {"": result}
    for name, one in results.items():
        if not row.can_draw(one):
            raise ValueError(
                f"{kind} needs {' or '.join(row.keys)}, and the result {name or 'given'} has {', '.join(one)}; it is "
                f"{row.probe}'s"
            )
    rows = cells_of(row, results)
    cells, across = [cell for of_row in rows for cell in of_row], len(rows[0])
    title = row.title if title is None else title
    subject = _subject(row, next(iter(results.values()))) if len(results) == 1 else ""
    title = f"{title}: {subject}".rstrip(": ") if title == row.title else title
    if ax is None:
        figure = plt.figure()  # outside the style: a notebook's first figure starts its backend, which keeps settings
        return draw_cells(figure, cells, across, title).axes[0]
    axes = np.ravel(ax)
    if len(axes) != len(cells):
        raise ValueError(f"{kind} of this has {len(cells)} panels, and ax has {len(axes)} axes; give one per panel")
    with plt.rc_context(STYLE):
        _draw_into(axes, cells)
        for one, cell in zip(axes, cells, strict=True):
            one.set_title(cell.title or title, parse_math=not title)
            one.set(xlabel=cell.kind.xlabel, ylabel=cell.kind.ylabel)
            if one.get_legend_handles_labels()[0]:
                one.legend()
    return axes[0]


def cells_of(kind: Kind, results: Mapping[str, Mapping]) -> list[list[Cell]]:
    """The panels of results by their names, in rows: all results in one, or a row per part of the kind."""
    if kind.overlays and len(results) > 1:
        return [[Cell("", kind, partial(kind.overlay, results=results))]]
    panels = {name: kind.panels(result) for name, result in results.items()}
    parts = dict.fromkeys(part for shown in panels.values() for part in shown)
    rows = []
    for part in parts:
        cells = [_cell([name, part], kind, panels[name].get(part), result) for name, result in results.items()]
        pair = [shown[part] for shown in panels.values() if part in shown]
        if isinstance(kind, Heat) and len(results) == len(pair) == 2:
            (key, first), (_, second) = (next(iter(panel.items())) for panel in pair)
            if first.shape == second.shape:
                names = " - ".join(reversed([*results]))
                drawn = partial(kind.difference().draw, panel={key: second - first}, result={})
                cells.append(Cell("\n".join(filter(None, [names, part])), kind.difference(), drawn))
        rows.append(cells)
    return rows if len(results) > 1 else [[cell for of_row in rows for cell in of_row]]


def _cell(lines: Sequence[str], kind: Kind, panel: dict | None, result: Mapping) -> Cell:
    if not lines:
        return Cell("", kind, lambda ax: ax.set_visible(False))
    if panel is None:
        return Cell("\n".join(filter(None, lines)), kind, _say_missing)
    lines = [*lines, kind.note(result)]
    return Cell("\n".join(filter(None, lines)), kind, partial(kind.draw, panel=panel, result=result))


def _say_missing(ax: Axes) -> None:
    ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center")


def _subject(kind: Kind, result: Mapping) -> str:
    """What a result is about: its model, and its dataset or question, as far as it says."""
    meta = result.get("meta", {})
    about = question_of(result) if kind.of_question else meta.get("dataset", "")
    return ", ".join(filter(None, [meta.get("model", ""), about]))


def grid(
    kind: str | Kind,
    study: Study,
    pair: str = "",
    models: Sequence[str] = (),
    datasets: Sequence[str] = (),
    columns: int | None = None,
) -> Figure:
    """One kind of figure (a name in `KINDS`) with a panel for every model × dataset of a study.

    pair: of the study's `pairs`, which question a kind about one is about. models: by default all; a place under ""
    stays empty. datasets: by default those on which any
    model has this kind; "missing" stands where one model's is not there. columns: models side by side; by default as
    many as a page needs. ValueError for an unknown kind; MissingArtifact if the study has nothing of it, or nothing on
    one of the datasets.
    """
    row = find_kind(kind) if isinstance(kind, str) else kind
    results = {run: result for run, result in study.of(of_pair(row.probe, pair)).items() if row.can_draw(result)}
    known = {dataset for dataset, _ in results}
    lacking = " ".join(dataset for dataset in datasets if dataset not in known)
    if lacking or not known:
        remedy = command("sweep", DATASETS=lacking, PROBES=row.probe, OUT=str(study.folder))
        raise MissingArtifact(f"no {row.probe} artifacts for {lacking or kind} under {study.folder}; run: {remedy}")
    datasets = list(datasets) or [dataset for dataset in study.datasets if dataset in known]
    models, subject = list(models) or study.models, datasets[0] if len(datasets) == 1 else ""
    if row.of_question:  # the same on every dataset: one panel per model
        subject = question_of(next(iter(results.values())))
        results = {("", model): result for (dataset, model), result in reversed(results.items()) if dataset in datasets}
        datasets = [""]
    panels = {run: row.panels(result) for run, result in results.items()}
    parts = list(dict.fromkeys(part for shown in panels.values() for part in shown))
    cells = [
        _cell(
            [short_name(model), dataset if len(datasets) > 1 else "", part] if model else [],
            row,
            panels.get((dataset, model), {}).get(part),
            results.get((dataset, model), {}),
        )
        for model, dataset, part in product(models, datasets, parts)
    ]
    per_model = len(datasets) * len(parts)
    across = per_model * (columns or _columns(row, len(models), per_model))
    title = f"{row.title}: {subject}".rstrip(": ")
    return draw_cells(Figure(dpi=DOTS_PER_INCH), cells, across, title)


def _columns(kind: Kind, n_models: int, per_model: int) -> int:
    """How many models stand side by side: as few as fill a row, or more where the figure would be taller than a page.

    Panels of heat maps need an inch each.
    """
    fewest = max(1, min(n_models, _IN_A_ROW // per_model))
    most = max(fewest, 7 // per_model)
    heights = {
        columns: _size(kind, columns * per_model, math.ceil(n_models / columns))[1]
        for columns in range(fewest, most + 1)
    }
    return next((columns for columns, height in heights.items() if height <= TALLEST), most)


def _size(kind: Kind, across: int, rows: int) -> tuple[float, float]:
    """Width and height in inches of a figure of so many panels."""
    inches = min(WIDTH / across, _WIDEST)
    return across * inches, rows * (kind.aspect * inches + 0.3) + 0.7


def save_figures(study: Study) -> list[Path]:
    """Write every kind the results allow to `folder/figures/<kind>.pdf` and `.png`; the paths written.

    Kinds about a question have one more for each other pair of the study, `<kind>_<pair>`. Of what would be taller than
    a page there is one for each dataset, `<kind>_<dataset>`. Bars, lines and text are vectors in the PDF, heat maps
    images.
    """
    written = []
    for name, pair in product(KINDS, ("", *study.pairs)):
        stem = f"{name}_{pair}" if pair else name
        pages = _pages(name, study, pair)
        for dataset in ("", *study.datasets):
            path = study.folder / "figures" / (f"{stem}_{dataset}" if dataset else stem)
            written += save_drawn(path, pages.get, dataset)
    return written


def _pages(kind: str, study: Study, pair: str) -> dict[str, Figure]:
    """The figure of all datasets under "", or one under the name of each where that is taller than a page."""
    try:
        whole = grid(kind, study, pair)
    except MissingArtifact:
        return {}
    with_results = {dataset for dataset, _ in study.of(KINDS[kind].probe)}
    if whole.get_figheight() <= TALLEST + 1 or KINDS[kind].of_question or len(with_results) == 1:
        return {"": whole}
    return {dataset: grid(kind, study, pair, datasets=[dataset]) for dataset in sorted(with_results, key=by_paper)}


def save_drawn(stem: Path, draw: Callable[..., Figure | None], *arguments) -> list[Path]:
    """Save what `draw` draws of these arguments; old files are deleted if it draws nothing."""
    try:
        figure = draw(*arguments)
    except MissingArtifact:
        figure = None
    if figure:
        return save(figure, stem)
    for path in _paths(stem):
        path.unlink(missing_ok=True)
    return []


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as `stem.png` and `stem.pdf`; the same results give the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    contents = {path: io.BytesIO() for path in _paths(stem)}
    with plt.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # one layout for both files
        for path, file in contents.items():
            figure.savefig(file, format=path.suffix[1:], metadata={"CreationDate": None})
    write_together({path: file.getvalue() for path, file in contents.items()})
    return list(contents)


def _paths(stem: Path) -> list[Path]:
    return [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]


def draw_cells(figure: Figure, cells: Sequence[Cell], across: int, title: str) -> Figure:
    """Draw panels into an empty figure, so many side by side; where all are of one kind it labels the figure."""
    kind = cells[0].kind
    alike = len({cell.kind.ylabel for cell in cells}) == 1
    rows = math.ceil(len(cells) / across)
    width, height = _size(kind, across, rows)
    inches = width / across
    with plt.rc_context(STYLE):
        figure.set_layout_engine("constrained")
        figure.set_size_inches(width, height)
        axes = figure.subplots(
            rows, across, sharey="row" if alike and kind.comparable else False, squeeze=False
        ).ravel()
        for ax in axes[len(cells) :]:
            ax.remove()
        _draw_into(axes[: len(cells)], cells)
        for ax, cell in zip(axes, cells, strict=False):
            lines = [textwrap.fill(line, int(17 * inches)) for line in cell.title.splitlines()]
            ax.set_title("\n".join(lines), fontsize=min(6.5, 6 * inches))
        for ax, cell in list(zip(axes, cells, strict=False))[-across:]:
            ax.set_xlabel(cell.kind.xlabel)
        figure.supylabel(kind.ylabel if alike else "")
        figure.suptitle(textwrap.fill(title, int(13 * across * inches)), parse_math=False)
        add_legend(figure)
    return figure


def _draw_into(axes: Sequence[Axes], cells: Sequence[Cell]) -> None:
    for ax, cell in zip(axes, cells, strict=True):
        cell.draw(ax)
    kinds = []
    for cell in cells:
        if cell.kind not in kinds:
            kinds.append(cell.kind)
    for kind in kinds:
        kind.finish([ax for ax, cell in zip(axes, cells, strict=True) if cell.kind == kind])


def add_legend(figure: Figure) -> None:
    """A legend under the panels, each name once; the figure grows by its height."""
    handles = {}
    for ax in figure.axes:
        handles |= {short_name(label): handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        columns = int(figure.get_figwidth() / 2.2)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
        figure.set_figheight(figure.get_figheight() + 0.15 * math.ceil(len(handles) / columns))


def short_name(model: str) -> str:
    """A model's name as in the paper's figures."""
    return model.replace("DeepSeek-R1-Distill-", "DS-R1-")
