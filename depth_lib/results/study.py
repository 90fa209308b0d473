"""A study: the results of many runs under one folder, `outputs/<dataset>/<MODEL>/*.pt`, and what is missing from it."""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..data.datasets import with_levels
from ..params import ParamsError, find_model
from .artifacts import read_artifact
from .commands import sweep_command
from .meta import ran_otherwise
from .schemas import ARTIFACTS, ArtifactError, MissingArtifact, of_pair, pair_of, probe_of
from .shared import RUNS, SharedResult, shared_folder, shared_results

PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
TABLE_PROBES = ("relative_contribution", "logit_lens")
BY_LEVEL = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order

Run = tuple[str, str]  # dataset, model


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
    added, as "name (where from)" where there is one of that name already. Missing results have no key. Where a probe
    was run with several numbers of examples, the largest counts. A probe about another question than the papers' is
    called `of_pair(probe, pair)`, and `pairs` are their labels. Warnings, each said once: what is not read beside it; a
    file that is unreadable, moved aside and left out; results without `meta` (the papers' own), counted. Raises
    MissingArtifact if there are no results, ArtifactError for a shared file that is not what was shared.
    """

    def __init__(
        self,
        folder: str | Path,
        models: Iterable[str] | None = None,
        datasets: Iterable[str] | None = None,
        beside: Iterable[str | Path] = (),
    ) -> None:
        self.folder = Path(folder)
        self._paths = _find(self.folder)
        self.models = in_order(model for _, model, _ in self._paths) if models is None else list(models)
        for other in beside:
            taken = {model for _, model, _ in self._paths}
            theirs = _find(shared_folder(other))
            named = {model: f"{model} ({_label(other)})" if model in taken else model for _, model, _ in theirs}
            self._paths |= {(dataset, named[model], probe): path for (dataset, model, probe), path in theirs.items()}
            self.models = in_order([*self.models, *named.values()])
        if not self._paths:
            raise MissingArtifact(_nothing_in(self.folder))
        found = {dataset for dataset, _, _ in self._paths}
        self.datasets = sorted(found, key=by_paper) if datasets is None else list(datasets)
        self._read: dict[str, dict[Run, dict]] = {}

    def of(self, probe: str) -> dict[Run, dict]:
        """(dataset, model) -> result of one probe, models and datasets in the study's order."""
        if probe not in self._read:
            self._read[probe] = self._results(probe)
        return self._read[probe]

    @property
    def pairs(self) -> list[str]:
        """The labels of the questions and answers, beside the papers', that any result is about."""
        return sorted({probe.partition(":")[2] for _, _, probe in self._paths} - {""})

    @property
    def probes(self) -> list[str]:
        """Every probe there is, and as many more as there are other pairs."""
        return [of_pair(probe, pair) for pair in ("", *self.pairs) for probe in ARTIFACTS]

    @property
    def paths(self) -> dict[tuple[str, str, str], Path]:
        """(dataset, model, probe) -> file, of results that have one of their own; nothing is read."""
        return {key: path for key in self if isinstance(path := self._paths[key], Path)}

    def names(self) -> dict[tuple[str, str, str], str]:
        """(dataset, model, probe) -> the file's name in a study's folder, of all that there is."""
        return {key: self._paths[key].name for key in self}

    @property
    def with_depths(self) -> list[str]:
        """The datasets whose effective depths are known or to come: not those of levels of difficulty alone."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self, probes: Iterable[str] | None = None) -> list[MissingRun]:
        """Every model × dataset of the study that lacks a result, with the command that makes it.

        By default, on each dataset the probes of the table, or of levels of difficulty where it is run for those, and
        whatever probe any model has there.
        """
        probes, missing = None if probes is None else tuple(probes), []
        shared = {model for (_, model, _), path in self._paths.items() if isinstance(path, SharedResult)}
        for model in (model for model in self.models if model not in shared):
            for dataset in self.datasets:
                seen = {probe for has, _, probe in self._paths if has == dataset}
                usual = TABLE_PROBES if self._has_depths(dataset) else BY_LEVEL
                expected = probes or [probe for probe in ARTIFACTS if probe in seen or probe in usual]
                lacking = tuple(probe for probe in expected if (dataset, model, probe) not in self._paths)
                if lacking:
                    command = sweep_command(self.folder / dataset / model)
                    missing.append(MissingRun(dataset, model, lacking, command))
        return missing

    def __getitem__(self, key: tuple[str, str, str]) -> dict:
        dataset, model, probe = key
        return self.of(probe)[dataset, model]

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        runs = ((dataset, model) for model in self.models for dataset in self.datasets)
        return (key for run in runs for probe in self.probes if (key := (*run, probe)) in self._paths)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has_depths(self, dataset: str) -> bool:
        seen = {probe for has, _, probe in self._paths if has == dataset}
        return bool(seen & {*TABLE_PROBES}) or not (seen & {*BY_LEVEL} or dataset in with_levels())

    def _results(self, probe: str) -> dict[Run, dict]:
        results = {}
        for dataset, model, _ in [key for key in self if key[2] == probe]:
            path = self._paths[dataset, model, probe]
            try:
                results[dataset, model] = read_artifact(path) if isinstance(path, Path) else path.read()
            except ArtifactError as error:
                warnings.warn(str(error), stacklevel=3)
                del self._paths[dataset, model, probe]
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


@dataclass(frozen=True)
class Named:
    """A model's training, one of `TRAINING`, and its size in billions of parameters, None if that is not known."""

    training: str
    billions: float | None


@cache
def read_name(model: str) -> Named:
    """What the params file of this name says of the model: TRAINING and BILLIONS. A name alone says neither."""
    try:
        params = find_model(model) or {}
    except ParamsError:  # somebody's file that does not fit; the commands that need it say so
        params = {}
    training = params.get("TRAINING")
    return Named(training if training in TRAINING else "unknown", params.get("BILLIONS"))


def in_order(models: Iterable[str]) -> list[str]:
    """Models as the papers' table has them: small ones first, then R1-distilled, instruct, base, then by name.

    Size is the number in the name, billions of parameters or, as in toy-8l, blocks; names without one come last.
    """

    def place(model: str) -> tuple:
        size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        return float(size[1]) if size else math.inf, TRAINING.index(read_name(model).training), model.lower()

    return sorted(set(models), key=place)


def _label(other: str | Path) -> str:
    """Whose results these are: owner/name of a dataset on the Hub, a folder's own name."""
    return Path(other).resolve().name if Path(other).is_dir() else str(other)


def _find(folder: Path) -> dict[tuple[str, str, str], Path | SharedResult]:
    """(dataset, model, probe) -> file with the most examples, for every artifact under a folder, or that it shares."""
    if (folder / RUNS).is_file():
        return shared_results(folder)
    found: dict[tuple[str, str, str], dict[int, Path]] = {}
    for path in sorted(folder.glob("*/*/*.pt")):
        try:
            probe, n = probe_of(path)
        except ArtifactError:
            continue  # somebody else's file
        key = (path.parent.parent.name, path.parent.name, of_pair(probe, pair_of(path)))
        found.setdefault(key, {})[n or 0] = path
    for candidates in found.values():
        if len(candidates) > 1:
            *others, largest = (candidates[n] for n in sorted(candidates))
            names = ", ".join(path.name for path in others)
            warnings.warn(f"reading {largest}, not {names} beside it; remove what you do not want", stacklevel=4)
    return {key: candidates[max(candidates)] for key, candidates in found.items()}


def _nothing_in(folder: Path) -> str:
    if not folder.is_dir():
        there = f"{folder.absolute()} is not there"
        return f"no artifacts: {there}; give the folder of a study, such as outputs/demo that make demo fills"
    below = next((below for below in sorted(folder.glob("*/")) if _find(below)), None)
    there = f"; there are some under {below}: make table OUT={below}" if below else ""
    return f"no artifacts under {folder}; run: make sweep OUT={folder}{there}"


def by_paper(dataset: str) -> tuple[int, str]:
    """A key that sorts the papers' datasets first, in their order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)
