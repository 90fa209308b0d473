"""A study: the results of many runs in one folder, `outputs/<dataset>/<MODEL>/*.pt`, read into one dict or one frame.

`Study` also says what is wrong with them together: results that cannot be read, are stale, or are not comparable; and
which are missing, with the command that computes each.
"""

import itertools
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from ..data.datasets import with_levels
from ..params import ParamsError, by_paper, command, in_order
from .artifacts import read_artifact
from .asked import RunSpec, asked_in
from .provenance import judge, not_done
from .schemas import (
    ARTIFACTS,
    BY_RANDOM,
    FURTHER_PROBES,
    TABLE_PROBES,
    ArtifactError,
    MissingArtifact,
    by_n_examples,
    parse_name,
    without_pair,
)

LEVEL_PROBES = tuple(probe for probe, row in ARTIFACTS.items() if row.by_level)

Key = tuple[str, str, str]  # dataset, model, probe


class Study(dict):
    """The results in a folder: (dataset, model, probe) -> result, by model, then dataset, then probe.

    models, datasets: which ones, in this order; by default all that have results, small models and the papers' datasets
    first. Of results for several numbers of examples the largest is read. A probe on another question than the papers'
    has the key `with_pair(probe, pair)`; `pairs` has the labels of these questions. `paths`: (dataset, model, probe) ->
    file.

    Warns of its `problems`: unreadable files, which are left out, results of another model, results that are stale,
    datasets with results of different prompts, models with results of different weights, datasets with
    the same prompts. Also warns of results without `meta` (the papers' own). Writes nothing. Raises MissingArtifact if
    there are no results.
    """

    def __init__(
        self, folder: str | Path, models: Iterable[str] | None = None, datasets: Iterable[str] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.problems = []
        self._found = find_results(self.folder)
        found_datasets, found_models, names = map(dict.fromkeys, zip(*self._found, strict=True))
        self.models = [*dict.fromkeys(in_order(found_models) if models is None else models)]
        self.datasets = [*dict.fromkeys(sorted(found_datasets, key=by_paper) if datasets is None else datasets)]
        for model, dataset, name in itertools.product(self.models, self.datasets, names):
            if path := self._found.get((dataset, model, name)):
                try:
                    self[dataset, model, name] = read_artifact(path)
                except (ArtifactError, OSError) as error:
                    self.problems.append(str(error))
        self.paths = {key: self._found[key] for key in self}
        self.pairs = sorted({parse_name(path).pair for path in self._found.values()} - {""})
        self.problems += [*self._stale(), *self._mixtures()]
        for problem in self.problems:
            warnings.warn(problem, stacklevel=2)
        if unknown := [dataset for (dataset, _, _), result in self.items() if not result["meta"]]:
            warnings.warn(
                f"{len(unknown)} of {len(self)} results under {self.folder} have no meta (not written by depth_lib): "
                f"their models, prompts and settings are unknown (on {', '.join(dict.fromkeys(unknown))})",
                stacklevel=2,
            )

    def _stale(self) -> Iterator[str]:
        """A line for results that are not as their run's last command asked, or of an earlier version of the probe."""
        for folder, paths in itertools.groupby(self.paths.values(), key=lambda path: path.parent):
            asked = _asked(folder)
            states = {}
            for path in paths:
                name = parse_name(path)
                if asked and not name.changed and asked.path(name.probe).name == path.name:
                    state = asked.state(name.probe)
                else:
                    state = judge(path, {})
                if state.needs_replace:
                    states[name.key] = state
            yield from (f"{folder.parent.name} × {folder.name}: {line}" for line in not_done(states))

    def _mixtures(self) -> Iterator[str]:
        """A line for each result of another model, dataset of different prompts, model of different weights, and for
        datasets of the same prompts."""
        mixtures, alike = defaultdict(lambda: defaultdict(dict)), defaultdict(dict)
        for (dataset, model, probe), result in self.items():
            meta = result["meta"]
            if (of := meta.get("model", model)) != model:
                yield f"{dataset} × {model} has the {probe} of {of}; move it to the folder {of}"
            if probe in TABLE_PROBES and "prompts_hash" in meta:
                prompts = f"{meta.get('n_prompts')} from {meta.get('source')}, hash {meta['prompts_hash']}"
                mixtures[f"{dataset} has results of different prompts, which are not comparable"][prompts][model] = True
                alike[meta["prompts_hash"]][dataset] = True
            if weights := meta.get("commit") or meta.get("weights"):
                mixtures[f"{model} has results of different weights"][weights][dataset] = True
        for what, groups in mixtures.items():
            if len(groups) > 1:
                yield f"{what}: " + ", ".join(f"{name} ({', '.join(members)})" for name, members in groups.items())
        for datasets in alike.values():
            if len(datasets) > 1:
                yield f"{' and '.join(datasets)} have the same prompts: their results do not differ by task"

    def of(self, probe: str) -> dict[tuple[str, str], dict]:
        """(dataset, model) -> result of one probe, models and datasets in the study's order."""
        return {(dataset, model): result for (dataset, model, other), result in self.items() if other == probe}

    @property
    def with_depths(self) -> list[str]:
        """All datasets but those that have levels of difficulty only."""
        return [dataset for dataset in self.datasets if self._has_depths(dataset)]

    def missing(self) -> list[str]:
        """A line for each model × dataset that lacks a result, with the command that computes it.

        Each dataset should have the probes of the table (or of levels of difficulty), and every probe that any model in
        the folder has there.
        """
        lines = []
        for model, dataset in itertools.product(self.models, self.datasets):
            expected = self._probes_on(dataset) | {*(TABLE_PROBES if self._has_depths(dataset) else LEVEL_PROBES)}
            lacking = [p for p in ARTIFACTS if p in expected and (dataset, model, p) not in self]
            if lacking:
                meta = next((result["meta"] for (other, _, _), result in self.items() if other == dataset), {})
                source = meta.get("source", "hub")
                rows_of = meta.get("rows_of", dataset)
                asked = {"SOURCE": "" if source in ("hub", "drawn", "list") else source, "OUT": str(self.folder)}
                asked["PROBES"] = lacking if {*lacking} & {*FURTHER_PROBES} else ""
                remedy = command("sweep", MODELS=model, DATASETS=rows_of, **asked)
                lines.append(f"no artifact for {dataset} × {model} ({', '.join(lacking)}); run: {remedy}")
        return lines

    def _probes_on(self, dataset: str) -> set[str]:
        """The probes that any model in the folder has on a dataset."""
        return {probe for other, _, probe in self._found if other == dataset}

    def _has_depths(self, dataset: str) -> bool:
        probes = self._probes_on(dataset)
        return bool(probes & {*TABLE_PROBES}) or not (probes & {*LEVEL_PROBES} or dataset in with_levels())


def _asked(folder: Path) -> RunSpec | None:
    """What the last command asked of the run in this folder; None if that is not known."""
    with suppress(ParamsError, ArtifactError):  # status names them
        return asked_in(folder)


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
    embeddings. Values per prompt or example are left out, and token ids; those per level of difficulty, or for a number
    of removed blocks (the first is `layer`), have it in their key, such as mean_layer_effect:3. MissingArtifact if the
    folder has no results.
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
        several = {"K": "levels", "N": "removal_sizes"}.get(shape[0])  # what the values of the first axis are
        of_layers = shape[2:] if several else shape
        if key not in result or not of_layers.startswith("L") or len(of_layers.split()) > 2:
            continue
        by_name = {key: result[key]}
        if several:
            by_name = {f"{key}:{value:.0f}": one for value, one in zip(result[several], result[key], strict=True)}
        for name, values in by_name.items():
            values = values.double().numpy().reshape(len(values), -1)
            layer, column = np.indices(values.shape).reshape(2, -1)
            if of_layers in ("L", "L+1", "L 1"):  # a curve
                column = pd.NA
            frames.append(pd.DataFrame({"layer": layer, "key": name, "value": values.flatten(), "column": column}))
    return pd.concat(frames[1:] or frames, ignore_index=True).astype({"column": "Int64"})


def find_results(folder: str | Path) -> dict[Key, Path]:
    """(dataset, model, probe) -> file, of every result in a folder but those with random weights, probe by probe;
    MissingArtifact if there are none.

    The papers' question comes first, then others, then calls that were changed.
    """
    folder = Path(folder)
    found = {}
    rows = list(ARTIFACTS)
    for path in sorted(folder.glob("*/*/*.pt"), key=by_n_examples):
        with suppress(ArtifactError):  # somebody else's file
            name = parse_name(path)
            key = path.parent.parent.name, path.parent.name, name.key
            if name.probe not in ARTIFACTS or name.key.endswith(BY_RANDOM):
                continue
            if key in found:
                smaller = found[key][1].name
                warnings.warn(f"reading {path}, not {smaller} beside it; remove what you do not want", stacklevel=2)
            found[key] = (name.pair, name.changed, rows.index(name.probe)), path
    if not found:
        raise MissingArtifact(
            f"no artifacts under {folder.absolute()}; run: {command('sweep', OUT=str(folder))}, or give the "
            "folder of a study, such as outputs/demo that make demo fills"
        )
    return {key: path for key, (_, path) in sorted(found.items(), key=lambda item: item[1][0])}
