"""What is done, stale or missing, and how runs ended, read from their folders."""

import contextlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ..files import COMPUTING, holder, write_together
from ..params import by_size, study_line
from ..remote.journal import total_cost
from ..results.provenance import NONE_YET, read_meta, why_stale
from ..results.schemas import ARTIFACTS, ArtifactError, parse_name
from .spec import RunSpec

RUNNING = ".running"  # in a run's folder; locked by the sweep that executes its notebook
LOG = "probe.log"  # in a run's folder: what its process and its notebook printed
PARTIAL = "probe.partial.ipynb"  # the notebook while it is executed; kept if it fails
PARAMETERS = "probe.json"  # in a run's folder: its parameters
FAILED = "FAILED: "  # begins the line of a log with the reason of a failure
PROBE_FAILED = "failed: "  # begins the line on a probe that failed while others went on
KILLED = "killed by SIGKILL, probably because memory ran out; use fewer JOBS or a smaller model"
SWEEP = "DEPTH_LIB_SWEEP"  # process and host of the sweep; a notebook's process ends with it


@dataclass
class RunStatus:
    """The status of a run: "done", "stale" or "missing" for each probe, and notes on what is not done.

    A run is finished if all its results are up to date and its executed notebook is there.
    """

    dataset: str
    model: str
    states: dict[str, str]
    notes: list[str]
    finished: bool


def status_of(run: RunSpec) -> RunStatus:
    """The status of a run."""
    states, alike, notes, jobs = {}, {}, [], []
    for probe in run.params["PROBES"]:
        path = run.path(probe)
        try:
            reasons = why_stale(path, run.provenance(probe))
        except (ValueError, OSError) as error:  # the prompts cannot be read
            reasons = [str(error)] if path.exists() else [NONE_YET, str(error)]
        states[probe] = "done" if not reasons else "missing" if reasons[0] == NONE_YET else "stale"
        if not reasons:
            jobs += read_meta(path).get("jobs", [])
        elif reasons != [NONE_YET]:
            why = [reason for reason in reasons if reason != NONE_YET]
            alike.setdefault(f"{states[probe]}: {'; '.join(why)}", []).append(probe)
    for what, probes in alike.items():
        notes.append(f"{', '.join(probes)} {'is' if len(probes) == 1 else 'are'} {what}")
    for journal in sorted(run.folder.glob("*.job/*.json")):
        with contextlib.suppress(OSError, ValueError, ArtifactError):  # the run may just remove it, or it is not ours
            job, probe = json.loads(journal.read_text(encoding="utf-8")), parse_name(journal.parent.stem)[0]
            notes.append(f"{probe}: job {job['job_id']} at {job['host']} is {job['state']}")
    if jobs:
        notes.append(total_cost(jobs))
    partial, log = (run.folder / PARTIAL).exists(), run.folder / LOG
    last_line = _text(log).rstrip().rpartition("\n")[2]
    if process := holder(run.folder / RUNNING) or holder(run.folder / COMPUTING):
        notes.append(f"running ({process}), {progress(run)}")
    elif last_line.startswith(FAILED):
        notes.append(f"{last_line}; see {log}, then repeat the command")
    elif partial:
        notes.append("interrupted; repeat the command to go on")
    finished = {*states.values()} == {"done"} and (run.folder / "probe.ipynb").exists() and not partial
    return RunStatus(run.dataset, run.params["MODEL"], states, [f"{run.name}: {note}" for note in notes], finished)


def place_of_processes() -> str:
    """Where process ids are the same: this machine and its namespace, as a container has its own ids."""
    numbers = "/proc/self/ns/pid"
    return f"{socket.gethostname()} {os.readlink(numbers) if os.path.exists(numbers) else ''}"


def progress(run: RunSpec) -> str:
    """The progress of a running notebook, from its log: "probe 2/5: logit lens, 40 %"."""
    n_probes = len(run.params["PROBES"])
    *finished, now = re.split(r"^ *\w+: (?:computed in|read from) ", _text(run.folder / LOG), flags=re.MULTILINE)
    bars = re.findall(r"([\w ,]+): +(\d+)%\|", now)
    bar = f": {bars[-1][0].strip()}, {bars[-1][1]} %" if bars else ""
    return f"probe {min(len(finished) + 1, n_probes)}/{n_probes}{bar}"


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""


def matrix(out: str, runs: Sequence[RunStatus]) -> str:
    """A table with a row per run and a column per probe, then all notes, and a count."""
    probes = [probe for probe in ARTIFACTS if any(probe in run.states for run in runs)]
    rows = [*zip_longest(*(name.split("_") for name in ("dataset", "model", *probes)), fillvalue="")]
    rows += [[run.dataset, run.model, *(run.states.get(probe, "–") for probe in probes)] for run in runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    counts = Counter(state for run in runs for state in run.states.values())
    others = "".join(f", {counts[state]} {state}" for state in ("stale", "missing") if counts[state])
    notes = [note for run in runs for note in run.notes]
    lines = [*table, *notes, study_line(out), f"{out}: {counts['done']} of {counts.total()} done{others}"]
    return "\n".join(filter(None, lines))


def write_parameters(run: RunSpec) -> None:
    """Write a run's parameters to its folder, for `runs_in`."""
    path, text = run.folder / PARAMETERS, json.dumps(run.params)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_together({path: text.encode()})


def runs_in(out: str | Path) -> list[RunSpec]:
    """The runs in a folder, with the parameters of their last command."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in Path(out).glob(f"*/*/{PARAMETERS}")]
    runs = [RunSpec(cell | {"OUT": str(out)}) for cell in cells]
    return sorted(runs, key=lambda run: (by_size(run.params["MODEL"]), run.dataset))
