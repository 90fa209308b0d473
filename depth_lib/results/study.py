"""A study: the results of many runs in one folder, `outputs/<dataset>/<MODEL>/*.pt`, and which are missing."""

import itertools
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from ..data.datasets import with_levels
from ..params import PAPER_DATASETS, ParamsError, command, find_model
from .artifacts import read_artifact
from .asked import RunSpec, asked_in
from .provenance import judge
from .schemas import ARTIFACTS, FURTHER_PROBES, ArtifactError, MissingArtifact, parse_name, without_pair

TABLE_PROBES = ("relative_contribution", "logit_lens")
BY_LEVEL = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order

Key = tuple[str, str, str]  # dataset, model, probe


class Study(dict):
    """The results in a folder: (dataset, model, probe) -> result, by model, then dataset, then probe.

    models, datasets: which ones, in this order; by default all that have results, small models and the papers' datasets
    first. Of results for several numbers of examples the largest is read. A probe on another question than the papers'
    has the key `of_pair(probe, pair)`; `pairs` has the labels of these questions. `paths`: (dataset, model, probe) ->
    file.

    Warns of its `problems`: unreadable files, which are left out, results of another model, results that are stale,
    datasets with results of different prompts, datasets with the same prompts, models with results of several commits.
    Also warns of results without `meta` (the papers' own). Writes nothing. Raises MissingArtifact if there are no
    results.
    """

    def __init__(
        self, folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
    ) -> None:
        self.folder = Path(folder)
        self._found = found = find_results(self.folder)
        models = in_order(model for _, model, _ in found) if models is None else models
        datasets = sorted({key[0] for key in found}, key=by_paper) if datasets is None else datasets
        self.models, self.datasets = list(dict.fromkeys(models)), list(dict.fromkeys(datasets))
        names = {probe: parse_name(path) for (_, _, probe), path in found.items()}
        self.pairs = sorted({name.pair for name in names.values()} - {""})
        self.problems = []
        rows = {probe: row for row, probe in enumerate(ARTIFACTS)}
        probes = sorted(names, key=lambda key: (names[key].pair, names[key].changed, rows[names[key].probe]))
        for model, dataset, probe in itertools.product(self.models, self.datasets, probes):
            key = dataset, model, probe
            if key not in found:
                continue
            try:
                self[key] = read_artifact(found[key])
            except (ArtifactError, OSError) as error:
                self.problems.append(str(error))
                continue
            of = self[key]["meta"].get("model", model)
            if of != model:
                self.problems.append(f"{dataset} × {model} has the {probe} of {of}; move it to the folder {of}")
        self.problems += [*self._stale(), *self._mixtures()]
        for problem in self.problems:
            warnings.warn(problem, stacklevel=2)
        self.paths = {key: found[key] for key in self}
        if unknown := [dataset for (dataset, _, _), result in self.items() if not result["meta"]]:
            warnings.warn(
                f"{len(unknown)} of {len(self)} results under {self.folder} have no meta (not written by depth_lib): "
                f"their models, prompts and settings are unknown (on {', '.join(dict.fromkeys(unknown))})",
                stacklevel=2,
            )

    def _stale(self) -> Iterator[str]:
        """A line for results that are not those their run's last command asked for, or that an earlier probe made."""
        runs = {(dataset, model): _asked(self.folder / dataset / model) for dataset, model, _ in self}
        alike = defaultdict(list)
        for dataset, model, probe in self:
            path, run = self._found[dataset, model, probe], runs[dataset, model]
            name = parse_name(path)
            asked_for = run and not name.changed and run.path(name.probe).name == path.name
            state = run.state(name.probe) if asked_for else judge(path, {})
            if state.kept or (state := judge(path, {})).kept:  # its prompts or weights may be gone
                alike[f"{dataset} × {model}", str(state)].append(probe)
        for (run, state), probes in alike.items():
            yield f"{run}: {', '.join(probes)} {'is' if len(probes) == 1 else 'are'} {state}"

    def _mixtures(self) -> Iterator[str]:
        """A line for each dataset with different prompts, datasets with the same prompts, model of several commits."""
        prompts, datasets, weights = defaultdict(dict), defaultdict(dict), defaultdict(dict)
        for (dataset, model, probe), result in self.items():
            meta = result["meta"]
            if probe in TABLE_PROBES and "prompts_hash" in meta:
                which = f"{meta.get('n_prompts')} from {meta.get('source')}, hash {meta['prompts_hash']}"
                prompts[dataset].setdefault(which, {})[model] = True
                datasets[meta["prompts_hash"]][dataset] = True
            if which := meta.get("commit") or meta.get("weights"):
                weights[model].setdefault(which, {})[dataset] = True
        for dataset, groups in prompts.items():
            if len(groups) > 1:
                yield f"{dataset} has results of different prompts, which are not comparable: {_listed(groups)}"
        for names in datasets.values():
            if len(names) > 1:
                yield f"{' and '.join(names)} have the same prompts: their results do not differ by task"
        for model, groups in weights.items():
            if len(groups) > 1:
                yield f"{model} has results of different weights: {_listed(groups)}"

    def of(self, probe: str) -> dict[tuple[str, str], dict]:
        """(dataset, model) -> result of one probe, models and datasets in the study's order."""
        return {(dataset, model): result for (dataset, model, other), result in self.items() if other == probe}

    @property
    def with_depths(self) -> list[str]:
        """The datasets that have or will have effective depths: not those for levels of difficulty only."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self) -> list[str]:
        """A line for each model × dataset that lacks a result, with the command that computes it.

        Each dataset should have the probes of the table (or of levels of difficulty), and every probe that any model in
        the folder has there.
        """
        lines = []
        for model, dataset in itertools.product(self.models, self.datasets):
            expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else BY_LEVEL)}
            lacking = [p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self]
            if lacking:
                probes = " ".join(lacking) if {*lacking} & {*FURTHER_PROBES} else ""
                where = self._variables_of(dataset) | {"OUT": str(self.folder), "PROBES": probes}
                remedy = command("sweep", MODELS=model, **where)
                lines.append(f"no artifact for {dataset} × {model} ({', '.join(lacking)}); run: {remedy}")
        return lines

    def _variables_of(self, dataset: str) -> dict[str, str]:
        """The options of a command for a dataset, with the SOURCE of its prompts."""
        metas = (result["meta"] for (other, _, _), result in self.items() if other == dataset)
        meta = next(filter(None, metas), {})
        source = meta.get("source", "hub")
        given = {} if source in ("hub", "drawn", "list") else {"SOURCE": source}
        return {"DATASETS": meta.get("rows_of", dataset)} | given

    def _probes_on(self, dataset: str) -> set[str]:
        """The probes that any model in the folder has on a dataset."""
        return {probe for other, _, probe in self._found if other == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*BY_LEVEL} or dataset in with_levels())


def _asked(folder: Path) -> RunSpec | None:
    """What the last command asked of a run; None if it is not known."""
    with suppress(ParamsError, ArtifactError):  # status names them
        return asked_in(folder)


def _listed(groups: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{name} ({', '.join(members)})" for name, members in groups.items())


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """All values per layer in a folder, one row each, for your own plots and statistics.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> path = dl.logit_lens(llm, prompts).save("outputs/gsm8k/toy-4l")
    >>> dl.load_results("outputs").probe.unique().tolist()
    ['logit_lens']

    Columns model, dataset, probe, layer, key, value (float64), and column: the index along the second axis of a map
    (affected layer of an effect, token of an erasure or attribution; NA for curves). Row 0 of an erasure is the
    embeddings. Values per prompt or example are left out; those per level of difficulty have the level in their key,
    such as mean_layer_effect:3. MissingArtifact if the folder has no results.
    Cost: no forward pass.
    """
    return as_frame(Study(folder, models, datasets))


def as_frame(study: Study) -> pd.DataFrame:
    """What `load_results` returns, of a study."""
    frames = [
        frame_of(without_pair(probe), result).assign(model=model, dataset=dataset, probe=probe)
        for (dataset, model, probe), result in study.items()
    ]
    names = ["model", "dataset", "probe", "layer", "key", "value", "column"]
    tidy = pd.concat(frames, ignore_index=True)[names] if frames else pd.DataFrame(columns=names)
    return tidy.astype(dict.fromkeys(("model", "dataset", "probe", "key"), "category") | {"column": "Int64"})


def frame_of(probe: str, result: Mapping) -> pd.DataFrame:
    """The columns layer, key, value and column of `load_results`, of one probe's result."""
    frames = [pd.DataFrame(columns=["layer", "key", "value", "column"])]
    for key, shape in ARTIFACTS[probe].shapes.items():
        if key not in result or not shape.startswith(("L", "K L")):
            continue
        by_name = {key: result[key]}
        if shape.startswith("K L"):
            by_name = {
                f"{key}:{level:.0f}": values for level, values in zip(result["levels"], result[key], strict=True)
            }
        for name, values in by_name.items():
            values = values.double().numpy().reshape(len(values), -1)
            layer, column = np.indices(values.shape).reshape(2, -1)
            if shape.removeprefix("K ") in ("L", "L+1", "L 1"):  # a curve
                column = pd.NA
            frames.append(pd.DataFrame({"layer": layer, "key": name, "value": values.flatten(), "column": column}))
    return pd.concat(frames[1:] or frames, ignore_index=True).astype({"column": "Int64"})


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
    except ParamsError:  # commands that need the file report its mistakes
        params = {}
    training = params.get("TRAINING")
    return ModelFacts(training if training in TRAINING else "unknown", params.get("BILLIONS"))


def in_order(models: Iterable[str]) -> list[str]:
    """Models in the order of the papers' table: by size, then R1-distilled, instruct, base, then by name.

    The size is that in the params file, in billions of parameters, or the number in the name: billions, or blocks as in
    toy-8l. Models with neither come last.
    """

    def place(model: str) -> tuple:
        facts, size = facts_of(model), re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        billions = facts.billions or (float(size[1]) if size else math.inf)
        return billions, TRAINING.index(facts.training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A sort key: the papers' datasets first, in the papers' order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)


def find_results(folder: str | Path) -> dict[Key, Path]:
    """(dataset, model, probe) -> file, of every result in a folder; MissingArtifact if there are none."""
    folder, found = Path(folder), {}
    for path in sorted(folder.glob("*/*/*.pt"), key=lambda path: (len(path.name), path)):  # 9 examples before 10
        with suppress(ArtifactError):  # somebody else's file
            name = parse_name(path)
            key = path.parent.parent.name, path.parent.name, name.key
            if name.probe not in ARTIFACTS:
                continue
            if key in found:
                smaller = found[key].name
                warnings.warn(f"reading {path}, not {smaller} beside it; remove what you do not want", stacklevel=2)
            found[key] = path
    if not found:
        raise MissingArtifact(
            f"no artifacts under {folder.absolute()}; run: {command('sweep', OUT=str(folder))}, or give the "
            "folder of a study, such as outputs/demo that make demo fills"
        )
    return found
