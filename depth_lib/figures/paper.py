"""The figures of Hu et al. 2025 by name, laid out as there, from whatever models are present.

Seven figures over GSM8K: sizes from left to right, R1-distilled, instruct and base models from top to bottom, 3 × 4
for the paper's twelve. Three over GSM8K and HellaSwag: the same grid, each model's two datasets side by side, 3 × 8.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..results.artifacts import MissingArtifact
from ..results.study import TRAINING, Study, read_name
from .grids import save
from .kinds import KINDS, STYLE, Kind

_ALONE, _BOTH = ("gsm8k",), ("gsm8k", "hellaswag")
_WIDTH, _DOTS_PER_INCH = 6.9, 200

# By dataset and what is shown: the kind of panel and the datasets.
PAPER_FIGURES = {
    "gsm8k_cosine_similarity": ("cosine", _ALONE),
    "gsm8k_layer_effects": ("layer_effects", _ALONE),
    "gsm8k_output_change": ("output_change", _ALONE),
    "gsm8k_logit_lens_kl": ("lens_kl", _ALONE),
    "gsm8k_logit_lens_overlap": ("lens_overlap", _ALONE),
    "gsm8k_residual_erasure": ("residual_erasure", _ALONE),
    "gsm8k_integrated_gradients": ("integrated_gradients", _ALONE),
    "gsm8k_hellaswag_cosine_similarity": ("cosine", _BOTH),
    "gsm8k_hellaswag_logit_lens_kl": ("lens_kl", _BOTH),
    "gsm8k_hellaswag_logit_lens_overlap": ("lens_overlap", _BOTH),
}


def paper_figure(name: str, study: Study) -> Figure:
    """One figure of the paper, such as "gsm8k_hellaswag_logit_lens_kl" (`PAPER_FIGURES` has them all).

    A row a training type where every type has every size, as the paper's twelve
    models do; else rows of four. 7.2 inches wide, as it is printed. KeyError for another name; MissingArtifact if one
    of the figure's datasets has no result of the kind.
    """
    kind_name, datasets = PAPER_FIGURES[name]
    kind = KINDS[kind_name]
    models, columns = _as_in_the_paper(study.models)
    results = {run: result for run, result in study.of(kind.probe).items() if run[0] in datasets}
    if lacking := [dataset for dataset in datasets if not any(has == dataset for has, _ in results)]:
        raise MissingArtifact(
            f"no {kind.probe} artifacts for {', '.join(lacking)} under {study.folder}; run: make sweep "
            f'DATASETS="{" ".join(lacking)}" PROBES={kind.probe} OUT={study.folder}'
        )
    return _draw(kind, results, models, datasets, columns)


def save_paper_figures(study: Study) -> list[Path]:
    """Write every figure of the paper that the results allow to `folder/figures/paper/<name>.pdf` and `.png`."""
    written = []
    for name in PAPER_FIGURES:
        try:
            figure = paper_figure(name, study)
        except MissingArtifact:
            continue
        written += save(figure, study.folder / "figures" / "paper" / name)
    return written


def _as_in_the_paper(models: list[str]) -> tuple[list[str], int]:
    """Models ordered by training type, then size, and how many stand side by side."""
    named = {model: read_name(model) for model in models}
    ordered = sorted(models, key=lambda m: (TRAINING.index(named[m].training), named[m].billions or 0, models.index(m)))
    sizes = {kind: tuple(named[m].billions for m in ordered if named[m].training == kind) for kind in TRAINING}
    rows = {row for row in sizes.values() if row}
    if len(rows) == 1 and len(models) > len(*rows):
        return ordered, len(*rows)
    return models, min(len(models), 4)


def _draw(kind: Kind, results: dict, models: list[str], datasets: tuple[str, ...], columns: int) -> Figure:
    """The grid, with places in inches: letters have their printed size, so what they need is known beforehand."""
    rows, across = math.ceil(len(models) / columns), columns * len(datasets)
    cell = min(_WIDTH / across, 4.4)
    letters = min(6.5, max(4.5, 3.5 * cell))
    height = cell * (0.95 if kind.colorbar else 0.62) * (1.35 if kind.over_tokens else 1)
    left, top, bottom, line = 0.3, 0.3, 0.3 if kind.legend() else 0.05, letters / 72
    style = STYLE | {
        "axes.titlesize": letters,
        "xtick.labelsize": letters - 0.5,
        "ytick.labelsize": letters - 0.5,
        "xtick.major.size": 1.5,
        "ytick.major.size": 1.5,
        "xtick.major.pad": 1.5,
        "ytick.major.pad": 1.5,
    }
    numbers = (2.4 if kind.colorbar or cell < 1.2 else 4) * line  # room for the longest number beside an axis
    aside = numbers + (0.8 + 4.6 * bool(kind.colorbar and not kind.shared_scale)) * line
    title_lines, below = len(datasets), (4.5 if kind.over_tokens else 2.2) * line
    row = height + (1.6 + 1.3 * (title_lines - 1)) * line + below
    width, tall = left + cell * across + 0.55 * bool(kind.colorbar and kind.shared_scale), top + rows * row + bottom
    with plt.rc_context(style):
        figure = Figure(figsize=(width, tall), dpi=_DOTS_PER_INCH)
        for i, model in enumerate(models):
            for j, dataset in enumerate(datasets):
                x = left + cell * (i % columns * len(datasets) + j) + numbers
                y = tall - top - row * (i // columns + 1) + below
                ax = figure.add_axes((x / width, y / tall, (cell - aside) / width, height / tall))
                title = (model, dataset)[:title_lines]
                _panel(ax, kind, results.get((dataset, model)), title, cell - aside, letters)
                if i + columns >= len(models):
                    ax.set_xlabel(kind.xlabel, fontsize=letters + 0.5, labelpad=1)
        _frame(figure, kind, datasets)
    return figure


def _panel(ax: Axes, kind: Kind, result: dict | None, title: tuple[str, ...], inches: float, letters: float) -> None:
    lines = [line.replace("DeepSeek-R1-Distill-", "DS-R1-") for line in title]  # as in the paper
    fits = min(letters + 1, 1.1 * inches * 72 / (0.58 * max(map(len, lines))))
    ax.set_title("\n".join(lines), fontsize=fits, pad=2, y=1.0, parse_math=False)
    if result is None:
        ax.set(xticks=[], yticks=[])
        ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center", va="center", color="grey")
        return
    image = kind.draw(ax, result)
    if inches < 1.2:
        ax.yaxis.set_major_locator(MaxNLocator(3))
        if not kind.over_tokens:
            ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    if kind.colorbar and not kind.shared_scale:
        cax = ax.inset_axes((1 + 0.04 / inches, 0, 0.06 / inches, 1))
        bar = ax.figure.colorbar(image, cax=cax, ticks=MaxNLocator(4))
        bar.outline.set_linewidth(0.4)
        bar.ax.tick_params(pad=1, size=1.5)


def _frame(figure: Figure, kind: Kind, datasets: tuple[str, ...]) -> None:
    width, tall = figure.get_size_inches()
    figure.suptitle(f"{kind.title}, {' and '.join(datasets)}", y=1 - 0.04 / tall, va="top")
    figure.supylabel(kind.ylabel, x=0.06 / width, fontsize=8)
    handles = kind.legend()
    if handles:
        figure.legend(
            handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=7, borderaxespad=0.1
        )
    images = [image for ax in figure.axes for image in ax.get_images()]
    if kind.colorbar and kind.shared_scale and images:
        cax = figure.add_axes((1 - 0.52 / width, 0.25, 0.08 / width, 0.5))
        bar = figure.colorbar(images[0], cax=cax, extend="max", label=kind.colorbar)
        bar.outline.set_linewidth(0.4)
