"""Panels in a figure: of one result or several, or one for every model × dataset in a folder of results."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..params import command
from ..results.schemas import MissingArtifact, with_pair
from ..results.study import Study
from .kinds import KINDS, find_kind
from .marks import STYLE, Curves, Heat, Kind, question_of

WIDTH = 7.2  # inches: two columns of a paper, the text of a page
DOTS_PER_INCH = 160
_WIDEST = 4.5  # inches, of a panel
_ON_A_PAGE = 12  # models × datasets in one file


@dataclass(frozen=True)
class Cell:
    """A panel: its title, its kind, and what draws it into axes."""

    title: str
    kind: Kind
    draw: Callable[[Axes], object]


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

    result: one, or {name: result}: curves of several are drawn in one panel, heat maps a row for each and, of two with
    the same shape, one for the difference (second - first). ax: axes to draw into, one per panel; by default a new
    figure of pyplot with its legend under the panels. limits: the ends of the vertical axis, or of the colours of a
    heat map, instead of the kind's own. title: instead of the kind's own. Returns the first axes. KINDS[kind].caption
    says what is shown. ValueError for an unknown kind, a result without the keys that it reads, or another number of
    axes.
    Cost: no forward pass.
    """
    if not isinstance(result, Mapping) or isinstance(ax, Mapping):
        raise ValueError(f'give several results by name: dl.plot("{kind}", {{"a": one, "b": other}}).')
    row = find_kind(kind)
    row = replace(row, limits=limits) if limits else row
    cells, across = cells_of(row, result)
    title = f"{row.title}: {_subject(row, result)}".rstrip(": ") if title is None else title
    if ax is None:
        figure = plt.figure()  # outside the style: a notebook's first figure starts its backend, which keeps settings
        return draw_cells(cells, across, title, figure).axes[0]
    axes = np.asarray(ax, dtype=object).ravel().tolist()
    if len(axes) != len(cells):
        raise ValueError(f"{kind} of this has {len(cells)} panels, and ax has {len(axes)} axes; give one per panel")
    with plt.rc_context(STYLE):
        _draw_into(axes, cells)
        for one, cell in zip(axes, cells, strict=True):
            one.set_title(cell.title or title, parse_math=not title)
            one.set(xlabel=row.xlabel, ylabel=row.ylabel)
            if one.get_legend_handles_labels()[0]:
                one.legend()
    return axes[0]


def by_name(result: Mapping) -> Mapping[str, Mapping]:
    """Several results by their names; one result under ""."""
    return result if result and all(isinstance(one, Mapping) for one in result.values()) else {"": result}


def cells_of(kind: Kind, result: Mapping) -> tuple[list[Cell], int]:
    """The panels of a result, or of several by their names, and how many stand side by side.

    ValueError for a result without the keys that the kind reads.
    """
    results = by_name(result)
    for name, one in results.items():
        if not kind.can_draw(one):
            raise ValueError(
                f"{kind.title} needs {' or '.join(kind.keys)}, and the result {name or 'given'} has {', '.join(one)}; "
                f"it is {kind.probe}'s"
            )
    if isinstance(kind, Curves) and kind.overlays and len(results) > 1:
        return [Cell("", kind, partial(kind.overlay, results=results))], 1
    cells, across = _cells(kind, results.items())
    if isinstance(kind, Heat) and len(results) == 2:
        less = replace(kind, diverging=True, limits=None, percentile=98, colorbar="Difference")
        title, (first, second) = " - ".join(reversed([*results])), map(kind.panels, results.values())
        for part, panel in first.items():
            ((key, before),) = panel.items()
            after = second.get(part, {}).get(key, np.empty(0))
            if after.shape == before.shape:
                draw = partial(Heat.draw, less, panel={key: after - before}, result={})
                cells.append(Cell(f"{title}\n{part}", less, draw))
    return cells, across


def _cells(kind: Kind, results: Iterable[tuple[str, Mapping]]) -> tuple[list[Cell], int]:
    """A panel for each part of each result, by its title, and the number of parts.

    Of an empty result it says that it is missing; where there is no title either, the place stays empty.
    """
    panels = [(title, result, kind.panels(result) if result else {}) for title, result in results]
    parts, cells = dict.fromkeys(part for *_, shown in panels for part in shown), []
    for (title, result, shown), part in product(panels, parts):
        draw = partial(kind.draw, panel=shown[part], result=result) if part in shown else partial(_absent, title)
        cells.append(Cell("\n".join(filter(None, [title, part, kind.note(result)])), kind, draw))
    return cells, len(parts)


def _absent(title: str, ax: Axes) -> None:
    ax.set_visible(bool(title))
    ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center")


def _subject(kind: Kind, result: Mapping) -> str:
    """What a result is about: its model, and its dataset or question, as far as it says."""
    meta = result.get("meta", {})
    about = question_of(result) if kind.of_question else meta.get("dataset")
    return ", ".join(filter(None, [meta.get("model"), about]))


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
    stays empty. datasets: by default those on which any model has this kind; "missing" stands where one model's is not
    there. columns: models side by side. ValueError for an unknown kind; MissingArtifact if the study has nothing of it,
    or nothing on one of the datasets.
    """
    row = find_kind(kind) if isinstance(kind, str) else kind
    results = drawable(row, study, pair, datasets)
    there = {dataset for dataset, _ in results}
    datasets = [name for name in ("", *(datasets or study.datasets)) if name in there]
    runs = [
        (f"{short_name(model)}\n{dataset if len(datasets) > 1 else ''}".strip(), results.get((dataset, model), {}))
        for model, dataset in product(models or study.models, datasets)
    ]
    cells, n_parts = _cells(row, runs)
    of_model = len(datasets) * n_parts
    columns = columns or min(len(cells) // of_model, max(1, (4 if len(cells) <= 16 else 6) // of_model))
    subject = question_of(next(iter(results.values()))) if row.of_question else "".join(datasets[:1])
    title = f"{row.title}: {subject}" if subject and len(datasets) == 1 else row.title
    return draw_cells(cells, columns * of_model, title)


def drawable(kind: Kind, study: Study, pair: str = "", datasets: Sequence[str] = ()) -> dict[tuple[str, str], dict]:
    """The results that a kind draws by dataset and model; of a question, which is the same on every dataset, "".

    MissingArtifact if there are none, or none on one of these datasets.
    """
    found = {
        (dataset, model): result
        for (dataset, model), result in study.of(with_pair(kind.probe, pair)).items()
        if dataset in (datasets or study.datasets) and kind.can_draw(result)
    }
    lacking = " ".join(set(datasets) - {dataset for dataset, _ in found})
    if lacking or not found:
        remedy = command("sweep", DATASETS=lacking, PROBES=kind.probe, OUT=str(study.folder))
        raise MissingArtifact(
            f"no {kind.probe} artifacts for {lacking or kind.title} under {study.folder}; run: {remedy}"
        )
    if not kind.of_question:
        return found
    first = {}
    for (_, model), result in found.items():
        first.setdefault(("", model), result)
    return first


def save_figures(study: Study) -> list[Path]:
    """Write every kind the results allow to `folder/figures/<kind>.pdf` and `.png`; the paths written.

    Kinds about a question have one more for each other pair of the study, `<kind>_<pair>`. Of many runs there is one
    for each dataset, `<kind>_<dataset>`. Bars, lines and text are vectors in the PDF, heat maps images.
    """
    written = []
    for name, pair, dataset in product(KINDS, ("", *study.pairs), ("", *study.datasets)):
        apart = len(study.models) * len(study.datasets) > _ON_A_PAGE and not KINDS[name].of_question
        stem = study.folder / "figures" / "_".join(filter(None, [name, pair, dataset]))
        draw = partial(grid, name, study, pair, datasets=[dataset] if dataset else [])
        written += save_drawn(stem, draw if bool(dataset) == apart else lambda: None)
    return written


def save_drawn(stem: Path, draw: Callable[[], Figure | None]) -> list[Path]:
    """Write what `draw` draws as `stem.png` and `stem.pdf`; old files are deleted if there is nothing to draw."""
    with suppress(MissingArtifact):
        if figure := draw():
            return save(figure, stem)
    for path in _paths(stem):
        path.unlink(missing_ok=True)
    return []


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as `stem.png` and `stem.pdf`; the same results give the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # one layout for both files
        for path in _paths(stem):
            figure.savefig(path, metadata={"CreationDate": None})
    return _paths(stem)


def _paths(stem: Path) -> list[Path]:
    return [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]


def draw_cells(cells: Sequence[Cell], across: int, title: str, figure: Figure | None = None) -> Figure:
    """Draw panels into an empty figure, so many side by side; where all are of one kind it labels the figure."""
    figure = figure or Figure(dpi=DOTS_PER_INCH)
    kind, alike = cells[0].kind, len({cell.kind.ylabel for cell in cells}) == 1
    rows, inches = math.ceil(len(cells) / across), min(WIDTH / across, _WIDEST)
    with plt.rc_context(STYLE):
        figure.set_layout_engine("constrained")
        figure.set_size_inches(across * inches, rows * (kind.aspect * inches + 0.3) + 0.7)
        shared = "row" if alike and not isinstance(kind, Heat) else False
        axes = list(figure.subplots(rows, across, sharey=shared, squeeze=False).flat)
        for ax in axes[len(cells) :]:
            ax.remove()
        _draw_into(axes[: len(cells)], cells)
        for i, (ax, cell) in enumerate(zip(axes, cells, strict=False)):
            lines = [textwrap.fill(line, int(17 * inches)) for line in cell.title.splitlines()]
            ax.set_title("\n".join(lines), fontsize=min(6.5, 6 * inches))
            ax.set_xlabel(cell.kind.xlabel if i >= len(cells) - across else "")
        figure.supylabel(kind.ylabel if alike else "")
        figure.suptitle(textwrap.fill(title, int(13 * across * inches)), parse_math=False)
        add_legend(figure)
    return figure


def _draw_into(axes: Sequence[Axes], cells: Sequence[Cell]) -> None:
    for ax, cell in zip(axes, cells, strict=True):
        cell.draw(ax)
    for kind in {id(cell.kind): cell.kind for cell in cells}.values():
        kind.finish([ax for ax, cell in zip(axes, cells, strict=True) if cell.kind is kind])


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
