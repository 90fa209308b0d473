"""A study: the results of many runs under one folder, `outputs/<dataset>/<MODEL>/*.pt`, and what is missing from it."""

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
from ..params import ParamsError, find_model
from .artifacts import read_artifact
from .commands import sweep_command
from .provenance import ran_otherwise, read_meta
from .schemas import ARTIFACTS, ArtifactError, MissingArtifact, of_pair, pair_of, probe_of, without_pair
from .shared import RUNS, SharedResult, shared_folder, shared_results

PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
TABLE_PROBES = ("relative_contribution", "logit_lens")
BY_LEVEL = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order

Run = tuple[str, str]  # dataset, model
Key = tuple[str, str, str]  # dataset, model, probe


@dataclass(frozen=True)
class MissingRun:
    """A model × dataset that lacks results, the probes it lacks, and the command that makes them."""

    dataset: str
    model: str
    probes: tuple[str, ...]
    command: str

    def __str__(self) -> str:
        return f"no artifact for {self.dataset} × {self.model} ({', '.join(self.probes)}); run: {self.command}"


class Study(Mapping):
    """The results under a folder: (dataset, model, probe) -> result, read when a probe is first asked for, and once.

    models, datasets: which of them, in this order; by default all that have results, small models and the papers'
    datasets first. beside: folders or Hub datasets of others, as `make share` writes them, all of whose models are
    added, as "name (where from)" where there is one of that name already. Missing results have no key. Where a run has
    results of several numbers of examples, those of its relative contribution count, else the largest number. A probe
    about another question than the papers' is called `of_pair(probe, pair)`, and `pairs` are their labels.

    Warnings, each said once: what is not read beside it; a file that is unreadable, which is left out; results without
    `meta` (the papers' own), counted. Nothing is written or renamed. Raises MissingArtifact if there are no results,
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
            raise MissingArtifact(_nothing_in(self.folder))
        everywhere = {dataset for dataset, _, _ in self._files}
        self.datasets = sorted(everywhere, key=by_paper) if datasets is None else list(datasets)
        self._results: dict[str, dict[Run, dict]] = {}

    def of(self, probe: str) -> dict[Run, dict]:
        """(dataset, model) -> result of one probe, models and datasets in the study's order."""
        if probe not in self._results:
            self._results[probe] = self._read(probe)
        return self._results[probe]

    @property
    def pairs(self) -> list[str]:
        """The labels of the questions and answers, beside the papers', that any result is about."""
        return sorted({probe.partition(":")[2] for _, _, probe in self._files} - {""})

    @property
    def probes(self) -> list[str]:
        """Every probe there is, and as many more as there are other pairs."""
        return [of_pair(probe, pair) for pair in ("", *self.pairs) for probe in ARTIFACTS]

    @property
    def paths(self) -> dict[Key, Path]:
        """(dataset, model, probe) -> file, of results that have one of their own; nothing is read."""
        return {key: path for key in self if isinstance(path := self._files[key], Path)}

    def names(self) -> dict[Key, str]:
        """(dataset, model, probe) -> the file's name in a study's folder, of all that there is."""
        return {key: self._files[key].name for key in self}

    @property
    def with_depths(self) -> list[str]:
        """The datasets whose effective depths are known or to come: not those of levels of difficulty alone."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self) -> list[MissingRun]:
        """Every model × dataset of the study that lacks a result, with the command that makes it.

        Expected on each dataset are the probes of the table, or of levels of difficulty where it is run for those, and
        whatever probe any model has there. What others shared is theirs to complete.
        """
        missing = []
        shared = {model for (_, model, _), file in self._files.items() if isinstance(file, SharedResult)}
        for model in self.models:
            for dataset in self.datasets if model not in shared else ():
                expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else BY_LEVEL)}
                lacking = tuple(p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self._files)
                if lacking:
                    missing.append(MissingRun(dataset, model, lacking, sweep_command(self.folder / dataset / model)))
        return missing

    def __getitem__(self, key: Key) -> dict:
        dataset, model, probe = key
        return self.of(probe)[dataset, model]

    def __iter__(self) -> Iterator[Key]:
        runs = ((dataset, model) for model in self.models for dataset in self.datasets)
        return (key for run in runs for probe in self.probes if (key := (*run, probe)) in self._files)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _add(self, other: str | Path) -> None:
        """The results of somebody else, under names of their own."""
        files = _find(shared_folder(other))
        taken = {model for _, model, _ in self._files}
        label = Path(other).resolve().name if Path(other).is_dir() else str(other)
        named = {model: f"{model} ({label})" if model in taken else model for _, model, _ in files}
        self._files |= {(dataset, named[model], probe): file for (dataset, model, probe), file in files.items()}
        self.models = in_order([*self.models, *named.values()])

    def _probes_on(self, dataset: str) -> set[str]:
        return {probe for has, _, probe in self._files if has == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*BY_LEVEL} or dataset in with_levels())

    def _read(self, probe: str) -> dict[Run, dict]:
        results = {}
        for key in [key for key in self if key[2] == probe]:
            file = self._files[key]
            try:
                results[key[:2]] = read_artifact(file) if isinstance(file, Path) else file.read()
            except ArtifactError as error:
                warnings.warn(str(error), stacklevel=3)
                del self._files[key]
        without_meta = [run for run, result in results.items() if not result["meta"]]
        if without_meta:
            datasets = ", ".join(dict.fromkeys(dataset for dataset, _ in without_meta))
            warnings.warn(
                f"{len(without_meta)} of {len(results)} {probe} results under {self.folder} have no meta (not written "
                f"by depth_lib): their models, prompts and settings are unknown (on {datasets})",
                stacklevel=3,
            )
        if apart := ran_otherwise(result["meta"] for result in results.values()):
            warnings.warn(
                f"{probe} results under {self.folder} come from a server and from here, and ran with {apart} there: "
                "small differences between them may come from that",
                stacklevel=3,
            )
        return results


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """Everything measured per layer under a folder, a row per value, for plots and statistics of one's own.

    Columns model, dataset, probe, layer, key, value (float64), and column: the place along the second axis of a map
    (affected layer of an effect, token of an erasure or attribution; NA for curves). layer counts as in PROBES: row 0
    of an erasure is the embeddings. Values per prompt or example are left out; those per level of difficulty have the
    level in their key, such as mean_layer_effect:3. MissingArtifact if the folder holds nothing.
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
    return tidy.astype(dict.fromkeys(("model", "dataset", "probe", "key"), "category"))


@dataclass(frozen=True)
class ModelFacts:
    """A model's training, one of `TRAINING`, and its size in billions of parameters, None if that is not known."""

    training: str
    billions: float | None


@cache
def facts_of(model: str) -> ModelFacts:
    """What the params file of this name says of the model: TRAINING and BILLIONS. A name alone says neither."""
    try:
        params = find_model(model) or {}
    except ParamsError:  # somebody's file that does not fit; the commands that need it say so
        params = {}
    training = params.get("TRAINING")
    return ModelFacts(training if training in TRAINING else "unknown", params.get("BILLIONS"))


def in_order(models: Iterable[str]) -> list[str]:
    """Models as the papers' table has them: small ones first, then R1-distilled, instruct, base, then by name.

    Size is the number in the name, billions of parameters or, as in toy-8l, blocks; names without one come last.
    """

    def place(model: str) -> tuple:
        size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        return float(size[1]) if size else math.inf, TRAINING.index(facts_of(model).training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A key that sorts the papers' datasets first, in their order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)


def _find(folder: Path) -> dict[Key, Path | SharedResult]:
    """(dataset, model, probe) -> file, of every artifact under a folder, or that it shares."""
    if (folder / RUNS).is_file():
        return shared_results(folder)
    by_number: dict[Key, dict[int | None, Path]] = {}
    for path in sorted(folder.glob("*/*/*.pt")):
        try:
            probe, n = probe_of(path)
        except ArtifactError:
            continue  # somebody else's file
        key = (path.parent.parent.name, path.parent.name, of_pair(probe, pair_of(path)))
        by_number.setdefault(key, {})[n] = path
    files = {}
    for key, paths in by_number.items():
        n = max(paths, key=lambda n: n or 0)
        if len(paths) > 1:
            contribution = by_number.get((*key[:2], "relative_contribution"), {}).get(None)
            meta = read_meta(contribution)[0] if contribution else {}
            same = meta.get("n_examples", meta.get("n_prompts"))
            n = same if same in paths else n
            others = ", ".join(path.name for other, path in paths.items() if other != n)
            warnings.warn(f"reading {paths[n]}, not {others} beside it; remove what you do not want", stacklevel=4)
        files[key] = paths[n]
    return files


def _nothing_in(folder: Path) -> str:
    if not folder.is_dir():
        there = f"{folder.absolute()} is not there"
        return f"no artifacts: {there}; give the folder of a study, such as outputs/demo that make demo fills"
    below = next((below for below in sorted(folder.glob("*/")) if _find(below)), None)
    there = f"; there are some under {below}: make table OUT={below}" if below else ""
    return f"no artifacts under {folder}; run: make sweep OUT={folder}{there}"


def _per_layer(result: Mapping, key: str, shape: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The values of a key if it has some per layer; of those per level of difficulty, each level's alone."""
    if key not in result:
        return
    if shape.startswith("K L"):
        for level, values in zip(result["levels"].int().tolist(), result[key], strict=True):
            yield f"{key}:{level}", values
    elif shape.startswith("L"):
        yield key, result[key]


def _tidy(values: torch.Tensor, shape: str) -> pd.DataFrame:
    shape = shape.removeprefix("K ")
    values = values.double().reshape(len(values), *(values.shape[1:] or [1])).numpy()  # turn has no layer where L is 1
    layer, column = np.indices(values.shape)
    is_map = " " in shape and not shape.endswith(" 1")
    column = pd.array(column.ravel(), dtype="Int64") if is_map else pd.array([pd.NA] * values.size, dtype="Int64")
    return pd.DataFrame({"layer": layer.ravel(), "value": values.ravel(), "column": column})
