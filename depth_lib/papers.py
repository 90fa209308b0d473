"""The papers' figures by their numbers or names: which call draws Figure 3a?"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from nnsight import TransformersModel

import depth_lib

from .data.examples import load_examples
from .data.pairs import find_pair
from .data.prompts import load_prompts
from .effective_depth.published import published_depths
from .figures import KINDS, PAPER_FIGURES, grid, linear_maps_figure, paper_figure, plot
from .figures.grid import short_name
from .figures.marks import GREY
from .results.schemas import with_pair
from .results.study import Study


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper: what it is called there, the kind of `KINDS` that draws it, and of several keys its own.

    about: the question pair of erasure and gradients, or the dataset of levels of difficulty.
    """

    title: str
    kind: str
    key: str = ""
    about: str = ""


_SKIP, _LOCAL = "Effect of skipping a layer on later layers", "Local effect of a layer on later layers"
_SUM, _TWO_HOPS = "a math question", "a two-hop question"
# Of Csordás et al. 2025 (arXiv 2505.13898), numbered as at NeurIPS 2025; 15 to 17 are in its appendix.
FIGURES = {
    "2a": PaperFigure("Relative norm of layer and sublayer contributions", "relative_contribution"),
    "2b": PaperFigure("Cosine similarity of contributions with the residual stream", "cosine"),
    "3a": PaperFigure(f"{_SKIP}, all tokens", "layer_effects", "max_all_layer"),
    "3b": PaperFigure(f"{_SKIP}, future tokens", "layer_effects", "max_future_layer"),
    "4a": PaperFigure("Logit lens: KL divergence from the output", "lens_kl"),
    "4b": PaperFigure("Logit lens: overlap of the top five tokens with the output's", "lens_overlap"),
    "5a": PaperFigure(f"{_LOCAL}, all tokens", "local_effects", "max_all_local"),
    "5b": PaperFigure(f"{_LOCAL}, future tokens", "local_effects", "max_future_local"),
    "6a": PaperFigure(f"Integrated gradients on {_SUM}", "integrated_gradients", about="sum"),
    "6b": PaperFigure(f"Residual erasure on {_SUM}", "residual_erasure", about="sum"),
    "6c": PaperFigure(f"Integrated gradients on {_TWO_HOPS}", "integrated_gradients", about="spouse"),
    "6d": PaperFigure(f"Residual erasure on {_TWO_HOPS}", "residual_erasure", about="spouse"),
    "7a": PaperFigure("Depth score by difficulty of MATH", "depth_score_by_level", about="math"),
    "7b": PaperFigure("Depth score by hops of MQuAKE", "depth_score_by_level", about="mquake"),
    "8": PaperFigure("Linear maps from a shallow model to a deep one", "linear_maps"),
    "15": PaperFigure("Norms of the residual stream and of contributions", "norms"),
    "16": PaperFigure("Cosine similarity of the residual stream at neighbouring layers", "io_cos"),
    "17a": PaperFigure("Effect of skipping a layer on the output, all tokens", "output_change", "max_all_out"),
    "17b": PaperFigure("Effect of skipping a layer on the output, future tokens", "output_change", "max_future_out"),
}
# The paper's figures that no call draws, and why.
NOT_DRAWN = {
    "1": "it shows benchmark scores of 132 models over their depth, which no probe measures",
    "9": "it compares erasure in two trained models, a Transformer and a MoEUT; draw 6b of each of yours",
}
HU = {"hu6": "gsm8k_hellaswag_layer_effects", "hu7": "gsm8k_hellaswag_output_change"}


def paper(figure: str | int, of: TransformersModel | Mapping | str | Path) -> Figure:
    """Draw a figure of either paper, of a model, of a result, or of a folder of results.

    >>> dl.paper("4a", dl.load_model("toy-4l")).axes[0].get_xlabel()
    'Input of block $l$'

    figure: a number of Csordás et al. 2025 (`papers.FIGURES`: "2a" to "8", and of the appendix "15" to "17b"), or a
    name of Hu et al. 2025, such as "gsm8k_logit_lens_kl" (`PAPER_FIGURES`; "hu6" and "hu7" are their Figures 6 and 7).
    of: a model from `load_model`, on which the probe is run with ten GSM8K prompts that ship (6: on the papers'
    question, with these as erasure's baseline; 7: on the shipped questions of each level); or what the
    probe returned (8: `linear_maps`, always); or a study's folder (Hu et al.'s: always). In figures of Hu et al. a grey
    line marks the depth published for a panel's model and dataset.

    ValueError for an unknown figure, one that nothing draws, a result of another probe, or a name without a folder;
    MissingArtifact for a folder without its results.
    Cost: of a model, its probe on these prompts; else no forward pass.
    """
    figure = re.sub(r"(?i)^fig(ure|\.)?\s*", "", str(figure))
    name = HU.get(figure, figure)
    if figure in NOT_DRAWN:
        raise ValueError(f"Figure {figure} is not drawn: {NOT_DRAWN[figure]}.")
    folder = of if isinstance(of, str | Path) else None
    if not isinstance(of, str | Path | Mapping | TransformersModel) or (folder and not Path(folder).is_dir()):
        raise ValueError(f"{of!r} is no folder of results; give one, a model of dl.load_model, or a probe's result.")
    if name in PAPER_FIGURES:
        if folder is None:
            raise ValueError(
                f'{figure} has a panel per model: give a folder of results, dl.paper("{figure}", "outputs").'
            )
        study = Study(folder)
        drawn = paper_figure(name, study)
        _mark_published(drawn, name, study)
        return drawn
    if figure not in FIGURES:
        parts = [part for part in FIGURES if part.startswith(figure)] or [*FIGURES, *HU, *PAPER_FIGURES]
        raise ValueError(f"no figure is called {figure!r}; there are {', '.join(parts)}")
    row, title = FIGURES[figure], f"Figure {figure}. {FIGURES[figure].title}"
    if row.kind == "linear_maps":
        if not isinstance(of, Mapping) or "relative" not in of:
            raise ValueError(f'Figure {figure} is of two models: dl.paper("8", dl.linear_maps(shallow, deep, texts)).')
        drawn = linear_maps_figure(of, "the shallow model", "the deep model")
        drawn.suptitle(title)
        plt.close(drawn)
        return drawn
    results = _of_folder(row, folder) if folder is not None else of
    if isinstance(of, TransformersModel):
        results = _measured(row, of)
    drawn = cast(Figure, plot(row.kind, _only(results, row.key), title=title).figure)
    plt.close(drawn)  # a notebook would show it once as pyplot's, and once as what is returned
    return drawn


def _of_folder(row, folder):
    """One result by the name of each model and dataset."""
    kind, study = KINDS[row.kind], Study(folder)
    pair = find_pair(row.about).label if kind.of_question else ""
    datasets = [row.about] if row.about and not kind.of_question else []
    found = study.of(with_pair(kind.probe, pair))
    found = {run: one for run, one in found.items() if run[0] in (datasets or study.datasets)}
    if not found:
        grid(row.kind, study, pair, datasets=datasets)  # which says what is missing
    if len(found) == 1:
        return next(iter(found.values()))
    return {f"{model}, {dataset}": result for (dataset, model), result in found.items()}


def _measured(row, llm):
    probe = KINDS[row.kind].probe
    if probe == "depth_by_difficulty":
        return depth_lib.depth_by_difficulty(llm, load_examples(row.about, source="embedded"))
    prompts = load_prompts("gsm8k", 10, source="sample", llm=llm)
    if KINDS[row.kind].of_question:
        pair = find_pair(row.about)
        if probe == "residual_erasure":
            return depth_lib.residual_erasure(llm, pair.question, pair.answer, prompts)
        return depth_lib.integrated_gradients(llm, pair.question, pair.answer)
    modes = {"mode": "all" if "_all_" in row.key else "future"} if row.key else {}
    return getattr(depth_lib, probe)(llm, prompts, **modes)


def _only(results, key):
    """A result, or each of several, without what the figure's other parts draw."""
    if not key:
        return results
    if all(isinstance(one, Mapping) for one in results.values()):
        return {name: _only(one, key) for name, one in results.items()}
    if any(name.startswith("max_") for name in results) and key not in results:
        mode = "all" if "_all_" in key else "future"
        raise ValueError(f'this result has no {key}; give one of mode="{mode}"')
    return {name: value for name, value in results.items() if name == key or not name.startswith("max_")}


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
