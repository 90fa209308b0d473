"""One panel for every model × dataset in a folder of results, a figure a kind."""

import io
import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from ..files import write_together
from ..results.schemas import MissingArtifact, of_pair
from ..results.study import Study
from .kind import Kind
from .kinds import KINDS, find_kind
from .layout import STYLE, Cell, lay_out

Results = Mapping[tuple[str, str], dict]

_SMALLEST = 4.5  # inches wide
_ASPECT = 1.35  # width : height that a screen and a landscape page show well


def grid(kind: str, study: Study, columns: int | None = None) -> Figure:
    """One kind of figure (a name in `KINDS`) with a panel for every model × dataset of a study.

    Datasets on which no model has this kind are left out; "missing" stands where one model's is not there. columns:
    models side by side; default: what makes the figure a page with few empty places. ValueError for an unknown kind;
    MissingArtifact if the study has nothing of it.
    """
    row = find_kind(kind)
    results = drawable(row, study)
    if not results:
        raise MissingArtifact(
            f"no {row.probe} artifacts under {study.folder} for {kind}; run: make sweep PROBES={row.probe} "
            f"OUT={study.folder}"
        )
    return draw_grid(row, results, study.models, study.datasets, columns)


def save_figures(study: Study) -> list[Path]:
    """Write every kind the results allow to `folder/figures/<kind>.pdf` and `.png`; the paths written.

    Kinds about a question have one more for each other pair of the study, `<kind>_<pair>`. What another figure shows
    too is not drawn once more. Bars, lines and text are vectors in the PDF, heat maps images.
    """
    found = {name: results for name, kind in KINDS.items() if (results := drawable(kind, study))}
    shown = {part for name in found for part in KINDS[name].shows if found[part].keys() == found[name].keys()}
    written = []
    for name, kind in KINDS.items():
        drawn = name in found and name not in shown
        figure = draw_grid(kind, found[name], study.models, study.datasets) if drawn else None
        written += save(figure, study.folder / "figures" / name)
    for pair, (name, kind) in itertools.product(study.pairs, KINDS.items()):
        if kind.of_question and (results := drawable(kind, study, pair)):
            written += save(
                draw_grid(kind, results, study.models, study.datasets), study.folder / "figures" / f"{name}_{pair}"
            )
    return written


def save(figure: Figure | None, stem: Path) -> list[Path]:
    """Write a figure as `stem.png` and `stem.pdf`, both from one layout: `savefig` would work it out twice for each.

    None removes what a study drew there when it had other results.
    """
    if figure is None:
        for ending in (".png", ".pdf"):
            stem.with_name(stem.name + ending).unlink(missing_ok=True)
        return []
    stem.parent.mkdir(parents=True, exist_ok=True)
    if figure.get_layout_engine() is not None:
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
    png, pdf = io.BytesIO(), io.BytesIO()
    with plt.rc_context(STYLE):
        FigureCanvasAgg(figure).print_png(png)
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})
    contents = {stem.with_name(f"{stem.name}.png"): png.getvalue(), stem.with_name(f"{stem.name}.pdf"): pdf.getvalue()}
    write_together(contents)
    return list(contents)


def drawable(kind: Kind, study: Study, pair: str = "") -> Results:
    """(dataset, model) -> result, of those results that have all keys of a kind; pair: about this question."""
    return {run: result for run, result in study.of(of_pair(kind.probe, pair)).items() if kind.can_draw(result)}


def draw_grid(
    kind: Kind, results: Results, models: list[str], datasets: Iterable[str], columns: int | None = None
) -> Figure:
    """The figure of a kind for results that have its keys: models in rows of `columns`, their datasets side by side."""
    width, height = kind.size
    n_tokens = max((len(result.get("tokens") or ()) for result in results.values()), default=0)
    width = max(width, min(0.11 * n_tokens, 5.0)) + (0.6 if kind.own_scale else 0.1)
    cells, per_model, title = cells_of(kind, results, models, datasets)
    columns = columns or _columns(len(models), per_model * width, height + 0.4)
    larger = max(1.0, _SMALLEST / (columns * per_model * width))  # few panels make a figure too
    return lay_out(cells, columns * per_model, (width * larger, height * larger), title)


def cells_of(
    kind: Kind, results: Results, models: Iterable[str], datasets: Iterable[str]
) -> tuple[list[Cell], int, str]:
    """A cell a model × dataset × part of the kind, how many a model has, and the title.

    What all panels are about, a dataset or a question, stands in the title, else in the second line of each. A question
    is asked once a model, whatever dataset it ran beside.
    """
    datasets = [dataset for dataset in datasets if any(has == dataset for has, _ in results)]
    if kind.of_question:
        ran = {model: dataset for dataset in reversed(datasets) for has, model in results if has == dataset}
        places = [(ran.get(model, ""), model) for model in models]
    else:
        places = [(dataset, model) for model in models for dataset in datasets]
    about = {place: kind.subject(results[place]) or place[0] for place in places if place in results}
    one = next(iter(about.values())) if len({*about.values()}) == 1 else ""
    cells = []
    for place, part in itertools.product(places, kind.parts()):
        second = ("" if one else about.get(place, place[0]), part.short if kind.together else "")
        lines = (place[1], ", ".join(filter(None, second)))
        cells.append(Cell(tuple(filter(None, lines)), part, results.get(place)))
    every = "" if kind.of_question or len(datasets) > 3 else ", ".join(datasets)
    return cells, len(cells) // len(models), ": ".join(filter(None, (kind.title, one or every)))


def _columns(n_models: int, width: float, height: float) -> int:
    """How many models side by side bring the figure nearest to a page, with few empty places."""

    def cost(columns: int) -> float:
        rows = math.ceil(n_models / columns)
        return abs(math.log(columns * width / (rows * height) / _ASPECT)) + 4 * (1 - n_models / (rows * columns))

    return min(range(1, n_models + 1), key=cost)
