"""Two models or more, or one before and after training: their effective depths, and the differences."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from nnsight import TransformersModel

from .data.tokens import texts_of
from .effective_depth.intervals import UNPAIRED, NoInterval, difference_interval, equal_prompts, open_ends, same_prompts
from .effective_depth.rules import RULES, Rule
from .effective_depth.tables import effective_depths
from .figures.grid import figure_of, save
from .figures.kinds import KINDS, find_kind
from .files import path_of, writable_folder, write_beside
from .params import params_files
from .probes.logit_lens import logit_lens
from .probes.relative_contribution import relative_contribution
from .results.result import fitting, probe_of
from .results.schemas import MissingArtifact
from .results.study import Study

_MEASURED = {"at": "all", "generate": 0, "answers": None, "lens": None}  # settings and their defaults
FIGURES = ("cosine", "relative_contribution", "lens_kl", "lens_overlap", "layer_effects", "output_change")
COLUMNS = (
    "dataset rule first second ed_first ed_second ratio_first ratio_second difference low high prompts note".split()
)

Source = Mapping | TransformersModel | str | Path


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. Printing it shows `frame`.

    - results: (dataset, probe) -> name -> result; the data set is "" if unknown
    """

    results: Mapping[tuple[str, str], Mapping[str, Mapping]]

    def __repr__(self) -> str:
        if self.frame.empty:
            return "no effective depths: they need logit_lens or relative_contribution; .plot() draws these results"
        return self.frame.to_string(index=False, na_rep="–", float_format="{:.2f}".format)

    @property
    def frame(self) -> pd.DataFrame:
        """A DataFrame with one row per data set, rule and model after the first.

        - dataset, rule
        - first, second: names of the two models
        - ed_first, ed_second: their effective depths, layers
        - ratio_first, ratio_second: (layer + 1) / L
        - difference: ratio_second − ratio_first
        - low, high: the 95% confidence interval of the difference; NA if the interval is missing or unbounded at that
          end
        - prompts: the number of prompts of the second model
        - note: why a value is missing, or how the prompts were compared
        """
        rows = [
            {"dataset": dataset, "rule": name, "first": first, "second": second}
            | _difference(rule, results[first], results[second])
            for (dataset, _), results in self.results.items()
            for name, rule in RULES.items()
            for first, *others in [[*results]]
            for second in others
            if rule.reads(results[first]) and rule.reads(results[second])
        ]
        whole = dict.fromkeys(("ed_first", "ed_second", "prompts"), "Int64")
        shares = dict.fromkeys(("ratio_first", "ratio_second", "difference", "low", "high"), float)
        return pd.DataFrame(rows, columns=COLUMNS).astype(whole | shares)

    def plot(self, kind: str = "") -> list[Figure]:
        """Draw one figure per kind and data set, with all models in it.

        Curves share a panel; each model has its own row of heat maps.

        - kind: the figure's name; by default those of cosine, relative_contribution, lens_kl, lens_overlap,
          layer_effects and output_change whose keys the results contain

        Raises ValueError if a result lacks what the figure needs.
        """
        figures = [figure for name in ([kind] if kind else FIGURES) for _, figure in self._drawn(name)]
        if kind and not figures:
            raise ValueError(f"{kind} needs a result of {KINDS[kind].probe} for each name")
        return figures

    def save(self, folder: str | Path) -> list[Path]:
        """Write depths.csv (the frame) and the figures as .png and .pdf; returns the paths of the .csv and .png files.

        An existing file with the same name and different content is renamed to `<name>.replaced-1`.
        """
        folder = writable_folder(folder, ValueError)
        write_beside({folder / "depths.csv": self.frame.to_csv(index=False).encode()})
        drawn = [(name, figure) for kind in FIGURES for name, figure in self._drawn(kind)]
        return [folder / "depths.csv", *(save(figure, folder / f"{name}.png", write_beside) for name, figure in drawn)]

    def _drawn(self, name: str):
        """The name of a file and the figure of one kind, for each data set that has it."""
        kind = find_kind(name)
        for (dataset, probe), results in self.results.items():
            if kind.probe == probe and all(map(kind.values, results.values())):
                title = ": ".join(filter(None, [kind.title, dataset]))
                yield "_".join(filter(None, [dataset, name])), figure_of(kind, results, title)


def _difference(rule: Rule, first: Mapping, second: Mapping) -> dict:
    """Both depths, their difference and its interval, or a note on why they are missing."""
    name = next(name for name, other in RULES.items() if other is rule)
    depths = [effective_depths(result).set_index("rule").loc[name] for result in (first, second)]
    row = {"ed_first": depths[0].ed, "ed_second": depths[1].ed, "prompts": depths[1].prompts, "note": ""}
    row |= {"ratio_first": depths[0].ratio, "ratio_second": depths[1].ratio}
    notes = [_other_settings(first, second)]
    if missing := [depth.note for depth in depths if pd.isna(depth.ed)]:
        return row | {"note": _joined([*notes, *missing])}
    row["difference"] = depths[1].ratio - depths[0].ratio
    try:
        row["low"], row["high"] = low, high = difference_interval(first, second, rule)
        notes += [open_ends(low, high)]
        notes += [equal_prompts(result, rule) for result in (first, second)]
        notes += ["" if same_prompts(first, second) else UNPAIRED]
    except NoInterval as reason:
        notes += [f"no interval: {reason}"]
    return row | {"note": _joined(notes)}


def _joined(notes: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, notes)))


def _other_settings(first: Mapping, second: Mapping) -> str:
    """A note on the settings that say which tokens are measured, or through which lens, and differ; else ""."""
    both = [result.get("meta", {}).get("settings", {}) for result in (first, second)]
    said = [
        f"{name}={_short(values[0])} and {_short(values[1])}"
        for name, default in _MEASURED.items()
        if (values := [one.get(name, default) for one in both]) and values[0] != values[1]
    ]
    return f"measured differently: {', '.join(said)}" if said else ""


def _short(value: object) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else reprlib.repr(value)


def compare(of: Mapping[str, Source], prompts: Sequence[str] | None = None) -> Comparison:
    """Compare effective depths and curves of two or more models: compare({"base": a, "tuned": b}).

    >>> prompts = dl.load_prompts("gsm8k", 3, source="embedded")
    >>> found = dl.compare({name: dl.load_model(name) for name in ("toy-4l", "toy-8l")}, prompts)
    >>> found.frame.rule.tolist()
    ['cosine', 'kl', 'overlap']

    - of: name -> a model, a result, a `Run`, or a folder of results (a run's, or a one-model sweep's OUT); all are
      compared with the first
    - prompts: list of strings, for models

    Returns a Comparison:

    - frame: a row per data set, rule and model, with both depths, the difference and its interval
    - plot(): draws the curves together
    - save(folder): writes the frame and the figures

    The interval of the difference is the range over all pairs of layers in the two depths' intervals. If both models
    read the same prompts, pairs that the prompts rule out are left out, so that shared noise cancels.

    Raises ValueError for fewer than two models or results, for models without prompts, or if the results share no probe
    on the same data set. Raises MissingArtifact for a folder without results.
    Cost: two forward passes per prompt for models; otherwise none.
    """
    if not isinstance(of, Mapping) or len(of) < 2 or "meta" in of:
        raise ValueError(
            'compare expects at least two results, or models with prompts: dl.compare({"base": a, "tuned": b})'
        )
    found = {str(name): _results_of(str(name), source, prompts) for name, source in of.items()}
    if prompts is not None and not any(isinstance(source, TransformersModel) for source in of.values()):
        raise ValueError("prompts are for models, and these are results; leave the prompts out")
    first, *others = found
    shared = [key for key in found[first] if all(key in found[name] for name in others)]
    if not shared:
        have = "; ".join(f'"{name}" has {", ".join(map(_spoken, results))}' for name, results in found.items())
        raise ValueError(f"the results do not share a probe on the same data set: {have}")
    comparison = Comparison({key: {name: found[name][key] for name in found} for key in shared})
    if comparison.frame.empty and not any(True for kind in FIGURES for _ in comparison._drawn(kind)):
        probes = ", ".join(probe for _, probe in shared)
        raise ValueError(f"the results have no depths, only {probes}; use logit_lens or relative_contribution")
    return comparison


def _spoken(key: tuple[str, str]) -> str:
    return " on ".join(filter(None, reversed(key)))


def _results_of(name: str, source: Source, prompts: Sequence[str] | None) -> dict[tuple[str, str], Mapping]:
    """(dataset, probe) -> result of one model."""
    if isinstance(source, TransformersModel):
        if prompts is None:
            raise ValueError(f'"{name}" is a model; pass the prompts too: dl.compare({{"{name}": llm, …}}, prompts)')
        return {("", p.__name__): p(source, texts_of(prompts)) for p in (relative_contribution, logit_lens)}
    if isinstance(source, Mapping):
        if not (probe := probe_of(source)):
            several = "; call compare once for each probe" * all(isinstance(one, Mapping) for one in source.values())
            keys = ", ".join(map(str, source))
            raise ValueError(f'"{name}" is not the result of a probe (keys: {keys}){several}')
        return {("", probe): fitting(source)}
    folder = getattr(source, "folder", source)
    if not isinstance(folder, str | Path):
        raise ValueError(
            f'"{name}" must be a model, a result, a Run or a folder of results, got {type(source).__name__}'
        )
    source, folder = str(folder), path_of(folder).resolve()
    model = prompts is not None or source in params_files("models")
    if (folder / "config.json").is_file() or model and not folder.is_dir():
        raise ValueError(
            f"{name}: {source} is not a folder of results; pass the model itself, dl.load_model({source!r})"
        )
    if not folder.is_dir():
        raise MissingArtifact(f"{name}: no such folder: {folder}; use that of a run, such as outputs/gsm8k/toy-8l")
    of_run = any(folder.glob("*.pt"))
    study = Study(folder.parents[1], [folder.name], [folder.parent.name]) if of_run else Study(folder)
    if len(study.models) > 1:
        several = ", ".join(study.models)
        raise ValueError(f"{name}: {folder} has {several}; use one model's, {folder}/{study.datasets[0]}/NAME")
    return {(dataset, probe): result for (dataset, _, probe), result in study.items()}
