"""The papers' figures by their numbers or names: which call draws Figure 3a?"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from nnsight import TransformersModel

from . import api
from .data.prompts import ANSWER, QUESTION, load_prompts
from .effective_depth.published import published_depths
from .figures import KINDS, PAPER_FIGURES, grid, paper_figure, plot
from .figures.grid import short_name
from .figures.marks import GREY
from .results.schemas import of_pair
from .results.study import Study


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper: what it is called there, the kind of `KINDS` that draws it and its keys."""

    title: str
    kind: str
    keys: tuple[str, ...] = ()


# Of Csordás et al. 2025 (arXiv 2505.13898), numbered as nnsight's own reproduction of it cites them.
FIGURES = {
    "2a": PaperFigure("Relative contribution of each layer to the residual stream", "relative_contribution"),
    "2b": PaperFigure("Cosine similarity of contributions with the residual stream", "cosine"),
    "3a": PaperFigure(
        "Effect of skipping a layer on later layers, future tokens", "layer_effects", ("max_future_layer",)
    ),
    "3b": PaperFigure("Effect of skipping a layer on the output, future tokens", "output_change", ("max_future_out",)),
    "4a": PaperFigure("Logit lens: KL divergence from the output", "lens_kl"),
    "4b": PaperFigure("Logit lens: overlap of the top five tokens with the output's", "lens_overlap"),
    "6a": PaperFigure("Integrated gradients", "integrated_gradients"),
    "6b": PaperFigure("Residual erasure", "residual_erasure"),
}


def paper(figure: str, of: TransformersModel | Mapping | str | Path) -> Figure:
    """Draw a figure of either paper, of a model, of a result, or of a folder of results.

    >>> dl.paper("4a", dl.load_model("toy-4l")).axes[0].get_xlabel()
    'Input of block $l$'

    figure: a number of Csordás et al. 2025 ("2a", "2b", "3a", "3b", "4a", "4b", "6a", "6b"), or a name of
    Hu et al. 2025, such as "gsm8k_logit_lens_kl" (`PAPER_FIGURES`). of: a model from `load_model`, on which the probe
    is run with ten GSM8K prompts that ship; what the probe returned; or a study's folder (for a name always).
    Where Hu et al. publish a depth for a panel's model and dataset, a grey line marks it.

    ValueError for an unknown figure, a result of another probe, or a name without a folder; MissingArtifact for a
    folder without its results.
    Cost: of a model, its probe on these prompts; else no forward pass.
    """
    if figure not in FIGURES and figure not in PAPER_FIGURES:
        raise ValueError(f"no figure is called {figure!r}; there are {', '.join((*FIGURES, *PAPER_FIGURES))}")
    folder = of if isinstance(of, str | Path) else None
    if figure in PAPER_FIGURES:
        if folder is None:
            raise ValueError(
                f'{figure} has a panel per model: give a folder of results, dl.paper("{figure}", "outputs").'
            )
        study = Study(folder)
        drawn = paper_figure(figure, study)
        _mark_published(drawn, figure, study)
        return drawn
    row = FIGURES[figure]
    results = _of_folder(row, folder) if folder is not None else of
    if isinstance(of, TransformersModel):
        results = _measured(row, of)
    if row.keys:
        results = _only(results, row.keys)
    return plot(row.kind, results, title=f"Figure {figure}. {row.title}").figure


def _of_folder(row, folder):
    """One result by the name of each model and dataset."""
    study, probe = Study(folder), KINDS[row.kind].probe
    found = study.of(of_pair(probe, ""))
    if not found:
        grid(row.kind, study)  # which says what is missing
    if len(found) == 1:
        return next(iter(found.values()))
    return {f"{model}, {dataset}": result for (dataset, model), result in found.items()}


def _measured(row, llm):
    prompts = load_prompts("gsm8k", 10, source="sample")
    probe = KINDS[row.kind].probe
    if probe == "residual_erasure":
        return api.residual_erasure(llm, QUESTION, ANSWER, prompts)
    if probe == "integrated_gradients":
        return api.integrated_gradients(llm, QUESTION, ANSWER)
    return getattr(api, probe)(llm, prompts)


def _only(results, keys):
    """A result, or each of several, with these of the keys that the figure draws."""
    if all(isinstance(one, Mapping) for one in results.values()):
        return {name: _only(one, keys) for name, one in results.items()}
    return {key: value for key, value in results.items() if key in keys or not key.startswith("max_")}


def _mark_published(figure, name, study):
    """A grey line at the depth that Hu et al. publish for the model and dataset of each panel."""
    kind, datasets = PAPER_FIGURES[name]
    published = published_depths().set_index(["metric", "model", "dataset"]).ed
    metric = getattr(KINDS[kind], "metric", "")
    for ax in figure.axes:
        lines = ax.get_title().replace("\n", " ")
        for model in study.models:
            for dataset in datasets:
                here = lines.split(" ")[0] == short_name(model) and (len(datasets) == 1 or dataset in lines)
                if here and (metric, model, dataset) in published.index:
                    ax.axvline(published[metric, model, dataset], color=GREY, linewidth=2, alpha=0.5, label="published")
