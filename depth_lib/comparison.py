"""Two models, or one before and after training: what differs, and whether it is more than chance."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import cast

import pandas as pd
from matplotlib.figure import Figure

from .effective_depth.changes import Change, depth_change, same_prompts
from .effective_depth.rules import METRICS, PAPER_METRICS
from .figures import KINDS, plot
from .figures.grid import save
from .figures.kinds import find_kind
from .results.result import Result
from .results.schemas import ARTIFACTS, MissingArtifact, without_pair
from .results.study import Study

FIGURES = ("cosine", "relative_contribution", "lens_kl", "lens_overlap", "layer_effects", "output_change")

Source = Mapping | str | Path


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `compare` returns: as text a sentence for each effective depth.

    results: dataset ("" where it is not known) and probe -> name -> result; changes: dataset -> its changes, of every
    model from the first.
    """

    results: Mapping[tuple[str, str], Mapping[str, Mapping]]
    changes: Mapping[str, list[Change]]

    def __repr__(self) -> str:
        """A line for each dataset, rule and model beside the first."""
        lines = [f"{dataset}: {change}" if dataset else str(change) for dataset, change in self._each()]
        return "\n".join(lines) or "No effective depth is read from these results; plot() draws them."

    def depths(self) -> pd.DataFrame:
        """A row per dataset, rule and model beside the first: both depths, their difference, its ends, and a note.

        Columns dataset, metric, first, second, ed_first, ed_second, difference (layers, or a share of the depth of
        models with different numbers of them), low, high, prompts, note.
        """
        rows = [
            (dataset, c.metric, c.first, c.second, *c.depths, c.difference, c.low, c.high, c.n_prompts, c.note)
            for dataset, c in self._each()
        ]
        columns = "dataset metric first second ed_first ed_second difference low high prompts note".split()
        return pd.DataFrame(rows, columns=columns).astype({"ed_first": "Int64", "ed_second": "Int64"})

    def plot(self, kind: str = "") -> list[Figure]:
        """Draw a kind of figure, or those of `FIGURES` that the results allow: curves in one panel, heat maps of two
        with their difference. A figure per dataset. ValueError for a kind that no result has the keys of."""
        figures = [figure for name in ([kind] if kind else FIGURES) for _, figure in self._drawn(name)]
        if kind and not figures:
            raise ValueError(f"{kind} is drawn from {KINDS[kind].probe}, which these results do not all have")
        return figures

    def save(self, folder: str | Path) -> list[Path]:
        """Write the figures, the frame as depths.csv and the sentences as comparison.txt; the paths written."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"depths.csv": self.depths().to_csv(index=False), "comparison.txt": f"{self}\n"}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        drawn = [(label, figure) for name in FIGURES for label, figure in self._drawn(name)]
        figures = [path for label, figure in drawn for path in save(figure, folder / label)]
        return [*figures, *(folder / name for name in texts)]

    def _drawn(self, name: str):
        """The name of a file and the figure of one kind, for each dataset that has it."""
        kind = find_kind(name)
        for (dataset, probe), results in self.results.items():
            if kind.probe == probe and all(map(kind.can_draw, results.values())):
                title = ": ".join(filter(None, [kind.title, dataset]))
                yield "_".join(filter(None, [dataset, name])), cast(Figure, plot(name, results, title=title).figure)

    def _each(self):
        return [(dataset, change) for dataset, changes in self.changes.items() for change in changes]


def compare(of: Mapping[str, Source], *unnamed: Source) -> Comparison:
    """Curves, effective depths and their differences of two models or more: compare({"base": a, "tuned": b}).

    >>> prompts = dl.load_prompts("gsm8k", 3, source="embedded")
    >>> lens = {name: dl.logit_lens(dl.load_model(name), prompts) for name in ("toy-4l", "toy-8l")}
    >>> len(dl.compare(lens).depths())
    2

    of: name -> what a probe or `load_artifact` returned, a `Run`, or a folder of results: a run's (outputs/gsm8k/NAME)
    or a study's with one model. The first is what the others are compared with, on the probes and datasets that all
    have. Of models that have read the same prompts each difference has a 95 % interval, over these prompts.

    Returns a `Comparison`: as text its sentences; `.depths()` is the frame, `.plot()` draws, `.save(folder)` writes
    both. ValueError for fewer than two, or nothing in common; MissingArtifact for a folder without results.
    Cost: no forward pass; the bootstrap of an interval for each depth.
    """
    if unnamed or not isinstance(of, Mapping) or len(of) < 2 or "meta" in of:
        raise ValueError('give two results or more by name: dl.compare({"base": a, "tuned": b}).')
    found = {name: _results_of(name, source) for name, source in of.items()}
    first, *others = found
    shared = [key for key in found[first] if all(key in found[name] for name in others)]
    if not shared:
        have = "; ".join(f"{name} has {', '.join(map(_spoken, results))}" for name, results in found.items())
        raise ValueError(f"they have no probe on the same dataset in common: {have}.")
    results = {key: {name: found[name][key] for name in found} for key in shared}
    changes = {}
    for (dataset, probe), by_name in results.items():
        metrics = [name for name in PAPER_METRICS if METRICS[name].probe == without_pair(probe)]
        of_probe = [
            depth_change(by_name[first], by_name[other], metric, (first, other))
            for metric in metrics
            for other in others
        ]
        changes.setdefault(dataset, []).extend(of_probe)
    return Comparison(results, changes)


def beside_the_first(study: Study) -> list[str]:
    """A sentence for each effective depth of each model beside the study's first, where both have read the same
    prompts."""
    lines, (first, *others) = [], study.models
    for dataset, other, metric in product(study.datasets, others, PAPER_METRICS):
        both = [study.get((dataset, model, METRICS[metric].probe), {}) for model in (first, other)]
        if all(map(METRICS[metric].reads, both)) and same_prompts(*both):
            lines.append(f"{dataset}: {depth_change(both[0], both[1], metric, (first, other))}")
    return lines


def _spoken(key: tuple[str, str]) -> str:
    return " on ".join(filter(None, reversed(key)))


def _results_of(name: str, source: Source) -> dict[tuple[str, str], Mapping]:
    """(dataset, probe) -> result of one model."""
    if isinstance(source, Mapping):
        return {("", _probe_of(name, source)): source}
    folder = getattr(source, "folder", source)
    if not isinstance(folder, str | Path):
        raise ValueError(f"{name} is a {type(source).__name__}; give a probe's result, a Run, or a folder of results.")
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise MissingArtifact(f"{name}: there is no folder {folder}; give that of a run, such as outputs/gsm8k/toy-8l")
    of_run = any(folder.glob("*.pt"))
    study = Study(folder.parents[1], [folder.name], [folder.parent.name]) if of_run else Study(folder)
    if len(study.models) > 1:
        several = ", ".join(study.models)
        raise ValueError(f"{name}: {folder} has {several}; give one model's, {folder}/{study.datasets[0]}/NAME.")
    return {(dataset, probe): result for (dataset, _, probe), result in study.items()}


def _probe_of(name: str, result: Mapping) -> str:
    """The probe that a result in memory is of."""
    if isinstance(result, Result):
        return result.probe
    whole = [probe for probe, schema in ARTIFACTS.items() if result.keys() >= schema.required.keys()]
    partly = [probe for probe, schema in ARTIFACTS.items() if result.keys() & schema.shapes.keys()]
    if whole or partly:
        return (whole or partly)[0]
    raise ValueError(f"{name} is no result of a probe; its keys are {', '.join(map(str, result))}.")
