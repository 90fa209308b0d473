"""What a sweep covers: models × datasets, and the parameters of each run. It loads no torch."""

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..embedded import SAMPLES
from ..hub import without_retries
from ..models.gguf import gguf_in
from ..params import (
    FIVE_PROBES,
    PAPER_DATASETS,
    ParamsError,
    find_dataset,
    find_model,
    not_among,
    params_files,
    problems,
)
from ..results.schemas import ARTIFACTS, FURTHER_PROBES
from .spec import RunSpec, in_project

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
_ANYWHERE = [probe for probe in FURTHER_PROBES if not ARTIFACTS[probe].by_level]  # run on every dataset if named


class Plan(BaseModel):
    """What a command is about: the runs of MODELS on DATASETS, and how they are run.

    It takes any parameter of a run too, in place of what the params files say: Plan(SET="demo", N_EXAMPLES=3).
    """

    model_config = ConfigDict(extra="allow", strict=True)

    SET: str = Field("", description="a folder of params/models: paper, ndif, real, demo, training or your own")
    MODELS: list[str] = Field([], description="names, folders or Hub ids, instead of a whole set")
    DATASETS: list[str] = Field([], description="of params/datasets; the papers' three unless given")
    PROBES: list[str] = Field(
        [], description=f"of {', '.join(ARTIFACTS)}; unless given those that the params files name"
    )
    OUT: str = Field("", description="folder of the results; outputs, and outputs/demo for SET=demo")
    JOBS: int = Field(0, ge=0, description="number of runs side by side, as in -j4 or JOBS=4; 0: one, or one per GPU")
    GPUS: list[str] = Field([], description="each run has one of these to itself")
    KEEP_GOING: bool = Field(False, description="go on past failures")
    LAUNCH: str = Field("", description='stands before the command of each run: "srun --gres=gpu:1 --time=2:00:00"')
    TO: str = Field("", description="of share: the folder to write; OUT/shared unless given")

    @property
    def folder(self) -> str:
        """Where the results are: `outputs`, or `outputs/demo` for SET=demo, unless given."""
        return str(in_project(self.OUT or (DEMO_OUT if self.SET == "demo" else "outputs")))

    @property
    def models(self) -> list[str]:
        """The models named, else those of the set: the one that OUT is called after (outputs/demo) unless given, or
        the papers'. ParamsError for an unknown set."""
        sets = {}
        for name, path in params_files("models").items():
            sets.setdefault(path.parent.name, []).append(name)
        if self.SET and (problem := not_among(sets, "SET", self.SET)):
            raise ParamsError(problem)
        return self.MODELS or sets.get(self.SET or Path(self.folder).name, sets["paper"])

    def runs(self) -> list[RunSpec]:
        """Every dataset with every model, and those of the chosen probes that the dataset's params name; never none.

        Raises ParamsError: unknown names, problems of the params files that are needed, or no probe to run.
        """
        names, known = self.DATASETS or PAPER_DATASETS, params_files("datasets")
        if problem := not_among(known, "DATASETS", *names) or not_among(ARTIFACTS, "PROBES", *self.PROBES):
            if any(Path(name).is_file() for name in names):
                problem += "; for a file of prompts give a dataset's name and SOURCE"
            raise ParamsError(problem)
        datasets = [find_dataset(name) for name in dict.fromkeys(names)]
        models = [model_params(name) for name in dict.fromkeys(self.models)]
        for model, other in itertools.combinations(models, 2):
            if model["MODEL"] == other["MODEL"]:
                raise ParamsError(
                    f"{model['MODEL_ID']} and {other['MODEL_ID']} would share one folder, {model['MODEL']}; give one "
                    f"another name: depth-lib init NAME --model-id {other['MODEL_ID']}"
                )
        if "MODEL_ID" in self.model_extra and len(models) > 1:
            raise ParamsError("MODEL_ID is given for several models; name one with MODELS")
        cells = [self._cell(dataset, model) for dataset in datasets for model in models]
        runs = [RunSpec(cell) for cell in cells if cell["PROBES"]]
        if not runs:
            raise ParamsError(f"nothing to run: {' '.join(names)} have no {' '.join(self.PROBES)} in PROBES of params/")
        if self.GPUS and any(run.asked["TENSOR_PARALLEL"] > 1 for run in runs):
            raise ParamsError("GPUS gives each run one GPU, and TENSOR_PARALLEL needs several; leave out GPUS")
        return runs

    def _cell(self, dataset: Mapping, model: Mapping) -> dict:
        """The parameters of a dataset with a model; PROBES is empty if they name none of the chosen ones."""
        # A model's SOURCE chooses among the samples that ship; a dataset of one's own has rows of its own.
        rows = {} if dataset["DATASET"] in SAMPLES else {key: dataset[key] for key in ("SOURCE",) if key in dataset}
        cell = {"PROBES": FIVE_PROBES} | dataset | model | rows | self.model_extra | {"OUT": self.folder}
        possible = [*cell["PROBES"], *_ANYWHERE]
        return cell | {"PROBES": [probe for probe in self.PROBES or cell["PROBES"] if probe in possible]}


def model_params(name: str) -> dict:
    """The parameters of a model: what its params file says, or those for a folder, a GGUF file or a Hub id.

    Raises ParamsError if the name is none of these.
    """
    if params := find_model(name):
        return params
    path = Path(name).expanduser()
    if not path.exists() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?", name):
        if name.startswith((".", "/", "~")):
            raise ParamsError(f"{name} does not exist; check the path")
        raise ParamsError(
            f"{not_among(params_files('models'), 'MODELS', name)}; or a folder, a GGUF file, a Hub id owner/name"
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
