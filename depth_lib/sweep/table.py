"""The table: a notebook with table and figures of all results in a folder, executed and written as report.html."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ..params import by_paper
from ..results.schemas import MissingArtifact
from .execute import Notebook, execute, say

MADE = "effective_depth.ipynb"


def make_table(out: Path, models: Sequence[str], datasets: Sequence[str]) -> int:
    """Write table, figures and report of the results in a folder; the exit status. Raises what `Study` raises."""
    from ..report.page import write_page  # loads torch and pandas
    from ..results.study import find_results

    found = find_results(out)
    if not any((not datasets or of[0] in datasets) and (not models or of[1] in models) for of in found):
        names = (", ".join(dict.fromkeys(names)) for names in zip(*found, strict=True))
        raise MissingArtifact("{} has no results for these models and data sets; on {} it has {}".format(out, *names))
    datasets = list(datasets) or sorted({dataset for dataset, _, _ in found}, key=by_paper)
    parameters = {"OUT": os.path.abspath(out), "MODELS": list(models), "DATASETS": datasets}
    start = time.time()
    notebook = Notebook("table and figures", "effective_depth", out, parameters, out / ".table.lock")
    if status := execute([notebook]):
        return status
    say(f"{write_page(out / MADE)} {out / 'effective_depth.xlsx'} .csv .tex")
    os.utime(out / MADE, (start, start))  # what is newer than it, it has not read
    return 0


def is_new(out: Path) -> bool:
    """Whether no result is newer than the last table."""
    made = out / MADE
    return made.exists() and all(path.stat().st_mtime < made.stat().st_mtime for path in out.glob("*/*/*.pt"))
