"""The notebook of the table and the figures, executed when a result is newer than it."""

import os
import re
import subprocess
from pathlib import Path

from ..params import ParamsError
from ..results.schemas import command
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
    if not has_results(out):
        raise ParamsError(f"no results under {out}{elsewhere(out, 'table')}; run: {command('sweep', OUT=str(out))}")
    newest = max(path.stat().st_mtime_ns for path in (*sources, *results))
    if (
        all(path.is_file() for path in (*tables, out / "report.html"))
        and notebook.is_file()
        and notebook.stat().st_mtime_ns >= newest
    ):
        return 0
    print(f"table and figures: running, log in {log}", flush=True)
    given = {"OUT": str(out), "MODELS": plan.all_models, "DATASETS": plan.all_datasets}
    with log.open("wb") as said_to:
        done = subprocess.run(
            execution("effective_depth", partial, given), stdout=said_to, stderr=subprocess.STDOUT, env=environment()
        )
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if done.returncode:
        print(f"table and figures: FAILED: {said[-1] if said else done.returncode}")
        return 1
    os.replace(partial, notebook)
    print(*sorted({found[0] for line in said if (found := re.search(r"Warning: .*", line))}), sep="\n", end="")
    print(f"table and figures: done, {' '.join(map(str, tables))}")
    return 0
