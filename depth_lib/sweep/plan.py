"""What a command covers: models × datasets, and the parameters of each run. Does not import torch.

`Plan` has every option of every command as a field: the parameters of a run, which override the params files if they
are given (`given_for_runs`), and those below. `Plan.runs()` is the list of runs, on which sweep, status and `--list`
all work.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ..params import NAMED_SOURCES, PAPER_DATASETS, ModelFile, Params, ParamsError, in_order, not_among, params_files
from ..results.asked import RunSpec
from ..results.defaults import as_cell, in_project, source_file
from ..results.schemas import ARTIFACTS, FURTHER_PROBES

DEMO_OUT, REAL_OUT = "outputs/demo", "outputs/real"
_WITHOUT_LEVELS = [probe for probe, row in ARTIFACTS.items() if not row.by_level]  # possible on every dataset
_IN_NO_FILE = [probe for probe in FURTHER_PROBES if probe in _WITHOUT_LEVELS]


class Plan(ModelFile):
    """What a command covers: the runs of MODELS on DATASETS, and how they are executed; for `init`, a model's file.

    A parameter of a run that is given overrides the params files: Plan(SET="demo", N_EXAMPLES=3).
    """

    SET: str = Field(default="", description="a folder of params/models: paper, ndif, real, demo, training or your own")
    MODELS: list[str] = Field(default=[], description="names, folders or Hub ids, instead of a set")
    DATASETS: list[str] = Field(default=[], description="of params/datasets; by default the papers' three")
    PROBES: list[str] = Field(
        default=[], description=f"of {', '.join(ARTIFACTS)}; by default those in the params files"
    )
    OUT: str = Field(default="", description="folder of the results; outputs, and outputs/demo for SET=demo")
    JOBS: int = Field(
        default=0, ge=0, description="number of runs at a time, at most one per GPU; 0: one, or one per GPU"
    )
    KEEP_GOING: bool = Field(default=False, description="go on after failures")
    LIST: bool = Field(default=False, description="print the command of each unfinished run, and execute none")
    LICENCE: str = Field(default="", description="of share: the licence of the numbers, such as cc-by-4.0")
    TEXTS: str = Field(
        default="embedded", description="of maps: a text file, embedded, or a Hub dataset owner/name:config"
    )
    WHAT: Literal["residual", "contribution"] = Field(default="residual", description="of maps: what is predicted")
    N_CHARACTERS: int = Field(
        default=1_000_000, ge=1, description="of maps: the largest number of characters that are read"
    )
    TO: str = Field(default="", description="the folder to write: of share, by default OUT/shared; of compare, none")
    AT_MOST: float = Field(default=0.05, description="of prune: nats per token that the removed blocks may cost")
    SAVE: str = Field(default="", description="of prune: the folder of the shorter model; by default none is written")
    CHOICES: int = Field(
        default=200, ge=0, description="of prune: HellaSwag questions for the accuracy before and after"
    )

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
        return self.MODELS or in_order(name for name in sets if sets[name] == (self.SET or "paper"))

    @property
    def given_for_runs(self) -> dict:
        """The parameters that were given for all runs; OUT and PROBES are each run's own."""
        return self.model_dump(include={*Params.model_fields} - {"OUT", "PROBES"}, exclude_unset=True)

    @property
    def as_options(self) -> dict:
        """What was given, as the options of a command that covers the same runs."""
        which = {"SET": self.SET, "MODELS": self.MODELS, "DATASETS": self.DATASETS, "PROBES": self.PROBES}
        return {name: value for name, value in which.items() if value} | {"OUT": self.folder} | self.given_for_runs

    def runs(self) -> list[RunSpec]:
        """Every model with every dataset, model by model; at least one run.

        Without DATASETS each dataset has those of PROBES that its params file names, or that run only if they are
        named. Probes that read no prompts are on one of a model's datasets only: GSM8K, or the first. Raises
        ParamsError for unknown names, problems in the params files that are needed, two runs with one folder, or no
        probe to run.
        """
        datasets = list(dict.fromkeys(self.DATASETS or PAPER_DATASETS))
        models = list(dict.fromkeys(self.models))
        self._check(datasets, models)
        runs, folders = {}, {}
        for model in models:
            placed = set()  # probes that read no prompts
            for dataset in sorted(datasets, key=lambda name: name != "gsm8k"):
                which = {"MODEL": model, "DATASET": dataset, "OUT": self.folder}
                run = RunSpec(as_cell(self.given_for_runs) | which)
                in_files = run.params["PROBES"]
                possible = {*in_files, *(_WITHOUT_LEVELS if self.DATASETS else _IN_NO_FILE)} - placed
                run.params["PROBES"] = probes = [probe for probe in self.PROBES or in_files if probe in possible]
                placed.update(probe for probe in probes if not ARTIFACTS[probe].reads)
                if probes:
                    runs[model, dataset] = run
                    first = folders.setdefault(run.folder, (model, dataset))
                    if first != (model, dataset):
                        raise ParamsError(
                            f"{' on '.join(first)} and {model} on {dataset} would share the folder {run.folder}; leave "
                            f"one out, or give the model another name: depth-lib init NAME --model-id {model}"
                        )
        if not runs:
            names = " ".join(self.PROBES)
            raise ParamsError(f"nothing to run: {' '.join(datasets)} have no {names} in PROBES of params/")
        return [runs[model, dataset] for model in models for dataset in datasets if (model, dataset) in runs]

    def _check(self, datasets: Sequence[str], models: Sequence[str]) -> None:
        """Raise ParamsError for unknown names, and for a MODEL_ID or a file as SOURCE that is given to several."""
        source = self.given_for_runs.get("SOURCE", "hub")
        file = source_file(source)
        problem = not_among(ARTIFACTS, "PROBES", *self.PROBES)
        if file and not file.is_file():
            known = ", ".join(NAMED_SOURCES)
            problem = f"SOURCE is {source}, and there is no such file; check the path, or give one of {known}"
        elif file and not self.DATASETS:
            problem = f"SOURCE is {source}, the prompts of one dataset; name it: DATASETS=gsm8k, or a name of your own"
        elif file and len(datasets) > 1:
            problem = f"SOURCE is {source}, the prompts of one dataset, and DATASETS are {' '.join(datasets)}; give one"
        elif not file and (unknown := not_among(params_files("datasets"), "DATASETS", *datasets)):
            problem = unknown
            if any(in_project(name).is_file() for name in datasets):
                problem += "; for a file of prompts give it as SOURCE, and a name of your own or a dataset's"
        elif "MODEL_ID" in self.given_for_runs and len(models) > 1:
            problem = "MODEL_ID is given for several models; name one with MODELS"
        if problem:
            raise ParamsError(problem)
