"""What is done or missing of each run, and how it ended, read from its folder. Does not import torch."""

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from ..files import holder
from ..results.provenance import BROKEN, is_damaged, record_in
from ..results.schemas import ARTIFACTS, RECORD
from ..run import Run
from .execute import why_failed


def runs_in(out: Path) -> tuple[list[Run], list[str]]:
    """The runs of earlier commands in a folder, with the parameters of their last command, and the folders that cannot
    be read.
    """
    runs, problems = [], []
    for path in sorted(out.glob(f"*/*/{RECORD}")):
        record = record_in(path.parent)
        try:
            run = Run(record["params"] | {"OUT": str(out)})
            if (run.dataset, run.model) == path.parts[-3:-1]:
                runs.append(run)
            else:
                problems.append(f"{path.parent}: its command would now write to {run.folder}")
        except (KeyError, TypeError):
            problems.append(record.get(BROKEN, f"{path} has no parameters"))
        except ValueError as error:
            problems.append(f"{path}: {error}")
    return runs, problems


def matrix(out: Path, runs: Sequence[Run], problems: Sequence[str] = ()) -> str:
    """A table of a folder's runs, with a row per run and a column per probe, then notes, and a count."""
    if not runs:
        return "\n".join(problems)
    probes = [probe for probe in ARTIFACTS if any(probe in run.params.PROBES for run in runs)]
    rows = [*zip_longest(*(name.split("_") for name in ("dataset", "model", *probes)), fillvalue="")]
    n_asked = n_lacking = 0
    for run in runs:
        lacking = _lacking(run)
        n_asked, n_lacking = n_asked + len(run.asked), n_lacking + len(lacking)
        rows.append((run.dataset, run.model, *(_word(run, name, lacking) for name in probes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    notes = [f"{run.name}: {note}" for run in runs for note in _notes(run)]
    return "\n".join([*lines, *notes, *problems, f"{out}: {n_asked - n_lacking} of {n_asked} done"])


def _word(run: Run, name: str, lacking: Sequence[str]) -> str:
    if name not in run.asked:
        return "–"
    return "done" if name not in lacking else "damaged" if is_damaged(run.path(name)) else "missing"


def _lacking(run: Run) -> list[str]:
    """The names of results that are not done; all, where the run's texts or checkpoint are gone."""
    try:
        return run.lacking
    except ValueError:
        return [*run.asked]


def _notes(run: Run) -> Iterator[str]:
    """Notes on a run: different settings, running, failed or interrupted, and jobs on a server."""
    try:
        yield from (f"different settings: {line}" for line in run.other_settings(*run.params.PROBES))
    except ValueError as error:  # of texts or a checkpoint that are gone
        yield str(error)
    for journal in sorted(run.folder.glob("*.job/*.json")):
        job = json.loads(journal.read_text(encoding="utf-8"))
        if "job_id" in job:
            yield f"{journal.parent.stem}: job {job['job_id']} at {job['host']} is {job['state']}"
    if process := holder(run.sweeps):
        yield f"running ({process})"
    elif (partial := run.folder / "probe.partial.ipynb").exists():
        yield f"not finished: {why_failed(partial)}; rerun the command to resume"
