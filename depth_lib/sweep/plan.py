"""What a sweep covers: models × datasets, and the parameters of each run. Does not import torch."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from ..data.rows import PromptError
from ..files import write_together
from ..params import (
    NAMED_SOURCES,
    PAPER_DATASETS,
    REMEMBERED,
    ParamsError,
    as_texts,
    by_size,
    command,
    find_dataset,
    not_among,
    params_files,
    remembered,
    study_file,
)
from ..results.schemas import ARTIFACTS, FURTHER_PROBES
from .defaults import defaults, model_params
from .spec import RunSpec, in_project

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
_OF_PROMPTS = [probe for probe, row in ARTIFACTS.items() if not row.by_level]  # possible on every dataset
_FURTHER = [probe for probe in FURTHER_PROBES if probe in _OF_PROMPTS]


class Plan(BaseModel):
    """What a command covers: the runs of MODELS on DATASETS, and how they are executed.

    It also takes parameters of a run, which override the params files: Plan(SET="demo", N_EXAMPLES=3).
    """

    model_config = ConfigDict(extra="allow", strict=True)

    SET: str = Field("", description="a folder of params/models: paper, ndif, real, demo, training or your own")
    MODELS: list[str] = Field([], description="names, folders or Hub ids, instead of a set")
    DATASETS: list[str] = Field([], description="of params/datasets; by default the papers' three")
    PROBES: list[str] = Field([], description=f"of {', '.join(ARTIFACTS)}; by default those in the params files")
    OUT: str = Field("", description="folder of the results; outputs, and outputs/demo for SET=demo")
    JOBS: int = Field(0, ge=0, description="number of runs at a time, which share the GPUs; 0: one, or one per GPU")
    GPUS: list[str] = Field([], description='"0 1 2 3" instead of all; "0,1 2,3": two runs with two each')
    KEEP_GOING: bool = Field(False, description="go on after failures")
    LAUNCH: str = Field("", description='put in front of the command of each run: "srun --gres=gpu:1 --time=2:00:00"')
    LIST: bool = Field(False, description="print the command of each unfinished run, and execute none")
    LICENCE: str = Field("", description="of share: the licence of the numbers, such as cc-by-4.0")
    TEXTS: str = Field("embedded", description="of maps: a text file, embedded, or a Hub dataset owner/name:config")
    WHAT: Literal["residual", "contribution"] = Field("residual", description="of maps: what is predicted")
    N_CHARACTERS: int = Field(1_000_000, ge=1, description="of maps: the largest number of characters that are read")
    TO: str = Field("", description="of share: the folder to write; by default OUT/shared")

    @property
    def folder(self) -> str:
        """The folder of the results: OUT, by default `outputs`, or `outputs/demo` for SET=demo."""
        return str(in_project(self.OUT or (DEMO_OUT if self.SET == "demo" else "outputs")))

    @property
    def models(self) -> list[str]:
        """MODELS, or the models of SET (by default the papers'), small ones first. ParamsError for an unknown set."""
        sets = {}
        for name, path in params_files("models").items():
            sets.setdefault(path.parent.name, []).append(name)
        if self.SET and (problem := not_among(sets, "SET", self.SET)):
            raise ParamsError(problem)
        return self.MODELS or sorted(sets[self.SET or "paper"], key=by_size)

    def runs(self) -> list[RunSpec]:
        """Every model with every dataset, model by model; at least one run.

        Without DATASETS each dataset has those of PROBES that are in its params file. Raises ParamsError for unknown
        names, problems in the params files that are needed, or no probe to run.
        """
        if (file := self._source_file()) and not in_project(file).is_file():
            known = ", ".join(NAMED_SOURCES)
            raise ParamsError(f"SOURCE is {file}, and there is no such file; check the path, or give one of {known}")
        names, known = self.DATASETS or PAPER_DATASETS, params_files("datasets")
        unknown = not_among(known, "DATASETS", *names) if self._source_file() is None else None
        if problem := unknown or not_among(ARTIFACTS, "PROBES", *self.PROBES):
            if any(Path(name).is_file() for name in names):
                problem += "; for a file of prompts give it as SOURCE, and a name of your own or a dataset's"
            raise ParamsError(problem)
        datasets = [find_dataset(name) or {"DATASET": name} for name in dict.fromkeys(names)]
        models = [model_params(name) for name in dict.fromkeys(self.models)]
        for model, other in itertools.combinations(models, 2):
            if model["MODEL"] == other["MODEL"]:
                raise ParamsError(
                    f"{model['MODEL_ID']} and {other['MODEL_ID']} would share one folder, {model['MODEL']}; give one "
                    f"another name: depth-lib init NAME --model-id {other['MODEL_ID']}"
                )
        if "MODEL_ID" in self.model_extra and len(models) > 1:
            raise ParamsError("MODEL_ID is given for several models; name one with MODELS")
        cells = [self._cell(dataset, model) for model in models for dataset in datasets]
        runs = [RunSpec(cell) for cell in _once_per_model(cells) if cell["PROBES"]]
        if len({run.folder for run in runs}) < len(runs):
            raise ParamsError(f"{' '.join(names)} would all read SOURCE {self._source_file()}; name one with DATASETS")
        if not runs:
            raise ParamsError(f"nothing to run: {' '.join(names)} have no {' '.join(self.PROBES)} in PROBES of params/")
        return runs

    def _cell(self, dataset: Mapping, model: Mapping) -> dict:
        """The parameters of a model on a dataset; PROBES is empty if the dataset has none of the chosen probes."""
        cell = {}
        for values in (*defaults(model, dataset, self.folder).values(), self.model_extra, {"OUT": self.folder}):
            cell |= values
        possible = {*cell["PROBES"], *_OF_PROMPTS} if self.DATASETS else {*cell["PROBES"], *_FURTHER}
        return cell | {"PROBES": [probe for probe in self.PROBES or cell["PROBES"] if probe in possible]}

    def _source_file(self) -> str | None:
        source = self.model_extra.get("SOURCE", "hub")
        return None if source in NAMED_SOURCES else source

    def begin(self, runs: Sequence[RunSpec]) -> None:
        """Refuse to replace results, and write the defaults of the next command on this folder to OUT/study.yaml.

        Raises Superseded for the first result that was made with other settings, unless REPLACE is set.
        """
        named = {name: " ".join(getattr(self, name)) for name in ("MODELS", "DATASETS", "PROBES")}
        given = as_texts(self.model_extra) | {"SET": self.SET, "OUT": self.folder, "REPLACE": True}
        remedy = f"run: {command('sweep', **named, **given)}"
        for run in runs:
            for probe in run.params["PROBES"]:
                with suppress(PromptError, OSError):  # which the run itself reports
                    run.refuse_to_replace(probe, run.provenance(probe), remedy)
        before, file = remembered(self.folder), study_file(self.folder)
        new = {name: self.model_extra[name] for name in REMEMBERED if name in self.model_extra}
        if self._source_file() or len({run.params["MODEL"] for run in runs}) == 1:
            new.pop("SOURCE", None)  # a dataset of its own, or one model's
        if before.keys() - new:
            print(f"{file}: {' '.join(f'{name}={text}' for name, text in as_texts(before | new).items())}")
        if before | new != before:
            with suppress(OSError):  # which the first run reports
                file.parent.mkdir(parents=True, exist_ok=True)
                write_together({file: yaml.safe_dump(before | new).encode()})


def _once_per_model(cells: list[dict]) -> list[dict]:
    """Keep probes that read no prompts on one dataset of each model only: GSM8K, or the first."""
    by_model = {}
    for cell in sorted(cells, key=lambda cell: cell["DATASET"] != "gsm8k"):
        done = by_model.setdefault(cell["MODEL"], set())
        cell["PROBES"] = [probe for probe in cell["PROBES"] if probe not in done]
        done.update(probe for probe in cell["PROBES"] if not ARTIFACTS[probe].reads_prompts)
    return cells
