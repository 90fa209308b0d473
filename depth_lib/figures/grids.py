"""The papers' figures, a kind a figure: one panel for every model × dataset in a folder of results."""

import io
import math
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from ..disk import write_together
from ..results.artifacts import MissingArtifact
from ..results.study import Study
from .kinds import KINDS, STYLE, Kind, add_colorbar, panel_size

_DOTS_PER_INCH = 160
_ASPECT = 1.35  # width : height that a screen and a landscape page show well


def cosine_figure(study: Study, columns: int | None = None) -> Figure:
    """Cosine similarity of contributions with the residual stream, three bars a layer (`plots.plot_cosine`).

    Here and below: one panel a model × dataset of the study, `columns` models side by side (default: what makes the
    figure a page), "missing" where one is not there. MissingArtifact if the study has nothing of the kind.
    """
    return _grid("cosine", study, columns)


def relative_contribution_figure(study: Study, columns: int | None = None) -> Figure:
    """Relative contribution to the residual stream (`plots.plot_relative_contribution`)."""
    return _grid("relative_contribution", study, columns)


def layer_effects_figure(study: Study, columns: int | None = None) -> Figure:
    """Effect of skipping a layer on later layers (`plots.plot_layer_effects`)."""
    return _grid("layer_effects", study, columns)


def output_change_figure(study: Study, columns: int | None = None) -> Figure:
    """Effect of skipping a layer on the output distribution (`plots.plot_output_change`)."""
    return _grid("output_change", study, columns)


def lens_kl_figure(study: Study, columns: int | None = None) -> Figure:
    """KL divergence of the logit lens from the output (`plots.plot_lens_kl`)."""
    return _grid("lens_kl", study, columns)


def lens_overlap_figure(study: Study, columns: int | None = None) -> Figure:
    """Top-5 overlap of the logit lens with the output (`plots.plot_lens_overlap`)."""
    return _grid("lens_overlap", study, columns)


def residual_erasure_figure(study: Study, columns: int | None = None) -> Figure:
    """Residual erasure, layers × tokens (`plots.plot_residual_erasure`)."""
    return _grid("residual_erasure", study, columns)


def integrated_gradients_figure(study: Study, columns: int | None = None) -> Figure:
    """Integrated gradients, layers × tokens (`plots.plot_integrated_gradients`)."""
    return _grid("integrated_gradients", study, columns)


FIGURES = {
    "cosine": cosine_figure,
    "relative_contribution": relative_contribution_figure,
    "layer_effects": layer_effects_figure,
    "output_change": output_change_figure,
    "lens_kl": lens_kl_figure,
    "lens_overlap": lens_overlap_figure,
    "residual_erasure": residual_erasure_figure,
    "integrated_gradients": integrated_gradients_figure,
}


def save_figures(study: Study) -> list[Path]:
    """Write every figure the results allow to `folder/figures/<kind>.pdf` and `.png`; the paths written.

    Bars and text are vectors in the PDF, heat maps are images.
    """
    written: list[Path] = []
    for name in FIGURES:
        if results := study.of(KINDS[name].probe):
            figure = _panels(KINDS[name], results, study.models, study.datasets)
            written += save(figure, study.folder / "figures" / name)
    return written


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as `stem.png` and `stem.pdf`, both from one layout: `savefig` would work it out twice for each."""
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


def _grid(name: str, study: Study, columns: int | None) -> Figure:
    kind = KINDS[name]
    results = study.of(kind.probe)
    if not results:
        raise MissingArtifact(
            f"no {kind.probe} artifacts under {study.folder}; run: make sweep PROBES={kind.probe} OUT={study.folder}"
        )
    return _panels(kind, results, study.models, study.datasets, columns)


def _panels(
    kind: Kind, results: dict[tuple[str, str], dict], models: list[str], datasets: list[str], columns: int | None = None
) -> Figure:
    """One panel a model × dataset, for the datasets on which any model has this kind of result."""
    datasets = [dataset for dataset in datasets if any(has == dataset for has, _ in results)]
    size = panel_size(kind, list(results.values()))
    side_by_side = columns or _columns(len(models), len(datasets), size)
    rows, width = math.ceil(len(models) / side_by_side), side_by_side * len(datasets)
    scale = 1.8 if len(models) * len(datasets) == 1 else 1.0
    with plt.rc_context(STYLE):
        figure = Figure(
            figsize=(scale * size[0] * width + 0.4, scale * size[1] * rows + 0.7),
            layout="constrained",
            dpi=_DOTS_PER_INCH,
        )
        grid = figure.subplots(rows, width, squeeze=False)
        shown = []
        for i, model in enumerate(models):
            for j, dataset in enumerate(datasets):
                ax = grid[i // side_by_side, i % side_by_side * len(datasets) + j]
                shown.append(ax)
                # A title with a place of its own is not measured against the ticks at each draw; slow.
                ax.set_title(f"{model}\n{dataset}" if len(datasets) > 1 else model, y=1.0, parse_math=False)
                _panel(ax, kind, results.get((dataset, model)))
        for ax in set(grid.flat) - set(shown):
            ax.remove()
        _frame(figure, kind, shown, datasets)
    return figure


def _panel(ax: Axes, kind: Kind, result: dict | None) -> None:
    if result is None:
        ax.set(xticks=[], yticks=[])
        ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center", va="center", color="grey")
        return
    image = kind.draw(ax, result)
    if kind.colorbar and not kind.shared_scale:
        add_colorbar(image, ax, kind)


def _frame(figure: Figure, kind: Kind, shown: list[Axes], datasets: list[str]) -> None:
    """What all panels share: title, axis labels, legend, colour bar."""
    figure.suptitle(kind.title if len(datasets) > 1 else f"{kind.title}, {datasets[0]}")
    lowest = {ax.get_subplotspec().colspan.start: ax for ax in shown}.values()  # the last panel of each column
    for ax in shown:
        ax.yaxis.set_label_coords(0, 0)  # nor need empty labels a place found for them
        if ax in lowest:
            ax.set_xlabel(kind.xlabel)
        else:
            ax.xaxis.set_label_coords(0, 0)
    figure.supylabel(kind.ylabel, fontsize=9)
    handles = kind.legend()
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    images = [image for ax in shown for image in ax.get_images()]
    if kind.colorbar and kind.shared_scale and images:
        add_colorbar(images[0], shown, kind, shrink=0.6, aspect=30, pad=0.01)


def _columns(n_models: int, n_datasets: int, size: tuple[float, float]) -> int:
    """How many models side by side bring the figure nearest to a page, with few empty places."""

    def cost(columns: int) -> float:
        rows = math.ceil(n_models / columns)
        aspect = columns * n_datasets * size[0] / (rows * size[1])
        return abs(math.log(aspect / _ASPECT)) + (rows * columns - n_models) / n_models

    return min(range(1, n_models + 1), key=cost)
