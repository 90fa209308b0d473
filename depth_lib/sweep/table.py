"""The results that a command names, and the notebook that makes their table and figures."""

import subprocess
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import hold
from ..params import ParamsError, dataset_names, not_among, registry_names
from .launch import execution
from .plan import PAPER_DATASETS, Plan

if TYPE_CHECKING:
    from ..results.study import Study

TABLES = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html")


def chosen_results(plan: Plan) -> "Study":
    """The results in the plan's folder, and beside it, of the models and datasets that it names, or of all there are.

    Raises ParamsError for an unknown name or if there are no such results, and what `Study` raises.
    """
    from ..results.study import Study  # loads torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notebook shows them
        everything = Study(plan.folder, beside=plan.beside)
    known_models, known_datasets = [*registry_names(), *everything.models], [*dataset_names(), *everything.datasets]
    problem = not_among(known_models, "MODELS", *plan.models) or not_among(known_datasets, "DATASETS", *plan.datasets)
    if problem:
        raise ParamsError(problem)
    models = plan.all_models if plan.models or plan.set else everything.models
    study = Study(plan.folder, models, plan.datasets or everything.datasets, plan.beside)
    if not study:
        there = f"{' '.join(everything.models)} on {' '.join(everything.datasets)}"
        raise ParamsError(f"no results of these MODELS and DATASETS in {plan.folder}, which has {there}")
    return study


def make_table(plan: Plan) -> int:
    """Write the table, the figures and the page of what is in the plan's folder; the exit status.

    Raises what `chosen_results` raises, before anything is written.
    """
    study, out = chosen_results(plan), Path(plan.folder)
    with_results = {dataset for dataset, _, _ in study}
    papers = [name for name in PAPER_DATASETS if name in with_results]
    parameters = {
        "OUT": str(out),
        "MODELS": plan.all_models if plan.models or plan.set else [],
        "DATASETS": list(plan.datasets) or papers or [name for name in study.datasets if name in with_results],
        "BESIDE": list(plan.beside),
    }
    notebook, partial, log = (out / f"effective_depth.{kind}" for kind in ("ipynb", "partial.ipynb", "log"))
    out.mkdir(parents=True, exist_ok=True)
    with hold(out / ".table"):
        print(f"table and figures: running, log in {log}", flush=True)
        with log.open("wb") as file:
            command = execution("effective_depth", partial, parameters)
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if status:
            print(f"table and figures: {log.read_text(errors='replace').rstrip().splitlines()[-1]}")
            return 1
        partial.replace(notebook)
    print(f"table and figures: done, {' '.join(str(out / name) for name in TABLES)}")
    return 0
