"""The notebook of the table and the figures, executed when a result is newer than it, and what it covers."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..params import ParamsError
from ..results.commands import command
from ..results.schemas import ArtifactError, probe_of
from .notebooks import NOTEBOOKS, environment, execution
from .plan import PAPER_DATASETS, Plan
from .status import elsewhere

_TABLES = ("xlsx", "csv", "tex")


@dataclass(frozen=True)
class Covered:
    """What a table covers: models ([] is every one there is), datasets, and what it leaves out in words."""

    models: list[str]
    datasets: list[str]
    left_out: str = ""


def covered(plan: Plan, all_there: bool = False) -> Covered:
    """What of a plan has results in its folder or beside it; where no dataset is named, the papers' or else all there.

    all_there: without names, everything that is there. ParamsError for a name that neither the params files nor the
    results have, or if there is no result of what is asked for; ArtifactError for a shared folder that is damaged.
    """
    out, here = Path(plan.folder), _runs_in(plan.folder)
    theirs = {run for other in plan.beside for run in _runs_of(other)}
    plan.check_names({model for _, model in here | theirs}, {dataset for dataset, _ in here | theirs})
    if not here | theirs:
        raise ParamsError(f"no results under {out}{elsewhere(out, 'table')}; run: {command('sweep', OUT=str(out))}")
    there = {dataset for dataset, _ in here | theirs}
    papers = [name for name in PAPER_DATASETS if name in there]
    all_datasets = papers + sorted(there - {*papers})
    datasets = list(plan.datasets) or (all_datasets if all_there else papers or all_datasets)
    own, named = {model for _, model in here}, bool(plan.models or plan.set)
    some = named or own & {*plan.all_models} and not (all_there or _is_shared(out))
    models = plan.all_models if some else []
    found = {run for run in here if not models or run[1] in models} | theirs
    if not {dataset for dataset, _ in found} & {*datasets}:
        asked = " × ".join(filter(None, (" ".join(datasets), " ".join(models))))
        has = f"{' '.join(all_datasets)} × {' '.join(sorted(own | {model for _, model in theirs}))}"
        raise ParamsError(f"no results of {asked} under {out}; choose of what is there, {has}")
    left_out = {
        "DATASETS": [] if plan.datasets else [name for name in all_datasets if name not in datasets],
        "MODELS": sorted(own - {*models}) if models and not named else [],
    }
    words = (f"{', '.join(names)} ({name}=…)" for name, names in left_out.items() if names)
    return Covered(models, datasets, "; ".join(words))


def _runs_of(other: str) -> set[tuple[str, str]]:
    from ..results.shared import shared_folder  # loads torch

    return _runs_in(shared_folder(other))


def _runs_in(folder: str | Path) -> set[tuple[str, str]]:
    """(dataset, model) of every result in a folder; of the results only names are read."""
    if _is_shared(folder):
        from ..results.shared import shared_results  # loads torch

        return {(dataset, model) for dataset, model, _ in shared_results(Path(folder))}
    return {(path.parts[-3], path.parts[-2]) for path in Path(folder).glob("*/*/*.pt") if _is_result(path)}


def _is_shared(folder: str | Path) -> bool:
    return Path(folder, "runs.parquet").is_file()


def _is_result(path: Path) -> bool:
    try:
        return bool(probe_of(path))
    except ArtifactError:  # somebody else's file
        return False


def make_table(plan: Plan) -> int:
    """Write the table and the figures of what is in the plan's folder, unless they are there; the exit status.

    Raises what `covered` raises, before anything is written.
    """
    covers, out = covered(plan), Path(plan.folder)
    if covers.left_out:
        print(f"not in this table: {covers.left_out}")
    notebook, log = out / "effective_depth.ipynb", out / "effective_depth.log"
    partial = out / "effective_depth.partial.ipynb"
    tables = [out / f"effective_depth.{kind}" for kind in _TABLES]
    folders = [
        path
        for dataset in covers.datasets
        for path in (out / dataset).glob("*/")
        if path.name in covers.models or not covers.models
    ]
    # a folder is newer than the table when a result came or went, a file when one was replaced
    sources = [NOTEBOOKS / "effective_depth.ipynb", *(path for path in folders if path.is_dir())]
    results = [path for folder in folders for path in folder.glob("*.pt")]
    given = {"OUT": str(out), "MODELS": covers.models, "DATASETS": covers.datasets}
    given |= {"BESIDE": list(plan.beside)} if plan.beside else {}
    shared = [path for folder in (out, *plan.beside) for path in Path(folder).glob("runs.parquet")]
    newest = max(path.stat().st_mtime_ns for path in (*sources, *results, *shared))
    if (
        all(Path(folder).is_dir() for folder in plan.beside)  # what the Hub has may be newer
        and all(path.is_file() for path in (*tables, out / "report.html"))
        and notebook.is_file()
        and notebook.stat().st_mtime_ns >= newest
        and json.loads(notebook.read_bytes())["metadata"].get("papermill", {}).get("parameters") == given
    ):
        return 0
    print(f"table and figures: running, log in {log}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as said_to:
        done = subprocess.run(
            execution("effective_depth", partial, given), stdout=said_to, stderr=subprocess.STDOUT, env=environment()
        )
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if done.returncode:
        print(f"table and figures: FAILED: {said[-1] if said else done.returncode}")
        return 1
    os.replace(partial, notebook)
    for warning in sorted({found[0] for line in said if (found := re.search(r"Warning: .*", line))}):
        print(warning)
    print(f"table and figures: done, {' '.join(map(str, tables))}")
    return 0
