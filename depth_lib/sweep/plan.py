"""What a sweep covers: models × datasets, their probes, and what is said over the params files. It loads no torch."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from types import MappingProxyType

from ..params import PARAMS, Params, ParamsError, load_params
from ..results.commands import sweep_command
from ..results.schemas import ARTIFACTS, FURTHER_PROBES, unknown_probe
from .notebooks import nearby
from .spec import no_folder

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
_VALUES = {"1": True, "True": True, "0": False, "False": False, "null": None, "none": None, "None": None}
_NEEDED = ("MODEL", "MODEL_ID", "DATASET", "N_EXAMPLES", "PROBES")


@dataclass(frozen=True)
class PlannedRun:
    """One model × dataset: its parameters, the params files that they are from, and the command that does it alone."""

    parameters: dict
    files: tuple[Path, ...]
    command: str


@dataclass(frozen=True)
class Plan:
    """What is asked for, in words; where nothing is, the params files say it.

    models: of any set, or all of `set`; datasets: the papers' three unless given; pair: the name of a question with its
    answer, or instead `question` and `answer`; launcher: what stands before the
    command of each run; gpus: each run has one of them to itself; beside: others' results in the table, as folders or
    datasets of the Hub.
    """

    set: str = ""
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    out: str = ""
    source: str = ""
    remote: str = ""
    quantization: str = ""
    pair: str = ""
    question: str = ""
    answer: str = ""
    launcher: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where the results are: `outputs`, or `outputs/demo` for the toys, unless given."""
        return self.out or (DEMO_OUT if self.set == "demo" else "outputs")

    @property
    def all_models(self) -> list[str]:
        """The models named, or those of the set, toy-4l before toy-16l; if none is named, of that whose results lie in
        the folder that is. ParamsError for a set that is not there."""
        sets = {}
        for path in sorted(PARAMS.glob("models/*/*.yaml"), key=lambda path: (path.parent.name != "paper", path)):
            sets.setdefault(path.parent.name, []).append(path.stem)
        if self.set and self.set not in sets:
            raise ParamsError(f"no set {self.set}; params/models has {' '.join(sorted(sets))}.")
        if self.models:
            return list(self.models)
        there = {path.parent.name for path in Path(self.out).glob("*/*/*.pt")} if self.out else set()
        of_what_is_there = [name for name, models in sets.items() if there & set(models)]
        default = "demo" if self.out == DEMO_OUT else [*of_what_is_there, "paper"][0]
        return sorted(sets[self.set or default], key=_by_number)

    @property
    def all_datasets(self) -> list[str]:
        """The datasets named, or the papers' three."""
        return list(self.datasets or PAPER_DATASETS)

    def check(self) -> None:
        """ParamsError for what no command can do: a folder that is a file, or two questions at once."""
        if problem := no_folder(self.folder):
            raise ParamsError(problem)
        if self.pair and (self.question or self.answer):
            own = "QUESTION" if self.question else "ANSWER"
            raise ParamsError(f"PAIR and {own} are both given; leave one out")

    def check_names(self, models: Iterable[str] = (), datasets: Iterable[str] = ()) -> None:
        """ParamsError for names of models, datasets or probes that neither the params files nor these have."""
        known = {folder: _stems(folder) for folder in ("models/*", "datasets")}
        unknown = [
            _unknown(f"{PARAMS.name}/{folder}/{name}.yaml", name, known[folder])
            for folder, asked, further in (
                ("models/*", self.all_models, models),
                ("datasets", self.all_datasets, datasets),
            )
            for name in asked
            if name not in (*known[folder], *further)
        ]
        files = {row.file.removesuffix(".pt").removesuffix("_{n}exps"): name for name, row in ARTIFACTS.items()}
        unknown += [_unknown(f"probe {name}", name, ARTIFACTS, files) for name in self.probes if name not in ARTIFACTS]
        if unknown:
            raise ParamsError("\n".join(unknown))

    def runs(self) -> list[PlannedRun]:
        """Every dataset with every model, and those of the chosen probes that their params name; never none.

        Raises ParamsError: all problems of all params files, an unknown name, or that no params name these probes.
        """
        parsed = _params_files()
        datasets = {path.stem: path for path in parsed if path.parent.name == "datasets"}
        models = {path.stem: path for path in parsed if path not in datasets.values()}
        self.check_names()
        pairs = product(self.all_datasets, self.all_models)
        files = (
            {datasets[dataset]: parsed[datasets[dataset]], models[model]: parsed[models[model]]}
            for dataset, model in pairs
        )
        runs = [run for two in files if (run := self._run(two))]
        if not runs:
            files, absent = ", ".join(str(datasets[name]) for name in self.all_datasets), " and no ".join(self.probes)
            having = [name for name, path in datasets.items() if set(self.probes) <= set(parsed[path]["PROBES"])]
            choice = f", or choose DATASETS={' or '.join(having)}" if having else ""
            raise ParamsError(f"nothing to run: {files}: no {absent} in PROBES; add it there{choice}")
        return runs

    def _run(self, files: dict[Path, dict]) -> PlannedRun | None:
        """The run of a dataset's params file and a model's; None where they name none of the probes."""
        (dataset, model), known = files, {key: value for values in files.values() for key, value in values.items()}
        if absent := [key for key in _NEEDED if key not in known]:
            raise ParamsError(f"{dataset} with {model}: no {', '.join(absent)}; add it to one of them")
        if problem := unknown_probe(known["PROBES"]):
            raise ParamsError(f"{dataset}: {problem}")
        there = {*known["PROBES"], *(probe for probe in FURTHER_PROBES if not ARTIFACTS[probe].by_level)}
        probes = [probe for probe in self.probes or known["PROBES"] if probe in there]
        over = {"REMOTE": self.remote, "QUANTIZATION": self.quantization}
        over = {name: _VALUES.get(word, word) for name, word in over.items() if word} | self._verbatim()
        # the notebook's own default first, for datasets that are drawn
        known |= {"QUESTION": None, "ANSWER": None} if self.pair else {}
        known = {key: value for key, value in known.items() if key in Params.model_fields}  # not how rows are written
        parameters = {"SOURCE": "embedded"} | known | over | {"OUT": self.folder, "PROBES": probes}
        parameters = {name: value for name, value in parameters.items() if name in Params.model_fields}
        return PlannedRun(parameters, (dataset, model), self._command(dataset.stem, model.stem)) if probes else None

    def _verbatim(self) -> dict[str, str]:
        """Parameters that are given in their own words; a pair's name takes the place of what the params files ask."""
        said = {"SOURCE": self.source, "PAIR": self.pair, "QUESTION": self.question, "ANSWER": self.answer}
        return {name: words for name, words in said.items() if words}

    def _command(self, dataset: str, model: str) -> str:
        words = {
            "PROBES": " ".join(self.probes),
            "REMOTE": self.remote,
            "QUANTIZATION": self.quantization,
            "JOBS": os.environ.get("DEPTH_LIB_JOBS", ""),
            **self._verbatim(),
            "GPUS": " ".join(self.gpus),
            "LAUNCH": shlex.join(self.launcher),
        }
        return sweep_command(Path(self.folder) / dataset / model, **words)


def _params_files() -> dict[Path, dict]:
    """The parameters in every params file; ParamsError with all problems of all of them."""
    models = sorted(map(nearby, PARAMS.glob("models/*/*.yaml")), key=lambda path: path.stem)
    datasets = sorted(map(nearby, PARAMS.glob("datasets/*.yaml")))
    twice = [name for name, count in Counter(path.stem for path in models).items() if count > 1]
    if twice:
        same = ", ".join(str(path) for path in models if path.stem in twice)
        raise ParamsError(f"{same}: the name is also the results' folder; give each model its own")
    try:
        return {path: load_params(path) for path in (*models, *datasets)}
    except ParamsError:
        load_params(*models, *datasets)  # all problems in one list
        raise


def _stems(folder: str) -> list[str]:
    return sorted(path.stem for path in PARAMS.glob(f"{folder}/*.yaml"))


def _unknown(what: str, name: str, known: Iterable[str], files: Mapping[str, str] = MappingProxyType({})) -> str:
    """That a name is none of these, and which are near it, by their files' names too (file -> name)."""
    near = get_close_matches(name, known, n=3) or [files[file] for file in get_close_matches(name, files, n=1)]
    near = " or ".join(near)
    return f"no {what}; {f'did you mean {near}? There' if near else 'there'} are {' '.join(known)}."


def _by_number(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
