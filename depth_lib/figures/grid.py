"""Panels in a figure: of one run, or one for every model × dataset in a folder of results."""

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..files import write_together
from ..params import command
from ..results.schemas import MissingArtifact, of_pair
from ..results.study import Study
from .kinds import KINDS, find_kind
from .marks import STYLE, Kind, question_of

Results = Mapping[tuple[str, str], dict]

WIDTH = 7.2  # inches: two columns of a paper, the text of a page
DOTS_PER_INCH = 160
_WIDEST = 4.5  # inches, of a panel
_IN_A_ROW = 4  # panels, or those of one model


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
    return draw_grid(figure, row, {("", ""): result}, [""], [""], title=title).axes[0]


def grid(
    kind: str | Kind,
    study: Study,
    pair: str = "",
    models: Sequence[str] = (),
    datasets: Sequence[str] = (),
    columns: int | None = None,
) -> Figure:
    """One kind of figure (a name in `KINDS`) with a panel for every model × dataset of a study.

    pair: of the study's `pairs`, which question a kind about one is about. datasets: by default those on which any
    model has this kind; "missing" stands where one model's is not there. columns: models side by side. ValueError for
    an unknown kind; MissingArtifact if the study has nothing of it, or nothing on one of the datasets.
    """
    row = find_kind(kind) if isinstance(kind, str) else kind
    results = {run: result for run, result in study.of(of_pair(row.probe, pair)).items() if row.can_draw(result)}
    known = {dataset for dataset, _ in results}
    lacking = " ".join(dataset for dataset in datasets if dataset not in known)
    if lacking or not known:
        remedy = command("sweep", DATASETS=lacking, PROBES=row.probe, OUT=str(study.folder))
        raise MissingArtifact(f"no {row.probe} artifacts for {lacking or kind} under {study.folder}; run: {remedy}")
    datasets = datasets or [dataset for dataset in study.datasets if dataset in known]
    return draw_grid(Figure(dpi=DOTS_PER_INCH), row, results, models or study.models, datasets, columns)


def save_figures(study: Study) -> list[Path]:
    """Write every kind the results allow to `folder/figures/<kind>.pdf` and `.png`; the paths written.

    Kinds about a question have one more for each other pair of the study, `<kind>_<pair>`. Bars, lines and text are
    vectors in the PDF, heat maps images.
    """
    written = []
    for name, pair in product(KINDS, ("", *study.pairs)):
        stem = study.folder / "figures" / (f"{name}_{pair}" if pair else name)
        written += save_drawn(stem, grid, name, study, pair)
    return written


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


def draw_grid(
    figure: Figure,
    kind: Kind,
    results: Results,
    models: Sequence[str],
    datasets: Sequence[str],
    columns: int | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a kind of these results into an empty figure: models in `columns`, their datasets and panels side by side.

    A kind about a question has one panel per model, since the question is the same on every dataset. title: instead of
    the kind's own with the question or the only dataset.
    """
    subject = datasets[0] if len(datasets) == 1 else ""
    if kind.of_question:
        subject = question_of(next(iter(results.values())))
        results = {("", model): result for (dataset, model), result in reversed(results.items()) if dataset in datasets}
        datasets = [""]
    panels = {run: kind.panels(result) for run, result in results.items()}
    names = list(dict.fromkeys(name for shown in panels.values() for name in shown))
    per_model = len(datasets) * len(names)
    columns = columns or max(1, min(len(models), _IN_A_ROW // per_model))
    across, rows = columns * per_model, math.ceil(len(models) / columns)
    inches = min(WIDTH / across, _WIDEST)
    with plt.rc_context(STYLE):
        figure.set_layout_engine("constrained")
        figure.set_size_inches(across * inches, rows * (kind.aspect * inches + 0.3) + 0.7)
        axes = figure.subplots(rows, across, sharey="row" if kind.comparable else False, squeeze=False).ravel()
        for ax, (model, dataset, name) in zip(axes, product(models, datasets, names), strict=False):
            lines = [textwrap.fill(short_name(model), int(17 * inches)), dataset if len(datasets) > 1 else "", name]
            if panel := panels.get((dataset, model), {}).get(name):
                kind.draw(ax, panel, results[dataset, model])
                lines.append(kind.note(results[dataset, model]))
            else:
                ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center")
            ax.set_title("\n".join(filter(None, lines)), fontsize=min(6.5, 6 * inches))
        for ax in axes[len(models) * per_model :]:
            ax.remove()
        for ax in figure.axes[-across:]:
            ax.set_xlabel(kind.xlabel)
        figure.supylabel(kind.ylabel)
        title = title or f"{kind.title}: {subject}".rstrip(": ")
        figure.suptitle(textwrap.fill(title, int(13 * across * inches)), parse_math=False)
        kind.finish(figure.axes)
        add_legend(figure)
    return figure


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
