"""The figures of Hu et al. 2025 by name, in the paper's layout, of the models that a study has.

Seven figures over GSM8K: sizes from left to right, R1-distilled, instruct and base models from top to bottom, 3 × 4
for the paper's twelve. Five over GSM8K and HellaSwag: the same grid, each model's two datasets side by side, 3 × 8.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ..params import TRAINING, facts_of, in_order
from ..results.study import Study
from .grid import grid, save_drawn
from .kinds import KINDS

_NAMES = {
    "cosine_similarity": "cosine",
    "layer_effects": "layer_effects",
    "output_change": "output_change",
    "logit_lens_kl": "lens_kl",
    "logit_lens_overlap": "lens_overlap",
    "residual_erasure": "residual_erasure",
    "integrated_gradients": "integrated_gradients",
}

# name of the figure -> kind of panel and datasets
PAPER_FIGURES = {
    "_".join((*datasets, name)): (kind, datasets)
    for datasets in (("gsm8k",), ("gsm8k", "hellaswag"))
    for name, kind in _NAMES.items()
    if datasets == ("gsm8k",) or not KINDS[kind].of_question
}


def paper_figure(name: str, study: Study) -> Figure:
    """One figure of the paper, such as "gsm8k_hellaswag_logit_lens_kl" (`PAPER_FIGURES` has them all).

    A row per training type, sizes from left to right, at most four; what a type lacks stays empty. Of layer effects and
    output change, future mode is shown. KeyError for another name; MissingArtifact if one of the figure's datasets has
    no result of the kind.
    """
    kind_name, datasets = PAPER_FIGURES[name]
    kind = KINDS[kind_name]
    if future := {key: "" for key in kind.keys if "future" in key}:
        kind = replace(kind, keys=future)
    rows = [[model for model in in_order(study.models) if facts_of(model).training == name] for name in TRAINING]
    columns = min(4, max(map(len, rows)))
    models = [model for row in rows for model in [*row, *[""] * (-len(row) % columns)]]
    return grid(kind, study, models=models, datasets=datasets, columns=columns)


def save_paper_figures(study: Study) -> list[Path]:
    """Write every figure of the paper that the results allow to `folder/figures/paper/<name>.pdf` and `.png`."""
    folder = study.folder / "figures" / "paper"
    return [path for name in PAPER_FIGURES for path in save_drawn(folder / name, partial(paper_figure, name, study))]
