"""A study: the results of many runs in one folder, `outputs/<dataset>/<MODEL>/*.pt`, as one dict or one frame."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from ..data.datasets import with_levels
from ..files import path_of
from ..params import by_paper, command, in_order, warn, words
from .artifacts import read_artifact
from .provenance import differing, record_in
from .schemas import (
    ARTIFACTS,
    BY_RANDOM,
    LEVEL_PROBES,
    RECORD,
    SCHEMAS,
    TABLE_PROBES,
    ArtifactError,
    MissingArtifact,
    label_of,
    parse_name,
    without_pair,
)

_TEXTS = ("prompts", "examples", "baseline")
Key = tuple[str, str, str]  # dataset, model, probe


class Study(dict):
    """The results in a folder: (dataset, model, probe) -> result, by model, then data set, then probe.

    - folder: such as "outputs"
    - models, datasets: these, in this order; by default all, small models and the papers' data sets first

    `pairs` has the labels of questions other than the papers', and `paths` the files. `problems` are warned about:
    unreadable files, runs without results, results of earlier versions, and different prompts or weights in one row.

    Raises MissingArtifact if the folder has no results for these models and data sets, or none that can be read.
    """

    def __init__(
        self, folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
    ) -> None:
        self.folder, models, datasets = path_of(folder), words(models), words(datasets)
        for name, names in (("models", models), ("datasets", datasets)):
            if not isinstance(names, Iterable | None):
                raise ArtifactError(f"{name} must be a list of names, got {names!r}")
        self.problems = []
        self._found = find_results(self.folder)
        found_datasets, found_models, names = map(dict.fromkeys, zip(*self._found, strict=True))
        self.models = [*dict.fromkeys(in_order(found_models) if models is None else models)]
        self.datasets = [*dict.fromkeys(sorted(found_datasets, key=by_paper) if datasets is None else datasets)]
        for model, dataset, name in product(self.models, self.datasets, names):
            if path := self._found.get((dataset, model, name)):
                try:
                    self[dataset, model, name] = read_artifact(path)
                except (ArtifactError, OSError) as error:
                    self.problems.append(str(error))
        if not self:
            there = f"it has {', '.join(found_models)} on {', '.join(found_datasets)}"
            raise MissingArtifact(
                *self.problems[:1] or [f"{self.folder} has no results for these models and data sets; {there}"]
            )
        self.paths = {key: self._found[key] for key in self}
        self.pairs = sorted({parse_name(path).pair for path in self._found.values()} - {""})
        self.problems += [*self._outdated(), *self._mixtures()]
        for problem in self.problems:
            warn(problem)

    def _outdated(self) -> Iterator[str]:
        """A line for each result of an earlier version of its probe or of another model, one for unknown origins."""
        if unknown := [dataset for (dataset, _, _), result in self.items() if not result["meta"]]:
            of = ", ".join(dict.fromkeys(unknown))
            of_all = f"{len(unknown)} of {len(self)} results"
            yield f"{of_all} have no meta (not written by depth_lib): settings unknown ({of})"
        for (dataset, model, name), result in self.items():
            meta, now = result["meta"], ARTIFACTS[without_pair(name)].version
            if meta.get("version", now) != now:
                yield f"{dataset} × {model}: {name} is by version {meta['version']} of the probe, which has {now}"
            elif "dataset" in meta and meta.get("model", model) != model:  # a run's, not saved from memory
                yield f"{dataset} × {model} has the {name} of {meta['model']}; move it to the folder {meta['model']}"
            changed = {key: str(value) for key, value in meta.get("settings", {}).items() if Path(str(value)).is_file()}
            if "@" in name and any(label_of({key: file}) not in name for key, file in changed.items()):
                yield f"{dataset} × {model}: {name} was computed with {', '.join(changed.values())}, which has changed"
            record = record_in(self.paths[dataset, model, name].parent)
            made_from = {key: value for key, value in record.get("made_from", {}).items() if key not in _TEXTS}
            if not made_from.get("remote") and (other := differing(meta, made_from)):
                yield f"{dataset} × {model}: {name} is not what {RECORD} says ({'; '.join(other)})"

    def _mixtures(self) -> Iterator[str]:
        """A line for each data set with results of different prompts, and each model with different weights."""
        groups = defaultdict(lambda: defaultdict(dict))
        for (dataset, model, probe), result in self.items():
            meta = result["meta"]
            if probe in TABLE_PROBES and "prompts_hash" in meta:
                prompts = f"{meta.get('n_prompts')} prompts, hash {meta['prompts_hash']}"
                groups[f"{dataset} has results of different prompts, which are not comparable"][prompts][model] = True
            if weights := meta.get("commit") or meta.get("weights"):
                groups[f"{model} has results of different weights"][str(weights)][dataset] = True
        for what, having in groups.items():
            if len(having) > 1:
                yield f"{what}: " + ", ".join(f"{name} ({', '.join(some)})" for name, some in having.items())

    def of(self, probe: str) -> dict[tuple[str, str], dict]:
        """(dataset, model) -> result of one probe, models and data sets in the study's order."""
        return {(dataset, model): result for (dataset, model, other), result in self.items() if other == probe}

    def missing(self) -> list[str]:
        """A line for each model × data set that lacks a probe which another has there, with the command to run it."""
        lines = []
        for model, dataset in product(self.models, self.datasets):
            expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else LEVEL_PROBES)}
            lacking = [p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self]
            if lacking:
                asked = self._asked(1, model, "MODEL", "PASSES") | self._asked(0, dataset, "DATASET", "PART", "CHAT")
                names = {"MODELS": asked.pop("MODEL", model), "DATASETS": asked.pop("DATASET", dataset)}
                remedy = command("sweep", **names, **asked, PROBES=lacking, OUT=self.folder)
                lines.append(f"no artifact for {dataset} × {model} ({', '.join(lacking)}); run: {remedy}")
        return lines

    def _asked(self, axis: int, name: str, *parameters: str) -> dict:
        """These parameters of a run in the folder of a data set (axis 0) or model (1), without those of every run."""
        paths = (path for key, path in self._found.items() if key[axis] == name)
        asked = next((found for path in paths if (found := record_in(path.parent).get("params"))), {})
        common = {"PASSES": 1, "PART": "all", "CHAT": False}
        return {one: asked[one] for one in parameters if one in asked and asked[one] != common.get(one)}

    def _probes_on(self, dataset: str) -> set[str]:
        """The probes that any model in the folder has on a data set."""
        return {probe for other, _, probe in self._found if other == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*LEVEL_PROBES} or dataset in with_levels())


def load_results(
    folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
) -> pd.DataFrame:
    """All per-layer values in a folder of results, one per row, for your own plots and statistics.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> path = dl.logit_lens(llm, prompts).save("outputs/gsm8k/toy-4l")
    >>> dl.load_results("outputs").probe.unique().tolist()
    ['logit_lens']

    - folder: such as "outputs"
    - models, datasets: names to include; by default all

    Returns a DataFrame:

    - model, dataset, probe, layer, key: where the value comes from
    - column: the second index of a map (affected layer, or token); NA for curves. For `block_orders` and
      `block_accuracy`, the index of the order; layer is then NA
    - value: float64

    Values per prompt and token ids are left out. For an erasure, layer 0 is the embeddings.

    Raises MissingArtifact if the folder has no results for these models and data sets, or none that can be read.
    Cost: no forward pass.
    """
    frames = [
        frame_of(without_pair(probe), result).assign(model=model, dataset=dataset, probe=probe)
        for (dataset, model, probe), result in Study(folder, models, datasets).items()
    ]
    names = ["model", "dataset", "probe", "layer", "key", "value", "column"]
    tidy = pd.concat(frames, ignore_index=True)[names]
    return tidy.astype(dict.fromkeys(("model", "dataset", "probe", "key"), "category") | {"column": "Int64"})


def frame_of(probe: str, result: Mapping) -> pd.DataFrame:
    """The columns layer, key, value and column of `load_results`, of one probe's result."""
    frames = [pd.DataFrame(columns=["layer", "key", "value", "column"])]
    for key, shape in SCHEMAS[probe].shapes.items():
        axis = {"K": "levels", "N": "removal_sizes"}.get(shape[0])  # what the values of the first axis are
        several = axis if axis in result else None
        of_layers = shape[2:] if several else shape
        if shape in ("K", "C") and key in result and key != several:  # of orders, of blocks in turn, or of choices
            values = np.asarray(result[key], float)
            at = {"layer": pd.array([pd.NA] * len(values), "Int64"), "column": range(len(values))}
            frames.append(pd.DataFrame(at | {"key": key, "value": values}))
        if key not in result or of_layers[:1] not in ("L", "M", "N") or len(of_layers.split()) > 2:
            continue
        by_name = {key: result[key]}
        if several:
            by_name = {f"{key}:{value:.0f}": one for value, one in zip(result[several], result[key], strict=True)}
        for name, values in by_name.items():
            values = np.asarray(values, float).reshape(len(values), -1)
            layer, column = np.indices(values.shape).reshape(2, -1)
            if of_layers in ("L", "L+1", "L 1", "N"):  # a curve
                column = pd.NA
            frames.append(pd.DataFrame({"layer": layer, "key": name, "value": values.flatten(), "column": column}))
    return pd.concat(frames[1:] or frames, ignore_index=True).astype({"column": "Int64"})


def find_results(folder: str | Path) -> dict[Key, Path]:
    """(dataset, model, probe) -> file, of every result in a folder but those with random weights, probe by probe;
    MissingArtifact if there are none. The papers' question comes first, then others, then calls that were changed."""
    folder, found, rows = Path(folder), {}, [*ARTIFACTS]
    for path in sorted(folder.glob("*/*/*.pt")):
        with suppress(ArtifactError):  # somebody else's file
            name = parse_name(path)
            key = path.parent.parent.name, path.parent.name, name.key
            if name.probe in ARTIFACTS and not name.key.endswith(BY_RANDOM):
                if key in found:
                    warn(f"reading {path}, not {found[key][1].name} beside it; remove one")
                found[key] = (name.pair, name.changed, rows.index(name.probe)), path
    if not found:
        raise MissingArtifact(
            f"no results (DATASET/MODEL/*.pt) under {folder.absolute()}; use a run's OUT, load one file with "
            f"dl.load_artifact(path), or run: {command('sweep', OUT=folder)}"
        )
    return {key: path for key, (_, path) in sorted(found.items(), key=lambda item: item[1][0])}
