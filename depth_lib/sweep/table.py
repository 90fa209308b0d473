"""The notebook of the table and the figures, executed when a result is newer than it."""

import json
import os
import re
import subprocess
from pathlib import Path

from ..params import ParamsError
from ..results.commands import command
from .notebooks import NOTEBOOKS, environment, execution
from .plan import Plan
from .status import elsewhere, has_results

_TABLES = ("xlsx", "csv", "tex")


def make_table(plan: Plan) -> int:
    """Write the table and the figures of what is in the plan's folder, unless they are there; the exit status.

    Raises ParamsError if the folder holds no result.
    """
    out = Path(plan.folder)
    notebook, log = out / "effective_depth.ipynb", out / "effective_depth.log"
    partial = out / "effective_depth.partial.ipynb"
    tables = [out / f"effective_depth.{kind}" for kind in _TABLES]
    folders = [out / dataset / model for dataset in plan.all_datasets for model in plan.all_models]
    # a folder is newer than the table when a result came or went, a file when one was replaced
    sources = [NOTEBOOKS / "effective_depth.ipynb", *(path for path in folders if path.is_dir())]
    results = [path for folder in folders for path in folder.glob("*.pt")]
    if not (has_results(out) or plan.beside):
        raise ParamsError(f"no results under {out}{elsewhere(out, 'table')}; run: {command('sweep', OUT=str(out))}")
    models = plan.all_models if any(out.glob("*/*/*.pt")) else list(plan.models)  # of a shared folder: all it has
    given = {"OUT": str(out), "MODELS": models, "DATASETS": plan.all_datasets}
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
