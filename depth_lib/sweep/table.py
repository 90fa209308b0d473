"""The results that a command names, and the notebook that makes their table and figures."""

import subprocess
from pathlib import Path

from ..files import hold
from ..params import ParamsError, not_among
from ..results.schemas import ArtifactError
from .launch import execution
from .plan import Plan

TABLES = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html")


def chosen_results(plan: Plan) -> tuple[list[str], list[str]]:
    """The models, [] for all there are, and datasets of the results in the plan's folder that it names.

    Raises ParamsError if there are no such results, and what `find_results` raises.
    """
    from ..results.study import by_paper, find_results  # loads torch

    runs = {(dataset, model) for dataset, model, _ in find_results(plan.folder)}
    # results are filed under the last part of a Hub id or of a folder
    models = [Path(name).name.removesuffix(".gguf") for name in plan.models] if plan.MODELS or plan.SET else []
    for place, kind, names in ((0, "DATASETS", plan.DATASETS), (1, "MODELS", models if plan.MODELS else [])):
        if problem := not_among(sorted({run[place] for run in runs}), kind, *names):
            raise ParamsError(f"{problem}, of which {plan.folder} has results")
    datasets = {dataset for dataset, model in runs if not models or model in models}
    if not datasets.intersection(plan.DATASETS or datasets):
        raise ParamsError(f"{plan.folder} has no results of these models and datasets together")
    return models, plan.DATASETS or sorted(datasets, key=by_paper)


def make_table(plan: Plan) -> int:
    """Write the table, the figures and the page OUT/report.html of what is in OUT.

    Returns the exit status. Raises what `chosen_results` raises, before anything is written.
    """
    models, datasets = chosen_results(plan)
    from ..results.study import Study

    out = Path(plan.folder)
    Study(out, models or None, datasets)  # warns here of what is unreadable or misplaced, not only in the notebook
    parameters = {"OUT": str(out), "MODELS": models, "DATASETS": datasets}
    notebook, partial, log = (out / f"effective_depth.{kind}" for kind in ("ipynb", "partial.ipynb", "log"))
    try:
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
    except OSError as error:
        raise ArtifactError(f"{error.filename or out}: {error.strerror}; choose another OUT") from None
    print(f"table and figures: done, {' '.join(str(out / name) for name in TABLES)}")
    return 0
