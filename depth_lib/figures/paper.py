"""The figures of Hu et al. 2025 by name, laid out as there, from whatever models are present.

Seven figures over GSM8K: sizes from left to right, R1-distilled, instruct and base models from top to bottom, 3 × 4
for the paper's twelve. Five over GSM8K and HellaSwag: the same grid, each model's two datasets side by side, 3 × 8.
"""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from ..results.schemas import MissingArtifact
from ..results.study import TRAINING, Study, facts_of
from .grid import draw_grid, drawable, save
from .kinds import KINDS
from .marks import Kind

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
PAPER_FIGURES = {f"gsm8k_{name}": (kind, ("gsm8k",)) for name, kind in _NAMES.items()}
PAPER_FIGURES |= {
    f"gsm8k_hellaswag_{name}": (kind, ("gsm8k", "hellaswag"))
    for name, kind in _NAMES.items()
    if not KINDS[kind].of_question
}


def paper_figure(name: str, study: Study) -> Figure:
    """One figure of the paper, such as "gsm8k_hellaswag_logit_lens_kl" (`PAPER_FIGURES` has them all).

    Models stand by training type, then size, four in a row: a row per type for the paper's twelve. Of layer effects and
    output change, future mode is shown. KeyError for another name; MissingArtifact if one of the
    figure's datasets has no result of the kind.
    """
    kind_name, datasets = PAPER_FIGURES[name]
    kind = _in_future_mode(KINDS[kind_name])
    models = sorted(study.models, key=_training_and_size)
    results = {run: result for run, result in drawable(kind, study).items() if run[0] in datasets}
    if lacking := [dataset for dataset in datasets if not any(has == dataset for has, _ in results)]:
        raise MissingArtifact(
            f"no {kind.probe} artifacts for {', '.join(lacking)} under {study.folder}; run: make sweep "
            f'DATASETS="{" ".join(lacking)}" PROBES={kind.probe} OUT={study.folder}'
        )
    return draw_grid(kind, results, models, datasets, columns=min(len(models), 4))


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


def _in_future_mode(kind: Kind) -> Kind:
    """The kind without what it reads of other modes, if it is about modes."""
    future = {key: "" for key in kind.keys if "future" in key}
    return replace(kind, keys=future) if future else kind


def _training_and_size(model: str) -> tuple[int, float]:
    name = facts_of(model)
    return TRAINING.index(name.training), name.billions or 0
