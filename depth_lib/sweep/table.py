"""The results that a command names, and the notebook that makes their table and figures."""

import subprocess
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import hold
from ..params import ParamsError, not_among
from .launch import execution
from .plan import Plan

if TYPE_CHECKING:
    from ..results.study import Study

TABLES = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html")


def chosen_results(plan: Plan) -> "Study":
    """The results in the plan's folder, of the models and datasets that it names, or of all there are.

    Raises ParamsError if there are no such results, and what `Study` raises.
    """
    from ..results.study import Study  # loads torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notebook shows them
        study = Study(plan.folder)
    for kind, names, known in (("MODELS", plan.models, study.models), ("DATASETS", plan.datasets, study.datasets)):
        if problem := not_among(known, kind, *names):
            raise ParamsError(f"{problem}, of which {plan.folder} has results")
    if plan.models or plan.set:
        study.models = plan.all_models
    study.datasets = list(plan.datasets) or study.datasets
    if not study:
        raise ParamsError(f"{plan.folder} has no results of these models and datasets together")
    return study


def make_table(plan: Plan) -> int:
    """Write the table, the figures and the page of what is in the plan's folder; the exit status.

    Raises what `chosen_results` raises, before anything is written.
    """
    study, out = chosen_results(plan), Path(plan.folder)
    with_results = {dataset for dataset, _, _ in study}
    parameters = {
        "OUT": str(out),
        "MODELS": plan.all_models if plan.models or plan.set else [],
        "DATASETS": list(plan.datasets) or [name for name in study.datasets if name in with_results],
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
