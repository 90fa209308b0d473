"""The commands table and report: the notebook with the table and figures of all results, or those chosen."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from ..params import ParamsError, not_among, params_files
from .plan import Plan
from .processes import NOTEBOOKS, Executor, Notebook, say

TABLES = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html")


def chosen_results(plan: Plan) -> tuple[list[str], list[str]]:
    """The models ([]: all) and the datasets that a plan chooses among the results in its folder.

    Raises ParamsError if there are no such results, and what `find_results` raises.
    """
    from ..results.study import by_paper, find_results  # loads torch

    there = {(dataset, model) for dataset, model, _ in find_results(plan.folder)}
    # the folder of a model's results has the last part of its path or Hub id as its name
    models = [Path(name).name.removesuffix(".gguf") for name in plan.models] if plan.MODELS or plan.SET else []
    problem = not_among(sorted({dataset for dataset, _ in there}), "DATASETS", *plan.DATASETS)
    if plan.MODELS and not problem:
        problem = not_among(sorted({model for _, model in there}), "MODELS", *models)
    if problem:
        raise ParamsError(f"{problem}, of which {plan.folder} has results")
    datasets = {dataset for dataset, model in there if not models or model in models}
    if not datasets.intersection(plan.DATASETS or datasets):
        raise ParamsError(f"{plan.folder} has no results of these models and datasets together")
    return models, plan.DATASETS or sorted(datasets, key=by_paper)


def make_table(plan: Plan) -> int:
    """Write table, figures and OUT/report.html of the results in OUT, unless nothing has changed.

    Returns the exit status. Raises what `chosen_results` raises, before anything is written.
    """
    out, start = Path(plan.folder), time.time()
    files, stamp = [out / name for name in TABLES], out / ".made_for.json"
    results = sorted(path.relative_to(out).as_posix() for path in out.glob("*/*/*.pt"))
    made, words = " ".join(map(str, files)), json.dumps([plan.SET, plan.MODELS, plan.DATASETS, results])
    # a command's words -> the models, datasets and results that they chose, of files that are up to date
    since, done = start, {}
    if all(path.is_file() for path in (*files, stamp)) and _newest(out) < stamp.stat().st_mtime:
        with suppress(ValueError):  # a stamp that was not written to its end
            since, done = stamp.stat().st_mtime, dict(json.loads(stamp.read_text()))
    if words not in done:
        models, datasets = chosen_results(plan)
        from ..results.study import Study

        chosen = [sorted(models or {path.split("/")[1] for path in results}), datasets, results]
        if chosen not in done.values():
            Study(out, models or None, datasets)  # its warnings appear here, not only in the notebook
            parameters = {"OUT": os.path.abspath(out), "MODELS": models, "DATASETS": datasets}
            table = Notebook("table and figures", "effective_depth", out, parameters, results=lambda: files)
            stamp.unlink(missing_ok=True)  # until all files are of this choice
            if status := Executor().execute([table], lambda: f": {made}"):
                return status
            since, done = start, {}
        stamp.write_text(json.dumps(done | {words: chosen}))
        os.utime(stamp, (since, since))  # later changes are newer
    if done:
        say(f"table and figures: nothing has changed: {made}")
    return 0


def _newest(out: Path) -> float:
    """The last change to a result, a params file, the notebook or the package; deleting a file changes its folder."""
    folders = [path for path in out.glob("*/*/") if path.parent.name not in ("figures", "shared")]
    params = [path for kind in ("models", "datasets") for path in params_files(kind).values()]
    code = [NOTEBOOKS / "effective_depth.ipynb", *Path(__file__).parents[1].rglob("*.py")]
    changed = [*folders, *out.glob("*/*/*.pt"), *out.glob("*.parquet"), *params, *code]
    return max(path.stat().st_mtime for path in changed)
