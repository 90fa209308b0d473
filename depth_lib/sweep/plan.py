"""What a sweep covers: models × datasets, and the parameters of each run. It loads no torch."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..embedded import SAMPLES
from ..hub import without_retries
from ..models.gguf import gguf_in
from ..params import (
    Params,
    ParamsError,
    dataset_names,
    find_dataset,
    find_model,
    not_among,
    params_files,
    problems,
    registry_names,
)
from ..results.schemas import ARTIFACTS, FURTHER_PROBES
from .spec import RunSpec

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
PAPER_DATASETS = ("hellaswag", "gsm8k", "aime24")
_ANYWHERE = [probe for probe in FURTHER_PROBES if not ARTIFACTS[probe].by_level]  # run on every dataset if named


@dataclass(frozen=True)
class Plan:
    """The runs that a command is about: every one of `models` on every one of `datasets`.

    models: names of params files, paths or Hub ids; unless given, all of `set`. datasets: the papers' three unless
    given. probes: which of those that the params files name; all unless given. overrides: parameters in place of what
    the params files say. launcher: words before the command of each run. gpus: each run has one of them to itself.
    """

    set: str = ""
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    out: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where the results are: `outputs`, or `outputs/demo` for the toys, unless given."""
        return self.out or (DEMO_OUT if self.set == "demo" else "outputs")

    @property
    def all_models(self) -> list[str]:
        """The models named, else those of the set: the one that OUT is called after (outputs/demo) unless given, or
        the papers'. ParamsError for an unknown set."""
        sets = {}
        for name, path in params_files("models").items():
            sets.setdefault(path.parent.name, []).append(name)
        if self.set and (problem := not_among(sets, "SET", self.set)):
            raise ParamsError(problem)
        if self.models:
            return list(self.models)
        return sets[self.set] if self.set else sets.get(Path(self.folder).name, sets["paper"])

    def runs(self) -> list[RunSpec]:
        """Every dataset with every model, and those of the chosen probes that the dataset's params name; never none.

        Raises ParamsError: unknown names, problems of the params files that are needed, or no probe to run.
        """
        names = self.datasets or PAPER_DATASETS
        problem = not_among(dataset_names(), "DATASETS", *names) or not_among(ARTIFACTS, "PROBES", *self.probes)
        if problem:
            raise ParamsError(problem)
        datasets = [find_dataset(name) for name in names]
        models = [model_params(name) for name in self.all_models]
        if "MODEL_ID" in self.overrides and len(models) > 1:
            raise ParamsError("MODEL_ID is given for several models; name one with MODELS")
        runs = [RunSpec(cell) for dataset in datasets for model in models if (cell := self._cell(dataset, model))]
        if not runs:
            raise ParamsError(f"nothing to run: {' '.join(names)} have no {' '.join(self.probes)} in PROBES of params/")
        if self.gpus and any(run.asked["TENSOR_PARALLEL"] > 1 for run in runs):
            raise ParamsError("GPUS gives each run one GPU, and TENSOR_PARALLEL needs several; leave out GPUS")
        return runs

    def _cell(self, dataset: Mapping, model: Mapping) -> dict | None:
        """The parameters of a dataset with a model; None if they name none of the chosen probes."""
        # A model's SOURCE chooses among the samples that ship; a dataset of one's own has rows of its own.
        rows = {} if dataset["DATASET"] in SAMPLES else {key: dataset[key] for key in ("SOURCE",) if key in dataset}
        cell = Params().model_dump() | dataset | model | rows | self.overrides | {"OUT": self.folder}
        possible = [*cell["PROBES"], *_ANYWHERE]
        cell["PROBES"] = [probe for probe in self.probes or cell["PROBES"] if probe in possible]
        return cell if cell["PROBES"] else None


def model_params(name: str) -> dict:
    """The parameters of a model: what its params file says, or those for a folder, a GGUF file or a Hub id.

    Raises ParamsError if the name is none of these.
    """
    if params := find_model(name):
        return params
    path = Path(name).expanduser()
    if not path.exists() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?", name):
        raise ParamsError(
            f"{not_among(registry_names(), 'MODELS', name)}; or a folder, a GGUF file, a Hub id owner/name"
        )
    short = (path.resolve() if path.exists() else path).name.removesuffix(".gguf")
    return {"MODEL": short, "MODEL_ID": name, "DTYPE": own_dtype(name), "DEVICE_MAP": "auto"}


def own_dtype(model_id: str) -> str:
    """The dtype that a checkpoint's config names; float32 for a GGUF file, bfloat16 if the config cannot be read."""
    path = Path(model_id).expanduser()
    if model_id.endswith(".gguf") or gguf_in(path):
        return "float32"
    from huggingface_hub import hf_hub_download  # takes a moment

    try:
        with without_retries(model_id):
            file = path / "config.json" if path.is_dir() else Path(hf_hub_download(model_id, "config.json"))
        config = json.loads(file.read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 (whatever the Hub raises: loading says it better)
        return "bfloat16"
    dtype = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if problems({"DTYPE": dtype}) else dtype
