"""What a command covers: models × datasets, and the parameters of each run. Does not import torch."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..params import (
    NAMED_SOURCES,
    OF_MODELS,
    PAPER_DATASETS,
    ModelFile,
    Params,
    ParamsError,
    by_size,
    not_among,
    params_files,
    problems,
)
from ..results.asked import RunSpec
from ..results.defaults import as_cell, filled_in, in_project
from ..results.schemas import ARTIFACTS, FURTHER_PROBES

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
_OF_PROMPTS = [probe for probe, row in ARTIFACTS.items() if not row.by_level]  # possible on every dataset
# Parameters of a run that a command may be given; MODELS name its MODEL, and DATASETS its DATASET.
ASKED = [name for name in Params.model_fields if name not in ("MODEL", "DATASET")]
_FURTHER = [probe for probe in FURTHER_PROBES if probe in _OF_PROMPTS]


class Plan(BaseModel):
    """What a command covers: the runs of MODELS on DATASETS, and how they are executed.

    It also takes parameters of a run, which override the params files: Plan(SET="demo", N_EXAMPLES=3). ParamsError for
    names that are neither.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    SET: str = Field("", description="a folder of params/models: paper, ndif, real, demo, training or your own")
    MODELS: list[str] = Field([], description="names, folders or Hub ids, instead of a set")
    DATASETS: list[str] = Field([], description="of params/datasets; by default the papers' three")
    PROBES: list[str] = Field([], description=f"of {', '.join(ARTIFACTS)}; by default those in the params files")
    OUT: str = Field("", description="folder of the results; outputs, and outputs/demo for SET=demo")
    JOBS: int = Field(0, ge=0, description="number of runs at a time, which share the GPUs; 0: one, or one per GPU")
    KEEP_GOING: bool = Field(False, description="go on after failures")
    LIST: bool = Field(False, description="print the command of each unfinished run, and execute none")
    LICENCE: str = Field("", description="of share: the licence of the numbers, such as cc-by-4.0")
    TEXTS: str = Field("embedded", description="of maps: a text file, embedded, or a Hub dataset owner/name:config")
    WHAT: Literal["residual", "contribution"] = Field("residual", description="of maps: what is predicted")
    N_CHARACTERS: int = Field(1_000_000, ge=1, description="of maps: the largest number of characters that are read")
    TO: str = Field("", description="the folder to write: of share, by default OUT/shared; of compare, none")
    AT_MOST: float = Field(0.05, description="of prune: nats per token that the removed blocks may cost")
    SAVE: str = Field("", description="of prune: the folder of the shorter model; by default none is written")
    CHOICES: int = Field(200, ge=0, description="of prune: HellaSwag questions for the accuracy before and after")

    def __init__(self, **given: object) -> None:
        asked = {name: value for name, value in given.items() if name not in Plan.model_fields}
        wrong = not_among([*Plan.model_fields, *ASKED, *OF_MODELS[1:]], "option", *asked)
        if wrong := wrong or "; ".join(problems(asked, ModelFile)):
            raise ParamsError(wrong)
        super().__init__(**given)

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

    @property
    def given(self) -> dict:
        """What this plan was given of its runs: the options of a command that covers the same."""
        lists = {name: " ".join(getattr(self, name)) for name in ("MODELS", "DATASETS", "PROBES")}
        return {"SET": self.SET} | lists | {"OUT": self.folder} | self.model_extra

    def runs(self) -> list[RunSpec]:
        """Every model with every dataset, model by model; at least one run.

        Without DATASETS each dataset has those of PROBES that are in its params file. Raises ParamsError for unknown
        names, problems in the params files that are needed, or no probe to run.
        """
        datasets, models = list(dict.fromkeys(self.DATASETS or PAPER_DATASETS)), list(dict.fromkeys(self.models))
        self._check(datasets, models)
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

    def _check(self, datasets: Sequence[str], models: Sequence[str]) -> None:
        """Raise ParamsError for names that are not known, and for what is given to several that only one can have."""
        source = self.model_extra.get("SOURCE", "hub")
        file = None if source in NAMED_SOURCES else in_project(source)
        problem = not_among(ARTIFACTS, "PROBES", *self.PROBES)
        if file and not file.is_file():
            known = ", ".join(NAMED_SOURCES)
            problem = f"SOURCE is {source}, and there is no such file; check the path, or give one of {known}"
        elif file and not self.DATASETS:
            problem = f"SOURCE is {source}, the prompts of one dataset; name it: DATASETS=gsm8k, or a name of your own"
        elif not file and (unknown := not_among(params_files("datasets"), "DATASETS", *datasets)):
            problem = unknown
            if any(in_project(name).is_file() for name in datasets):
                problem += "; for a file of prompts give it as SOURCE, and a name of your own or a dataset's"
        elif "MODEL_ID" in self.model_extra and len(models) > 1:
            problem = "MODEL_ID is given for several models; name one with MODELS"
        if problem:
            raise ParamsError(problem)

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
