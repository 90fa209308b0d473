"""Panels in a figure: of one run, or one for every model × dataset in a folder of results."""

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
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
    figure = plt.figure()  # outside the style: a notebook's first figure starts its backend, which keeps settings
    return draw_grid(row, {("", ""): result}, [""], [""], title=title, figure=figure).axes[0]


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
    kind: Kind,
    results: Results,
    models: list[str],
    datasets: Iterable[str],
    columns: int | None = None,
    title: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """The figure of a kind for these results: models in rows of `columns`, their datasets and panels side by side.

    A question is asked once per model, whatever dataset it ran beside. title: instead of the kind's own with the
    question or the only dataset. figure: an empty one to draw into, such as one that a notebook shows.
    """
    subject, runs = _runs(kind, results, models, datasets)
    panels = [kind.panels(result) if result else {} for _, result in runs]
    names = list(dict.fromkeys(name for shown in panels for name in shown))
    per_model = len(names) * len(runs) // len(models)
    n_tokens = max(len(result.get("tokens") or ()) for result in results.values())
    if columns is None:
        fitting = max(1, int(WIDTH / (per_model * max(_NARROWEST, _PER_TOKEN * n_tokens))))
        if len(names) > 1 and not isinstance(kind, Heat):  # curves in a row have one y axis
            fitting = 1
        # as many as fit without leaving more than a quarter of the places empty
        columns = max(n for n in range(1, fitting + 1) if -len(models) % n <= len(models) / 4)
    across = per_model * columns
    rows, width = math.ceil(len(names) * len(runs) / across), WIDTH if across > 1 else 0.7 * WIDTH
    inches = (width - 0.6) / across  # from panel to panel, about
    with plt.rc_context(STYLE):
        figure = figure or Figure(dpi=DOTS_PER_INCH)
        figure.set_layout_engine("constrained", h_pad=0.02, w_pad=0.02)
        figure.set_figwidth(width)
        places = figure.subplots(rows, across, sharey=False if isinstance(kind, Heat) else "row", squeeze=False).flat
        for ((run, result), shown), name in itertools.product(zip(runs, panels, strict=True), names):
            _draw(kind, next(places), f"{run}\n{name}".strip(), shown.get(name), result, inches)
        for ax in places:
            ax.remove()
        axes, lines = figure.axes, 2 + max(ax.get_title().count("\n") for ax in figure.axes)
        for ax in axes[-across:]:
            ax.set_xlabel(kind.xlabel)
        if rows > 1:
            figure.supylabel(kind.ylabel)
        else:  # at the middle of the axes
            axes[0].set_ylabel(kind.ylabel)
        title = title or f"{kind.title}: {subject}".rstrip(": ")
        figure.suptitle(textwrap.fill(title, int(13 * width)), parse_math=False)
        height = rows * (min(max(kind.aspect * inches, _LOWEST), _TALLEST) + 0.14 * lines) + 0.5
        if isinstance(kind, Heat):
            _add_colorbars(kind, axes, height)
        figure.set_figheight(height + add_legend(figure, axes))
    return figure


def _runs(
    kind: Kind, results: Results, models: list[str], datasets: Iterable[str]
) -> tuple[str, list[tuple[str, dict]]]:
    """The question or dataset that all runs share, else ""; and the name and result, {} if missing, of each run."""
    if kind.of_question:
        of_model = {model: result for (_, model), result in reversed(results.items())}
        return question_of(next(iter(results.values()))), [(model, of_model.get(model, {})) for model in models]
    datasets = [dataset for dataset in datasets if any(has == dataset for has, _ in results)]
    runs = [
        (model if len(datasets) == 1 else f"{model}\n{dataset}", results.get((dataset, model), {}))
        for model, dataset in itertools.product(models, datasets)
    ]
    return datasets[0] if len(datasets) == 1 else "", runs


def add_legend(figure: Figure, axes: Iterable[Axes]) -> float:
    """Name under the panels what they drew, each name once; the height in inches that this takes."""
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


def _draw(kind: Kind, ax: Axes, title: str, panel: Panel | None, result: Mapping, inches: float) -> None:
    title = short_name(title)
    longest = max(map(len, title.split("\n")))
    ax.set_title(title, fontsize=min(7.5, 110 * inches / max(longest, 1)), pad=4, parse_math=False)
    if panel:
        kind.draw(ax, panel, result)
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
