"""What a sweep covers: models × datasets, and the parameters of each run. It loads no torch."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from ..hub import without_retries
from ..models.gguf import gguf_in
from ..params import (
    Params,
    ParamsError,
    command,
    dataset_names,
    find_dataset,
    find_model,
    params_files,
    problems,
    registry_names,
)
from ..results.schemas import ARTIFACTS, FURTHER_PROBES
from .spec import RunSpec, no_folder

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")


@dataclass(frozen=True)
class PlannedRun:
    """One model × dataset, and the command that does it alone."""

    spec: RunSpec
    command: str


@dataclass(frozen=True)
class Plan:
    """What is asked for; what is not asked for the params files say.

    models: names of any set, paths or Hub ids, or all of `set`; datasets: the papers' three unless given; probes: of
    those that the params name; overrides: parameters in place of what the params files say; launcher: what stands
    before the command of each run; gpus: each run has one of them to itself; beside: others' results in the table, as
    folders or datasets of the Hub.
    """

    set: str = ""
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    out: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where the results are: `outputs`, or `outputs/demo` for the toys, unless given."""
        return self.out or (DEMO_OUT if self.set == "demo" else "outputs")

    @property
    def all_models(self) -> list[str]:
        """The models named, else those of the set, else of the set whose results are in OUT, else the papers', toy-4l
        before toy-16l. ParamsError for a set that is not there."""
        sets = {}
        for name, path in params_files("models").items():
            sets.setdefault(path.parent.name, []).append(name)
        if self.set and self.set not in sets:
            raise ParamsError(f"no set {self.set}; params/models has {' '.join(sorted(sets))}.")
        if self.models:
            return list(self.models)
        there = {path.parent.name for path in Path(self.out).glob("*/*/*.pt")} if self.out else set()
        of_results = next((name for name in ("paper", *sets) if there & {*sets[name]}), "paper")
        return sorted(sets[self.set or ("demo" if self.out == DEMO_OUT else of_results)], key=_by_number)

    @property
    def all_datasets(self) -> list[str]:
        """The datasets named, or the papers' three."""
        return list(self.datasets or PAPER_DATASETS)

    def check(self) -> None:
        """ParamsError for what no command can do: a folder that is a file, two questions at once, or a parameter that
        is not the same for all runs."""
        if problem := no_folder(self.folder):
            raise ParamsError(problem)
        for own in ("QUESTION", "ANSWER"):
            if {"PAIR", own} <= {*self.overrides}:
                raise ParamsError(f"PAIR and {own} are both given; leave one out")
        if "MODEL_ID" in self.overrides and len(self.all_models) > 1:
            raise ParamsError("MODEL_ID is given for several models; name one with MODELS")

    def check_names(self, models: Iterable[str] = (), datasets: Iterable[str] = ()) -> None:
        """ParamsError for names of models, datasets or probes that neither the params files nor these have."""
        known_models, known_datasets = registry_names(), dataset_names()
        own = [name for name in self.all_models if _own_model(name)]
        files = {row.file.removesuffix(".pt").removesuffix("_{n}exps"): probe for probe, row in ARTIFACTS.items()}
        unknown = [
            *_unknown("params/models/*/{}.yaml", self.all_models, known_models, {*models, *own}),
            *_unknown("params/datasets/{}.yaml", self.all_datasets, known_datasets, datasets),
            *_unknown("probe {}", self.probes, ARTIFACTS, (), files),
        ]
        if unknown:
            raise ParamsError("\n".join(unknown))

    def runs(self) -> list[PlannedRun]:
        """Every dataset with every model, and those of the chosen probes that their params name; never none.

        Raises ParamsError: an unknown name, all problems of the params files that are needed, or that no params name
        these probes.
        """
        self.check_names()
        models = {name: self.model_params(name) for name in self.all_models}
        datasets = [find_dataset(name) for name in self.all_datasets]
        planned = [self._run(dataset, name, model) for dataset in datasets for name, model in models.items()]
        if not any(planned):
            absent, where = " and no ".join(self.probes), " ".join(self.all_datasets)
            having = [name for name in dataset_names() if {*self.probes} <= {*find_dataset(name).get("PROBES", ())}]
            choice = f", or choose DATASETS={' or '.join(having)}" if having else ""
            raise ParamsError(f"nothing to run: {where}: no {absent} in PROBES; add it to the params file{choice}")
        return [run for run in planned if run]

    def model_params(self, name: str) -> dict:
        """What the params file of a model says, or what goes for a folder, a GGUF file or a Hub id; ParamsError for
        another name."""
        params = find_model(name) or _own_model(name)
        if not params:
            raise ParamsError(next(_unknown("params/models/*/{}.yaml", [name], registry_names(), ())))
        return params

    def _run(self, dataset: dict, name: str, model: dict) -> PlannedRun | None:
        """The run of a dataset's params and a model's; None where they name none of the chosen probes."""
        known = Params().model_dump() | dataset | model
        if "PAIR" in self.overrides:
            known |= {"QUESTION": None, "ANSWER": None}
        known |= {**self.overrides, "OUT": self.folder}
        there = {*known["PROBES"], *(probe for probe in FURTHER_PROBES if not ARTIFACTS[probe].by_level)}
        known["PROBES"] = [probe for probe in self.probes or known["PROBES"] if probe in there]
        if not known["PROBES"]:
            return None
        try:
            spec = RunSpec(known)
        except ParamsError as problem:
            raise ParamsError(f"{dataset['DATASET']} × {name}: {problem}") from None
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in self.overrides.items()}
        lists = {"PROBES": " ".join(self.probes), "GPUS": " ".join(self.gpus), "LAUNCH": shlex.join(self.launcher)}
        place = {"MODELS": name, "DATASETS": spec.dataset, "OUT": self.folder}
        return PlannedRun(spec, command("sweep", **place, **texts, **lists))


def own_dtype(model_id: str) -> str:
    """The dtype that a checkpoint's config names; float32 for a GGUF file, bfloat16 where nothing can be read."""
    if model_id.endswith(".gguf") or gguf_in(Path(model_id).expanduser()):
        return "float32"
    try:
        config = json.loads(_config_file(model_id).read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 (whatever the Hub raises: loading says it better)
        return "bfloat16"
    dtype = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if problems({"DTYPE": dtype}) else dtype


def _config_file(model_id: str) -> Path:
    path = Path(model_id).expanduser()
    if path.is_dir():
        return path / "config.json"
    from huggingface_hub import hf_hub_download  # takes a moment

    with without_retries(model_id):
        return Path(hf_hub_download(model_id, "config.json"))


def _own_model(name: str) -> dict | None:
    """The parameters of a model without a params file, by a path or a Hub id as load_model takes it; None if it is
    neither."""
    path = Path(name).expanduser()
    if not (path.exists() or re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?", name)):
        return None
    short = (path.resolve() if path.exists() else path).name.removesuffix(".gguf")
    return {"MODEL": short, "MODEL_ID": name, "DTYPE": own_dtype(name), "DEVICE_MAP": "auto"}


def _unknown(
    what: str, names: Iterable[str], known: Iterable[str], others: Iterable[str], files: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A line for each name that is neither known nor one of the others, with those near it (files: file -> name)."""
    for name in names:
        if name not in (*known, *others):
            near = get_close_matches(name, known, n=3)
            near = near or [files[file] for file in get_close_matches(name, files or {}, n=1)]
            hint = f"did you mean {' or '.join(near)}? There" if near else "there"
            yield f"no {what.format(name)}; {hint} are {' '.join(known)}."


def _by_number(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
