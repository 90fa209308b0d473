"""A study: the results of many runs under one folder, `outputs/<dataset>/<MODEL>/*.pt`, and which are missing."""

import itertools
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from ..data.datasets import with_levels
from ..params import PAPER_DATASETS, ParamsError, command, find_model
from .artifacts import read_artifact
from .provenance import read_meta
from .schemas import ARTIFACTS, FURTHER_PROBES, ArtifactError, MissingArtifact, of_pair, parse_name, without_pair
from .shared import RUNS, read_shared, rows

TABLE_PROBES = ("relative_contribution", "logit_lens")
BY_LEVEL = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order

Run = tuple[str, str]  # dataset, model
Key = tuple[str, str, str]  # dataset, model, probe


class Study(dict):
    """The results under a folder: (dataset, model, probe) -> result, by model, then dataset, then probe.

    models, datasets: which of them, in this order; by default all that have results, small models and the papers'
    datasets first. If a run has results for several numbers of examples, that of its relative contribution counts, else
    the largest. A probe about another question than the papers' has the key `of_pair(probe, pair)`, and `pairs` are the
    labels of these questions. `paths`: (dataset, model, probe) -> file. A folder that `make share` wrote is read too;
    its results have no files of their own.

    Warns of its `problems`: files that are unreadable, which are left out, and results of another model. It warns of
    results without `meta` (the papers' own) too. Nothing is written or renamed. Raises MissingArtifact if there are no
    results, ArtifactError for a shared folder that is damaged.
    """

    def __init__(
        self, folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.is_shared = (self.folder / RUNS).is_file()
        self._found = found = find_results(self.folder)
        self.models = in_order(model for _, model, _ in found) if models is None else list(models)
        self.datasets = sorted({key[0] for key in found}, key=by_paper) if datasets is None else list(datasets)
        self.pairs = sorted({probe.partition(":")[2] for _, _, probe in found} - {""})
        self.problems = []
        self.probes = [of_pair(probe, pair) for pair in ("", *self.pairs) for probe in ARTIFACTS]
        for model, dataset, probe in itertools.product(self.models, self.datasets, self.probes):
            if file := found.get((dataset, model, probe)):
                try:
                    self[dataset, model, probe] = file if self.is_shared else read_artifact(file)
                except (ArtifactError, OSError) as error:
                    self.problems.append(str(error))
                    continue
                of = self[dataset, model, probe]["meta"].get("model", model)
                if of != model:
                    self.problems.append(f"{dataset} × {model} has the {probe} of {of}; move it to the folder {of}")
        for problem in self.problems:
            warnings.warn(problem, stacklevel=2)
        self.paths = {} if self.is_shared else {key: found[key] for key in self}
        if unknown := [dataset for (dataset, _, _), result in self.items() if not result["meta"]]:
            warnings.warn(
                f"{len(unknown)} of {len(self)} results under {self.folder} have no meta (not written by depth_lib): "
                f"their models, prompts and settings are unknown (on {', '.join(dict.fromkeys(unknown))})",
                stacklevel=2,
            )

    def of(self, probe: str) -> dict[Run, dict]:
        """(dataset, model) -> result of one probe, models and datasets in the study's order."""
        return {(dataset, model): result for (dataset, model, other), result in self.items() if other == probe}

    @property
    def with_depths(self) -> list[str]:
        """The datasets that have effective depths, or will: not those run for levels of difficulty only."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self) -> list[str]:
        """A line for each model × dataset that lacks a result, with the command that computes it.

        Expected on each dataset are the probes of the table (or of levels of difficulty), and every probe that any
        model in the folder has there. A shared folder is not expected to be complete.
        """
        lines = []
        for model, dataset in itertools.product(self.models, self.datasets if not self.is_shared else ()):
            expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else BY_LEVEL)}
            lacking = [p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self]
            if lacking:
                probes = " ".join(lacking) if {*lacking} & {*FURTHER_PROBES} else ""
                remedy = command("sweep", MODELS=model, DATASETS=dataset, OUT=str(self.folder), PROBES=probes)
                lines.append(f"no artifact for {dataset} × {model} ({', '.join(lacking)}); run: {remedy}")
        return lines

    def _probes_on(self, dataset: str) -> set[str]:
        """The probes that any model in the folder has on a dataset."""
        return {probe for other, _, probe in self._found if other == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*BY_LEVEL} or dataset in with_levels())


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """Everything measured per layer under a folder, a row per value, for your own plots and statistics.

    Columns model, dataset, probe, layer, key, value (float64), and column: the index along the second axis of a map
    (affected layer of an effect, token of an erasure or attribution; NA for curves). Row 0 of an erasure is the
    embeddings. Values per prompt or example are left out; those per level of difficulty have the level in their key,
    such as mean_layer_effect:3. MissingArtifact if the folder has no results.
    """
    names = ["model", "dataset", "probe", "layer", "key", "value", "column"]
    study, frames = Study(folder, models, datasets), []
    for probe in study.probes:
        for (dataset, model), result in study.of(probe).items():
            for key, shape in ARTIFACTS[without_pair(probe)].shapes.items():
                if key in result and shape.startswith(("L", "K L")):
                    frame = rows(probe, key, result[key]).assign(model=model, dataset=dataset, probe=probe)
                    if shape.startswith("K"):
                        levels = result["levels"].int().tolist()
                        frame["key"] = [f"{key}:{levels[index]}" for index in frame.prompt]
                    frames.append(frame)
    tidy = pd.concat(frames, ignore_index=True)[names] if frames else pd.DataFrame(columns=names)
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

    Size is that of the params file, in billions of parameters, else the number in the name: these, or, as in toy-8l,
    blocks. Models with neither come last.
    """

    def place(model: str) -> tuple:
        facts, size = facts_of(model), re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        billions = facts.billions or (float(size[1]) if size else math.inf)
        return billions, TRAINING.index(facts.training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A key that sorts the papers' datasets first, in their order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)


def find_results(folder: str | Path) -> dict[Key, Path | dict]:
    """(dataset, model, probe) -> file of every result under a folder, or result, of a shared folder.

    Raises MissingArtifact if there are none, ArtifactError for a shared folder that is damaged.
    """
    folder = Path(folder)
    found = read_shared(folder) if (folder / RUNS).is_file() else _files(folder)
    if not found:
        raise MissingArtifact(
            f"no artifacts under {folder.absolute()}; run: {command('sweep', OUT=str(folder))}, or give the "
            "folder of a study, such as outputs/demo that make demo fills"
        )
    return found


def _files(folder: Path) -> dict[Key, Path]:
    """(dataset, model, probe) -> the one file that counts."""
    by_number: dict[Key, dict[int | None, Path]] = {}
    for path in sorted(folder.glob("*/*/*.pt")):
        try:
            probe, n, pair = parse_name(path)
        except ArtifactError:
            continue  # somebody else's file
        key = (path.parent.parent.name, path.parent.name, of_pair(probe, pair))
        by_number.setdefault(key, {})[n] = path
    return {key: _chosen(paths) for key, paths in by_number.items()}


def _chosen(paths: Mapping[int | None, Path]) -> Path:
    """Of the files of one result, by number of prompts, that of the run's relative contribution, else the largest."""
    path, *others = paths.values()
    if others:
        meta, _ = read_meta(path.with_name(ARTIFACTS["relative_contribution"].file))
        # earlier versions named files by the number of prompts that were asked for
        path = paths[max(paths, key=lambda n: (n == meta.get("n_prompts"), n == meta.get("n_examples"), n))]
        others = ", ".join(other.name for other in paths.values() if other != path)
        warnings.warn(f"reading {path}, not {others} beside it; remove what you do not want", stacklevel=2)
    return path
