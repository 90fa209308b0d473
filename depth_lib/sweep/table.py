"""The table: the notebook with table and figures of all results in a folder, or those chosen; the depths of one run.

The notebook is executed as a run's is (processes.py), and then written as a page, report.html.
"""

import os
import time
import warnings
from pathlib import Path

from ..params import ParamsError, by_paper, not_among
from ..results.asked import RunSpec
from ..results.schemas import MissingArtifact
from .plan import Plan
from .processes import Executor, Notebook, say

TABLES = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html")


def make_table(plan: Plan, if_new: bool = False) -> int:
    """Write table, figures and report of the results in OUT; the exit status.

    if_new: only if a result is newer than the last table. Raises what `chosen_names` raises, before anything is
    written.
    """
    out = Path(plan.folder)
    start = time.time()
    *files, page = [out / name for name in TABLES]
    made = out / "effective_depth.ipynb"

    def lacking() -> list[str]:
        return [f"{path} is not written" for path in files if not (path.is_file() and path.stat().st_mtime >= start)]

    if if_new and made.is_file() and page.is_file():
        last = made.stat().st_mtime
        if all(path.stat().st_mtime < last for path in out.glob("*/*/*.pt")):
            say(f"table and figures: no result is newer than {made}; make them anew: depth-lib table --out {out}")
            return 0
    models, datasets = chosen_names(plan)
    from ..results.study import Study  # loads torch

    Study(out, models or None, datasets)  # its warnings appear here, not only in the notebook
    parameters = {"OUT": os.path.abspath(out), "MODELS": models, "DATASETS": datasets}
    table = Notebook("table and figures", "effective_depth", out, parameters, lacking)
    if status := Executor().execute([table], lambda: f": {' '.join(map(str, [*files, page]))}"):
        return status
    from ..report.page import write_page

    write_page(made)
    os.utime(made, (start, start))  # what is newer than it, it has not read
    return 0


def chosen_names(plan: Plan) -> tuple[list[str], list[str]]:
    """The models ([]: all) and the datasets that a plan chooses among the results in its folder.

    Raises ParamsError if there are no such results, and what `find_results` raises.
    """
    from ..results.study import find_results  # loads torch

    found = find_results(plan.folder)
    datasets, found_models, _ = map(set, zip(*found, strict=True))
    # the folder of a model's results has the last part of its path or Hub id as its name
    models = [Path(name).name.removesuffix(".gguf") for name in plan.models] if plan.MODELS or plan.SET else []
    problem = not_among(sorted(datasets), "DATASETS", *plan.DATASETS)
    if plan.MODELS and not problem:
        problem = not_among(sorted(found_models), "MODELS", *models)
    if models:
        datasets = {dataset for dataset, model, _ in found if model in models}
    if not problem and not datasets.intersection(plan.DATASETS or datasets):
        problem = "no model of these on these datasets"
    if problem:
        raise ParamsError(f"{problem}, of which {plan.folder} has results")
    return models, plan.DATASETS or sorted(datasets, key=by_paper)


def depths_of(run: RunSpec) -> list[str]:
    """The effective depths of a run in words. Of a result that was not made as the run asks there is no depth."""
    from ..effective_depth.difficulty import scores_by_level  # loads torch and pandas
    from ..effective_depth.tables import CONTROL, controls, depths
    from ..report.table import by_lens, effective_depth_table, summary_lines
    from ..results.artifacts import read_artifact
    from ..results.study import LEVEL_PROBES, TABLE_PROBES, Study

    with warnings.catch_warnings(action="ignore"):  # of what is stale, which is said below
        try:
            study = Study(run.out, [run.params["MODEL"]], [run.dataset])
        except MissingArtifact:
            return ["no result is there yet"]
    lines = []
    replaced = "" if run.params["REPLACE"] else "set REPLACE = True, and "
    for probe in (*TABLE_PROBES, *LEVEL_PROBES):
        key = run.dataset, run.params["MODEL"], probe
        state = run.state(probe)
        if state.word == "done" and study.paths.get(key) != state.path:  # the study's has more examples
            study[key], study.paths[key] = read_artifact(state.path), state.path
        if state.word == "stale" and study.pop(key, None):
            lines.append(f"no depth by {probe}: {state.in_words}; {replaced}run its cell again")
    if study.with_depths:
        lines.append("effective depth by cosine, kl, overlap: layer(ratio); –: none, or not run")
        with warnings.catch_warnings(action="ignore"):  # of a depth that is not there: the lines say why
            every_depth = depths(study)
        lines += [*summary_lines(effective_depth_table(study, every_depth)), *by_lens(every_depth)]
    if len(untrained := controls(study)):
        lines += [f"with {CONTROL}:", *summary_lines(effective_depth_table(study, untrained))]
    if len(scores := scores_by_level(study)):
        lines += list(scores.answer.unique())
    return lines
