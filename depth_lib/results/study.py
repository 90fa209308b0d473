"""A study: the results of many runs under one folder, `outputs/<dataset>/<MODEL>/*.pt`, and which are missing."""

import itertools
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..data.datasets import with_levels
from ..params import ParamsError, command, find_model
from .artifacts import read_artifact
from .provenance import read_meta, remote_differences
from .schemas import ARTIFACTS, ArtifactError, MissingArtifact, of_pair, parse_name, without_pair
from .shared import RUNS, SharedResult, shared_folder, shared_results

PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
TABLE_PROBES = ("relative_contribution", "logit_lens")
BY_LEVEL = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order

Run = tuple[str, str]  # dataset, model
Key = tuple[str, str, str]  # dataset, model, probe


class Study(Mapping):
    """The results under a folder: (dataset, model, probe) -> result, read when a probe is first used, and once.

    models, datasets: which of them, in this order; by default all that have results, small models and the papers'
    datasets first. beside: folders or Hub datasets written by `make share`, all of whose models are added, as
    "name (where from)" if the name is taken. Missing results have no key. If a run has results for several numbers of
    examples, that of its relative contribution counts, else the largest. A probe about another question than the
    papers' has the key `of_pair(probe, pair)`, and `pairs` are the labels of these questions.

    Warns once of a file that is unreadable, which is left out, of results without `meta` (the papers' own), and of
    local and remote runs that differ. Nothing is written or renamed. Raises MissingArtifact if there are no results,
    ArtifactError for a shared file that is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        models: Iterable[str] | None = None,
        datasets: Iterable[str] | None = None,
        beside: Iterable[str | Path] = (),
    ) -> None:
        self.folder = Path(folder)
        self._files = _find(self.folder)
        self.models = in_order(model for _, model, _ in self._files) if models is None else list(models)
        for other in beside:
            self._add(other)
        if not self._files:
            raise MissingArtifact(
                f"no artifacts under {self.folder.absolute()}; run: {command('sweep', OUT=str(folder))}, or give the "
                "folder of a study, such as outputs/demo that make demo fills"
            )
        found = {dataset for dataset, _, _ in self._files}
        self.datasets = sorted(found, key=by_paper) if datasets is None else list(datasets)
        self._results: dict[str, dict[Run, dict]] = {}

    def of(self, probe: str) -> dict[Run, dict]:
        """(dataset, model) -> result of one probe, models and datasets in the study's order."""
        if probe not in self._results:
            self._results[probe] = self._read(probe)
        return self._results[probe]

    @property
    def pairs(self) -> list[str]:
        """The labels of questions and answers, other than the papers', that any result is about."""
        return sorted({probe.partition(":")[2] for _, _, probe in self._files} - {""})

    @property
    def probes(self) -> list[str]:
        """Every probe, and again for each of `pairs`."""
        return [of_pair(probe, pair) for pair in ("", *self.pairs) for probe in ARTIFACTS]

    @property
    def files(self) -> dict[Key, "Path | SharedResult"]:
        """(dataset, model, probe) -> where the result is read from; nothing is read."""
        return {key: self._files[key] for key in self}

    @property
    def paths(self) -> dict[Key, Path]:
        """(dataset, model, probe) -> file, of results in files of their own; nothing is read."""
        return {key: file for key, file in self.files.items() if isinstance(file, Path)}

    @property
    def with_depths(self) -> list[str]:
        """The datasets that have effective depths, or will: not those run for levels of difficulty only."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self) -> list[str]:
        """A line for each model × dataset that lacks a result, with the command that computes it.

        Expected on each dataset are the probes of the table (or of levels of difficulty), and every probe that any
        model has there. Shared models are not expected to be complete.
        """
        lines = []
        shared = {model for (_, model, _), file in self._files.items() if isinstance(file, SharedResult)}
        for model, dataset in itertools.product(self.models, self.datasets):
            expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else BY_LEVEL)}
            lacking = [p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self._files]
            if lacking and model not in shared:
                remedy = command("sweep", MODELS=model, DATASETS=dataset, OUT=str(self.folder))
                lines.append(f"no artifact for {dataset} × {model} ({', '.join(lacking)}); run: {remedy}")
        return lines

    def __getitem__(self, key: Key) -> dict:
        dataset, model, probe = key
        return self.of(probe)[dataset, model]

    def __iter__(self) -> Iterator[Key]:
        keys = itertools.product(self.models, self.datasets, self.probes)
        return (key for model, dataset, probe in keys if (key := (dataset, model, probe)) in self._files)

    def __len__(self) -> int:
        return len(self.files)

    def _add(self, other: str | Path) -> None:
        """The results of somebody else, under names of their own."""
        files = _find(shared_folder(other))
        taken = {model for _, model, _ in self._files}
        label = Path(other).resolve().name if Path(other).is_dir() else str(other)
        names = {model: f"{model} ({label})" if model in taken else model for _, model, _ in files}
        self._files |= {(dataset, names[model], probe): file for (dataset, model, probe), file in files.items()}
        self.models = in_order([*self.models, *names.values()])

    def _probes_on(self, dataset: str) -> set[str]:
        return {probe for other, _, probe in self._files if other == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*BY_LEVEL} or dataset in with_levels())

    def _read(self, probe: str) -> dict[Run, dict]:
        results = {}
        for key, file in self.files.items():
            if key[2] == probe:
                try:
                    results[key[:2]] = read_artifact(file) if isinstance(file, Path) else file.read()
                except ArtifactError as error:
                    warnings.warn(str(error), stacklevel=3)
                    del self._files[key]
        if unknown := [run for run, result in results.items() if not result["meta"]]:
            datasets = ", ".join(dict.fromkeys(dataset for dataset, _ in unknown))
            warnings.warn(
                f"{len(unknown)} of {len(results)} {probe} results under {self.folder} have no meta (not written "
                f"by depth_lib): their models, prompts and settings are unknown (on {datasets})",
                stacklevel=3,
            )
        if differences := remote_differences(result["meta"] for result in results.values()):
            warnings.warn(
                f"{probe} results under {self.folder} are from a server and from here, and ran with {differences} "
                "there: small differences between them may come from that",
                stacklevel=3,
            )
        return results


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """Everything measured per layer under a folder, a row per value, for your own plots and statistics.

    Columns model, dataset, probe, layer, key, value (float64), and column: the index along the second axis of a map
    (affected layer of an effect, token of an erasure or attribution; NA for curves). Row 0 of an erasure is the
    embeddings. Values per prompt or example are left out; those per level of difficulty have the level in their key,
    such as mean_layer_effect:3. MissingArtifact if the folder has no results.
    """
    order = ["model", "dataset", "probe", "layer", "key", "value", "column"]
    study, frames = Study(folder, models, datasets), []
    for probe in study.probes:
        schema = ARTIFACTS[without_pair(probe)]
        for (dataset, model), result in study.of(probe).items():
            for key, shape in (schema.required | schema.optional).items():
                for label, values in _per_layer(result, key, shape):
                    frames.append(_tidy(values, shape).assign(model=model, dataset=dataset, probe=probe, key=label))
    tidy = pd.concat(frames, ignore_index=True)[order] if frames else pd.DataFrame(columns=order)
    return tidy.astype(dict.fromkeys(("model", "dataset", "probe", "key"), "category") | {"column": "Int64"})


@dataclass(frozen=True)
class ModelFacts:
    """A model's training, one of `TRAINING`, and its size in billions of parameters, None if that is not known."""

    training: str
    billions: float | None


@cache
def facts_of(model: str) -> ModelFacts:
    """TRAINING and BILLIONS in the params file of this name."""
    try:
        params = find_model(model) or {}
    except ParamsError:  # a file with mistakes, which the commands that need it report
        params = {}
    training = params.get("TRAINING")
    return ModelFacts(training if training in TRAINING else "unknown", params.get("BILLIONS"))


def in_order(models: Iterable[str]) -> list[str]:
    """Models as the papers' table has them: small ones first, then R1-distilled, instruct, base, then by name.

    Size is the number in the name: billions of parameters or, as in toy-8l, blocks. Names without one come last.
    """

    def place(model: str) -> tuple:
        size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        return float(size[1]) if size else math.inf, TRAINING.index(facts_of(model).training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A key that sorts the papers' datasets first, in their order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)


def _find(folder: Path) -> dict[Key, Path | SharedResult]:
    """(dataset, model, probe) -> file, of every result under a folder, or in the folder's Parquet files."""
    if (folder / RUNS).is_file():
        return shared_results(folder)
    by_number: dict[Key, dict[int | None, Path]] = {}
    for path in sorted(folder.glob("*/*/*.pt")):
        try:
            probe, n, pair = parse_name(path)
        except ArtifactError:
            continue  # somebody else's file
        key = (path.parent.parent.name, path.parent.name, of_pair(probe, pair))
        by_number.setdefault(key, {})[n] = path
    files = {}
    for key, paths in by_number.items():
        n = max(paths, key=lambda n: n or 0)
        if len(paths) > 1:
            contribution = by_number.get((*key[:2], "relative_contribution"), {}).get(None)
            meta = read_meta(contribution)[0] if contribution else {}
            of_contribution = meta.get("n_examples", meta.get("n_prompts"))
            n = of_contribution if of_contribution in paths else n
            others = ", ".join(path.name for path in paths.values() if path != paths[n])
            warnings.warn(f"reading {paths[n]}, not {others} beside it; remove what you do not want", stacklevel=4)
        files[key] = paths[n]
    return files


def _per_layer(result: Mapping, key: str, shape: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The name and values of a key that has values per layer; for a key per level of difficulty, of each level."""
    if key in result and shape.startswith("K L"):
        for level, values in zip(result["levels"].int().tolist(), result[key], strict=True):
            yield f"{key}:{level}", values
    elif key in result and shape.startswith("L"):
        yield key, result[key]


def _tidy(values: torch.Tensor, shape: str) -> pd.DataFrame:
    is_map = " " in shape.removeprefix("K ") and not shape.endswith(" 1")
    values = (values if values.dim() > 1 else values[:, None]).double().numpy()
    layer, column = (index.ravel() for index in np.indices(values.shape))
    return pd.DataFrame({"layer": layer, "value": values.ravel(), "column": column if is_map else pd.NA})
