"""What a sweep covers: models × datasets, and the parameters of each run. Does not import torch."""

from collections.abc import Sequence
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
    by_size,
    command,
    not_among,
    params_files,
    remembered,
    study_file,
    study_line,
)
from ..results.schemas import ARTIFACTS, FURTHER_PROBES
from .defaults import as_cell, filled_in, in_project
from .spec import RunSpec

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
    GPUS: list[str] = Field([], description='"0 1 2 3" instead of all')
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
        sets = {name: path.parent.name for name, path in params_files("models").items()}
        if self.SET and (problem := not_among(sorted({*sets.values()}), "SET", self.SET)):
            raise ParamsError(problem)
        return self.MODELS or sorted((name for name in sets if sets[name] == (self.SET or "paper")), key=by_size)

    def runs(self) -> list[RunSpec]:
        """Every model with every dataset, model by model; at least one run.

        Without DATASETS each dataset has those of PROBES that are in its params file. Raises ParamsError for unknown
        names, problems in the params files that are needed, or no probe to run.
        """
        datasets, file = list(dict.fromkeys(self.DATASETS or PAPER_DATASETS)), self._source_file()
        if file and not in_project(file).is_file():
            known = ", ".join(NAMED_SOURCES)
            raise ParamsError(f"SOURCE is {file}, and there is no such file; check the path, or give one of {known}")
        unknown = None if file else not_among(params_files("datasets"), "DATASETS", *datasets)
        if unknown and any(Path(name).is_file() for name in datasets):
            unknown += "; for a file of prompts give it as SOURCE, and a name of your own or a dataset's"
        if problem := unknown or not_among(ARTIFACTS, "PROBES", *self.PROBES):
            raise ParamsError(problem)
        models = list(dict.fromkeys(self.models))
        if "MODEL_ID" in self.model_extra and len(models) > 1:
            raise ParamsError("MODEL_ID is given for several models; name one with MODELS")
        cells = [cell for model in models for cell in self._cells(model, datasets)]
        runs = [RunSpec(cell) for cell in cells if cell["PROBES"]]
        if not runs:
            names = " ".join(self.PROBES)
            raise ParamsError(f"nothing to run: {' '.join(datasets)} have no {names} in PROBES of params/")
        by_folder = {}
        for run in runs:
            other = by_folder.setdefault(run.folder, run)
            if other is not run:
                one, two = (f"{each.params['MODEL_ID']} on {each.params['DATASET']}" for each in (other, run))
                raise ParamsError(
                    f"{one} and {two} would share the folder {run.folder}; leave one out of MODELS or "
                    f"DATASETS, or give the model another name: depth-lib init NAME --model-id {run.params['MODEL_ID']}"
                )
        return runs

    def _cells(self, model: str, datasets: Sequence[str]) -> list[dict]:
        """The parameters of a model on each dataset; PROBES is empty if a dataset has none of the chosen probes.

        Probes that read no prompts are on one of the datasets only: GSM8K, or the first.
        """
        cells, done = {}, set()
        for name in sorted(datasets, key=lambda name: name != "gsm8k"):
            where = {"MODEL": model, "DATASET": name, "OUT": self.folder}
            cell, _ = filled_in(as_cell(self.model_extra) | where)
            possible = {*cell["PROBES"], *(_OF_PROMPTS if self.DATASETS else _FURTHER)} - done
            cell["PROBES"] = [probe for probe in self.PROBES or cell["PROBES"] if probe in possible]
            done.update(probe for probe in cell["PROBES"] if not ARTIFACTS[probe].reads_prompts)
            cells[name] = as_cell(cell)
        return [cells[name] for name in datasets]

    def _source_file(self) -> str | None:
        source = self.model_extra.get("SOURCE", "hub")
        return None if source in NAMED_SOURCES else source

    def command(self, target: str, *names: str, **variables: object) -> str:
        """A command with the parameters of this plan."""
        given = {"OUT": self.folder, "PROBES": " ".join(self.PROBES)} | self.model_extra | variables
        return command(target, *names, **given)

    def begin(self, runs: Sequence[RunSpec]) -> None:
        """Refuse to replace results, and write the defaults of the next command on this folder to OUT/study.yaml.

        Raises Superseded for the first result that was made with other settings, unless REPLACE is set.
        """
        which = {"MODELS": " ".join(self.MODELS), "DATASETS": " ".join(self.DATASETS), "SET": self.SET}
        remedy = f"run: {self.command('sweep', **which, REPLACE=True)}"
        for run in runs:
            for probe in run.params["PROBES"]:
                with suppress(PromptError, OSError):  # which the run itself reports
                    run.refuse_to_replace(probe, run.provenance(probe), remedy)
        before, file = remembered(self.folder), study_file(self.folder)
        new = {name: self.model_extra[name] for name in REMEMBERED if name in self.model_extra}
        if self._source_file() or len({run.params["MODEL"] for run in runs}) == 1:
            new.pop("SOURCE", None)  # a dataset of its own, or one model's
        if before | new != before:
            with suppress(OSError):  # which the first run reports
                file.parent.mkdir(parents=True, exist_ok=True)
                write_together({file: yaml.safe_dump(before | new).encode()})
        if before.keys() - new:
            print(study_line(self.folder))
