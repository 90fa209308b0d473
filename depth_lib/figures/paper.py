"""The figures of Hu et al. 2025 by name, laid out as there, from whatever models are present.

Seven figures over GSM8K: sizes from left to right, R1-distilled, instruct and base models from top to bottom, 3 × 4
for the paper's twelve. Five over GSM8K and HellaSwag: the same grid, each model's two datasets side by side, 3 × 8.
"""

from pathlib import Path

from matplotlib.figure import Figure

from ..results.schemas import MissingArtifact
from ..results.study import TRAINING, Study, read_name
from .grids import cells_of, drawable, save
from .kinds import KINDS
from .layout import lay_out

_ALONE, _BOTH = ("gsm8k",), ("gsm8k", "hellaswag")
_WIDTH = 6.7  # inches, of the panels; a page has 7.2

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
    "gsm8k_hellaswag_layer_effects": ("layer_effects", _BOTH),
    "gsm8k_hellaswag_output_change": ("output_change", _BOTH),
    "gsm8k_hellaswag_logit_lens_kl": ("lens_kl", _BOTH),
    "gsm8k_hellaswag_logit_lens_overlap": ("lens_overlap", _BOTH),
}


def paper_figure(name: str, study: Study) -> Figure:
    """One figure of the paper, such as "gsm8k_hellaswag_logit_lens_kl" (`PAPER_FIGURES` has them all).

    A row a training type where every type has every size, as the paper's twelve models do; else rows of four. 7.2
    inches wide, as it is printed. KeyError for another name; MissingArtifact if one of the figure's datasets has no
    result of the kind.
    """
    kind_name, datasets = PAPER_FIGURES[name]
    kind = KINDS[kind_name]
    models, columns = _as_in_the_paper(study.models)
    results = {run: result for run, result in drawable(kind, study).items() if run[0] in datasets}
    if lacking := [dataset for dataset in datasets if not any(has == dataset for has, _ in results)]:
        raise MissingArtifact(
            f"no {kind.probe} artifacts for {', '.join(lacking)} under {study.folder}; run: make sweep "
            f'DATASETS="{" ".join(lacking)}" PROBES={kind.probe} OUT={study.folder}'
        )
    cells, per_model, title = cells_of(kind, results, models, datasets)
    width = min(_WIDTH / (columns * per_model), 4.0)
    height = width * (1.28 if kind.of_question else 0.9 if kind.colorbar else 0.62)
    return lay_out(cells, columns * per_model, (width, height), title, min(6.5, max(4.5, 4 * width)))


def save_paper_figures(study: Study) -> list[Path]:
    """Write every figure of the paper that the results allow to `folder/figures/paper/<name>.pdf` and `.png`."""
    written = []
    for name in PAPER_FIGURES:
        try:
            figure = paper_figure(name, study)
        except MissingArtifact:
            figure = None
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
