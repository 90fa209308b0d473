"""What is in a folder of results, `outputs/<dataset>/<MODEL>/*.pt`, and what is missing from it."""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from .artifacts import ArtifactError, MissingArtifact, probe_of, read_artifact, sweep_command
from .schemas import ARTIFACTS

PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
TABLE_PROBES = ("relative_contribution", "logit_lens")


@dataclass(frozen=True)
class MissingRun:
    """A model × dataset that lacks results, the probes it lacks, and the command that makes them."""

    dataset: str
    model: str
    probes: tuple[str, ...]
    command: str

    def __str__(self) -> str:
        return f"no artifact for {self.dataset} × {self.model} ({', '.join(self.probes)}); run: {self.command}"


def find_artifacts(folder: str | Path) -> dict[tuple[str, str, str], Path]:
    """(dataset, model, probe) -> file, for every artifact under a folder.

    Where a probe was run with several numbers of examples, the largest counts; a warning names the others.
    """
    found: dict[tuple[str, str, str], dict[int, Path]] = {}
    for path in sorted(Path(folder).glob("*/*/*.pt")):
        try:
            probe, n = probe_of(path)
        except ArtifactError:
            continue  # somebody else's file
        found.setdefault((path.parent.parent.name, path.parent.name, probe), {})[n or 0] = path
    for candidates in found.values():
        if len(candidates) > 1:
            *others, largest = (candidates[n] for n in sorted(candidates))
            names = ", ".join(path.name for path in others)
            warnings.warn(f"reading {largest}, not {names} beside it; remove what you do not want", stacklevel=2)
    return {cell: candidates[max(candidates)] for cell, candidates in found.items()}


def models_in(folder: str | Path) -> list[str]:
    """The models with results under a folder, small ones first."""
    return sorted({model for _, model, _ in find_artifacts(folder)}, key=_by_size)


def datasets_in(folder: str | Path) -> list[str]:
    """The datasets with results under a folder, the paper's three first."""
    return sorted({dataset for dataset, _, _ in find_artifacts(folder)}, key=_by_paper)


def read_results(
    folder: str | Path, probe: str, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> dict[tuple[str, str], dict]:
    """(dataset, model) -> result of one probe, for what is there; small models and the paper's datasets first.

    Missing results are left out. An unreadable one is moved aside and left out with a warning; results without
    `meta` (the papers' own) are read, and one warning counts them. MissingArtifact if the folder holds nothing.
    """
    found = find_artifacts(folder)
    if not found:
        below = next((below for below in sorted(Path(folder).glob("*/")) if find_artifacts(below)), None)
        there = f"; there are some under {below}: make table OUT={below}" if below else ""
        raise MissingArtifact(f"no artifacts under {folder}; run: make sweep OUT={folder}{there}")
    models = models_in(folder) if models is None else list(models)
    datasets = datasets_in(folder) if datasets is None else list(datasets)
    results = {}
    for cell in ((dataset, model) for model in models for dataset in datasets):
        path = found.get((*cell, probe))
        if path is None:
            continue
        try:
            results[cell] = read_artifact(path)
        except ArtifactError as error:
            warnings.warn(str(error), stacklevel=2)
    without_meta = sum(not result["meta"] for result in results.values())
    if without_meta:
        warnings.warn(
            f"{without_meta} of {len(results)} {probe} results under {folder} have no meta (not written by "
            "depth_lib): their models, prompts and settings are unknown",
            stacklevel=2,
        )
    return results


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """Everything measured per layer under a folder, a row a value, for plots and statistics of one's own.

    Columns model, dataset, probe, layer, key, value (float64), and column: the place along the second axis of a map
    (affected layer of an effect, token of an erasure or attribution; NA for curves). layer counts as in PROBES: row 0
    of an erasure is the embeddings. Per-prompt sums are left out. MissingArtifact if the folder holds nothing.
    """
    models = models_in(folder) if models is None else list(models)
    frames = []
    for probe, schema in ARTIFACTS.items():
        shapes = {key: shape for key, shape in (schema.required | schema.optional).items() if shape[0] == "L"}
        for (dataset, model), result in read_results(folder, probe, models, datasets).items():
            for key, shape in shapes.items():
                if key in result:
                    frames.append(_tidy(result[key], shape).assign(model=model, dataset=dataset, probe=probe, key=key))
    order = ["model", "dataset", "probe", "layer", "key", "value", "column"]
    if not frames:
        return pd.DataFrame(columns=order)
    tidy = pd.concat(frames, ignore_index=True)[order]
    return tidy.astype(dict.fromkeys(("model", "dataset", "probe", "key"), "category"))


def _tidy(values: torch.Tensor, shape: str) -> pd.DataFrame:
    values = values.double().reshape(len(values), -1).numpy()
    layer, column = np.indices(values.shape)
    is_map = len(shape.split()) == 2 and not shape.endswith(" 1")
    column = pd.array(column.ravel(), dtype="Int64") if is_map else pd.array([pd.NA] * values.size, dtype="Int64")
    return pd.DataFrame({"layer": layer.ravel(), "value": values.ravel(), "column": column})


def missing_runs(
    folder: str | Path,
    models: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    probes: Iterable[str] | None = None,
) -> list[MissingRun]:
    """Every model × dataset that lacks a result, with the command that makes it.

    By default: the models and datasets found, and on each dataset the probes of the table and whatever probe any model
    has there. Pass `models` and `datasets` to learn of those that have nothing yet.
    """
    found = find_artifacts(folder)
    models = models_in(folder) if models is None else list(models)
    datasets = datasets_in(folder) if datasets is None else list(datasets)
    probes = None if probes is None else tuple(probes)
    missing = []
    for model in models:
        for dataset in datasets:
            seen = {probe for has, _, probe in found if has == dataset}
            expected = probes or [probe for probe in ARTIFACTS if probe in seen or probe in TABLE_PROBES]
            lacking = tuple(probe for probe in expected if (dataset, model, probe) not in found)
            if lacking:
                command = sweep_command(Path(folder) / dataset / model)
                missing.append(MissingRun(dataset, model, lacking, command))
    return missing


def _by_size(model: str) -> tuple:
    """1.5B before 7B before 14B, toy-4l before toy-16l; then by name."""
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
    return (float(size[1]) if size else float("inf"), model.lower())


def _by_paper(dataset: str) -> tuple:
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)
