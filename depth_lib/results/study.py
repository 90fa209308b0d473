"""A study: the results of many runs under one folder, `outputs/<dataset>/<MODEL>/*.pt`, and which are missing."""

import itertools
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from ..data.datasets import with_levels
from ..params import ParamsError, command, find_model
from .artifacts import read_artifact
from .provenance import read_meta
from .schemas import ARTIFACTS, ArtifactError, MissingArtifact, of_pair, parse_name, without_pair
from .shared import RUNS, read_shared, rows

PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
TABLE_PROBES = ("relative_contribution", "logit_lens")
BY_LEVEL = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order

Run = tuple[str, str]  # dataset, model
Key = tuple[str, str, str]  # dataset, model, probe


class Study(Mapping):
    """The results under a folder: (dataset, model, probe) -> result, read when a probe is first used, and once.

    models, datasets: which of them, in this order; by default all that have results, small models and the papers'
    datasets first. Missing results have no key. If a run has results for several numbers of examples, that of its
    relative contribution counts, else the largest. A probe about another question than the papers' has the key
    `of_pair(probe, pair)`, and `pairs` are the labels of these questions. A folder that `make share` wrote is read too.

    Warns once of a file that is unreadable, which is left out, and of results without `meta` (the papers' own). Nothing
    is written or renamed. Raises MissingArtifact if there are no results, ArtifactError for a shared folder that is
    damaged.
    """

    def __init__(
        self, folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
    ) -> None:
        self.folder = Path(folder)
        self._files = _find(self.folder)
        self.models = in_order(model for _, model, _ in self._files) if models is None else list(models)
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
    def paths(self) -> dict[Key, Path]:
        """(dataset, model, probe) -> file; nothing is read. Shared results have no files of their own."""
        return {key: self._files[key] for key in self if isinstance(self._files[key], Path)}

    @property
    def with_depths(self) -> list[str]:
        """The datasets that have effective depths, or will: not those run for levels of difficulty only."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self) -> list[str]:
        """A line for each model × dataset that lacks a result, with the command that computes it.

        Expected on each dataset are the probes of the table (or of levels of difficulty), and every probe that any
        model has there. A shared folder is not expected to be complete.
        """
        lines = []
        if (self.folder / RUNS).is_file():
            return lines
        for model, dataset in itertools.product(self.models, self.datasets):
            expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else BY_LEVEL)}
            lacking = [p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self._files]
            if lacking:
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
        return sum(1 for _ in self)

    def _probes_on(self, dataset: str) -> set[str]:
        return {probe for other, _, probe in self._files if other == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*BY_LEVEL} or dataset in with_levels())

    def _read(self, probe: str) -> dict[Run, dict]:
        results = {}
        for key in [key for key in self if key[2] == probe]:
            file = self._files[key]
            try:
                results[key[:2]] = read_artifact(file) if isinstance(file, Path) else file
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

    Size is the number in the name: billions of parameters or, as in toy-8l, blocks. Names without one come last.
    """

    def place(model: str) -> tuple:
        size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        return float(size[1]) if size else math.inf, TRAINING.index(facts_of(model).training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A key that sorts the papers' datasets first, in their order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)


def _find(folder: Path) -> dict[Key, Path | dict]:
    """(dataset, model, probe) -> file, of every result under a folder, or the results of a shared folder."""
    if (folder / RUNS).is_file():
        return read_shared(folder)
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
            meta, _ = read_meta(paths[n].with_name(ARTIFACTS["relative_contribution"].file))
            n_contribution = meta.get("n_examples", meta.get("n_prompts"))  # a dataset may have fewer than asked for
            n = n_contribution if n_contribution in paths else n
            others = ", ".join(path.name for path in paths.values() if path != paths[n])
            warnings.warn(f"reading {paths[n]}, not {others} beside it; remove what you do not want", stacklevel=4)
        files[key] = paths[n]
    return files
