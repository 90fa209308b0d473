"""The papers' figures by their numbers: which call draws Figure 3a?"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from nnsight import TransformersModel

import depth_lib

from .data.examples import load_examples
from .data.pairs import find_pair
from .data.prompts import load_prompts
from .figures.grid import figure_of, study_figure
from .figures.kinds import KINDS, Kind
from .files import path_of
from .params import command
from .results.artifacts import read_artifact
from .results.schemas import MissingArtifact
from .results.study import Study

# Csordás et al. 2025 (arXiv 2505.13898, numbers of NeurIPS 2025): kind, then which of its curves or maps, or the
# question or data set that it is about.
FIGURES = {
    "2a": ("relative_contribution",),
    "2b": ("cosine",),
    "3a": ("layer_effects", "all tokens"),
    "3b": ("layer_effects", "future tokens"),
    "4a": ("lens_kl",),
    "4b": ("lens_overlap",),
    "5a": ("local_effects", "all tokens"),
    "5b": ("local_effects", "future tokens"),
    "6a": ("integrated_gradients", "sum"),
    "6b": ("residual_erasure", "sum"),
    "6c": ("integrated_gradients", "spouse"),
    "6d": ("residual_erasure", "spouse"),
    "7a": ("depth_score_by_level", "math"),
    "7b": ("depth_score_by_level", "mquake"),
    "8": ("linear_maps",),
    "15": ("norms",),
    "16": ("io_cos",),
    "17a": ("output_change", "all tokens"),
    "17b": ("output_change", "future tokens"),
}
NOT_DRAWN = {
    "1": "it shows benchmark scores of 132 models over their depth, which no probe measures",
    "9": "it compares erasure in two trained models, a Transformer and a MoEUT; draw 6b of each of yours",
}
# Hu et al. 2025 (arXiv 2512.14064), of a folder of results: the name of the figure's file after its data sets.
_HU = {
    "cosine_similarity": ("cosine", ""),
    "layer_effects": ("layer_effects", "future tokens"),
    "output_change": ("output_change", "future tokens"),
    "logit_lens_kl": ("lens_kl", ""),
    "logit_lens_overlap": ("lens_overlap", ""),
    "residual_erasure": ("residual_erasure", ""),
    "integrated_gradients": ("integrated_gradients", ""),
}
_BOTH = "gsm8k", "hellaswag"
HU = {f"{'_'.join(datasets)}_{name}": (*row, *datasets) for datasets in (_BOTH[:1], _BOTH) for name, row in _HU.items()}
HU |= {"hu6": HU["gsm8k_hellaswag_layer_effects"], "hu7": HU["gsm8k_hellaswag_output_change"]}


def paper(
    figure: str | int, of: TransformersModel | Mapping | str | Path, prompts: Sequence[str] | None = None
) -> Figure:
    """Draw a figure from either paper for a model, a result, or a folder of results.

    >>> dl.paper("4a", dl.load_model("toy-4l")).axes[0].get_xlabel()
    'Input of block $l$'

    - figure: a figure number in Csordás et al. 2025, "2a" to "8" and "15" to "17b"; or in Hu et al. 2025, "hu6", "hu7"
      or a name such as "gsm8k_hellaswag_logit_lens_kl"
    - of: a model, on which the probe is run; a result (from `linear_maps` for "8"); or a folder (required for the
      figures of Hu et al.)
    - prompts: list of strings for a model; by default ten GSM8K problems, of which those too long for the model are
      left out, with a warning. 6b and 6d use the prompts as the baseline only. 6a, 6c, 7a and 7b have questions of
      their own and do not use prompts

    A dashed line is the depth that Hu et al. publish for the panel's model and data set. If a figure shows
    effects on future tokens but the result has only effects on all tokens, or the reverse, the effects that the result
    has are drawn. The title then says so.

    Raises ValueError for an unknown figure or a result of a different probe, and MissingArtifact for a folder without
    the figure's results.
    Cost: for a model, the figure's probe on these prompts; otherwise none.
    """
    figure = re.sub(r"(?i)^fig(ure|\.)?\s*", "", str(figure))
    if figure in NOT_DRAWN:
        raise ValueError(f"Figure {figure} is not drawn: {NOT_DRAWN[figure]}")
    if figure not in FIGURES | HU:
        names = [name for name in FIGURES if name.startswith(figure)] or [*FIGURES, *HU]
        raise ValueError(f"unknown figure {figure!r}; use one of {', '.join(names)}")
    name, which, *datasets = *(FIGURES | HU)[figure], *[""] * (figure in FIGURES)
    kind = KINDS[name]
    folder = of if isinstance(of, str | Path) and path_of(of).is_dir() else None
    if not folder and not isinstance(of, TransformersModel | Mapping):
        raise ValueError(f"expected a folder of results, a model from dl.load_model or a probe's result, got {of!r}")
    if prompts is not None and not isinstance(of, TransformersModel):
        raise ValueError("prompts are for a model, and this is not a model; leave the prompts out")
    if folder:
        return _of_folder(figure, kind, which, datasets, folder)
    if figure in HU:
        raise ValueError(f'{figure} has a panel per model; use a folder of results: dl.paper("{figure}", "outputs")')
    result: Any = _measured(kind, which, of, prompts) if isinstance(of, TransformersModel) else of
    kind, which = _that_they_have(kind, which, [result])
    return figure_of(kind, result, _title(figure, kind, which, datasets))


def _that_they_have(kind: Kind, which: str, results: Iterable[Mapping]) -> tuple[Kind, str]:
    """The kind with only the figure's own map; if no result has it, with the other maps and their name."""
    if not which.endswith("tokens") or callable(kind.read):
        return kind, which
    labels = [label for result in results for label in kind.values(result)]
    if labels and which not in labels:
        return kind, labels[0]
    return replace(kind, read={key: "" for key, label in kind.read.items() if label == which}), which


def _title(figure: str, kind: Kind, which: str, datasets: Sequence[str]) -> str:
    return f"Figure {figure}. {', '.join(filter(None, [kind.title, which, *datasets]))}"


def _of_folder(figure: str, kind: Kind, which: str, datasets: Sequence[str], folder: str | Path) -> Figure:
    """One panel per model. A numbered figure uses its own data set, else GSM8K, else any that has results."""
    if kind.probe == "linear_map":
        maps = path_of(folder) / "linear_maps"
        if not (found := {path.stem.removeprefix("linear_map_"): read_artifact(path) for path in maps.glob("*.pt")}):
            raise MissingArtifact(f'{maps} has no result; make one: dl.linear_maps(small, large, texts).save("{maps}")')
        return figure_of(kind, dict(sorted(found.items())), _title(figure, kind, which, datasets))
    study = Study(folder)
    of_level = [which] * (kind.probe == "depth_by_difficulty")
    one = study.datasets[:1] if "gsm8k" not in study.datasets else ["gsm8k"]
    pair = find_pair(which).label if kind.of_question and which else ""
    named, datasets = datasets, [name for name in datasets if name] or of_level or one
    kind, which = _that_they_have(kind, which, study.of(kind.probe).values())
    drawn = study_figure(kind, study, datasets, pair, _title(figure, kind, which, named))
    if drawn is None:
        there = {dataset for dataset, _ in study.of(f"{kind.probe}:{pair}" if pair else kind.probe)} & {*datasets}
        asked = {"PROBES": kind.probe, "DATASETS": datasets, "PAIR": which if pair else ""}
        remedy = command("sweep", **asked, OUT=str(folder), REPLACE=bool(there))
        of_pair = f" for PAIR={which or 'sum'}" * kind.of_question
        lacks = f"{kind.needs} in its {kind.probe}" if there else kind.probe + of_pair
        raise MissingArtifact(f"{folder} has no {lacks} on {' or '.join(datasets)}; run: {remedy}")
    return drawn


def _measured(kind: Kind, which: str, llm: TransformersModel, prompts: Sequence[str] | None) -> Mapping:
    """The probe's result on the prompts, or the question, of the figure."""
    if kind.probe == "linear_map":
        raise ValueError('Figure 8 compares two models; use dl.paper("8", dl.linear_maps(shallow, deep, texts))')
    if kind.probe == "depth_by_difficulty":
        return depth_lib.depth_by_difficulty(llm, load_examples(which, source="embedded"))
    if prompts is None:  # ours: what is too long for the model is left out
        prompts = load_prompts("gsm8k", 10, source="sample", llm=llm)
    if kind.of_question:
        pair, baseline = find_pair(which), [prompts] * (kind.probe == "residual_erasure")
        return getattr(depth_lib, kind.probe)(llm, pair.question, pair.answer, *baseline)
    modes = {"mode": which.removesuffix(" tokens")} if which else {}
    return getattr(depth_lib, kind.probe)(llm, prompts, **modes)
