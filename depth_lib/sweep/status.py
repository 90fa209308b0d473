"""What is done, stale or missing of a sweep, and what became of its runs, read from their folders."""

import contextlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import COMPUTING, holder, write_together
from ..params import as_texts, by_size, remembered, study_file
from ..remote.journal import total_cost
from ..results.provenance import NONE_YET, read_meta, why_stale
from ..results.schemas import ARTIFACTS, ArtifactError, parse_name
from .spec import RunSpec

RUNNING = ".running"  # in a run's folder, locked by the sweep that executes its notebook
PARTIAL = "probe.partial.ipynb"  # the notebook while it is executed; it stays if that fails
PARAMETERS = "probe.json"  # in a run's folder: the parameters that a sweep gave it
FAILED = "FAILED: "  # begins the line of a log that says why a notebook failed
PROBE_FAILED = "failed: "  # begins its line on a probe that failed while others went on
KILLED = "killed by SIGKILL, as the system does when memory runs out; use fewer JOBS or a smaller model"
SWEEP = "DEPTH_LIB_SWEEP"  # process and host of the sweep, which a notebook's process does not outlive


@dataclass
class RunStatus:
    """One model × dataset: "done", "stale" or "missing" per probe, and a line per thing that is not as it should be.

    A run is finished if every result is there and matches its parameters, and its executed notebook is there too.
    """

    dataset: str
    model: str
    states: dict[str, str]
    notes: list[str]
    finished: bool


def status_of(run: RunSpec) -> RunStatus:
    """How a run stands."""
    states, notes, jobs = {}, [], []
    for probe in run.asked["PROBES"]:
        try:
            reasons = why_stale(run.path(probe), run.provenance(probe))
        except (ValueError, OSError) as error:  # the prompts cannot be read
            reasons = [str(error)] if run.kept(probe) else [NONE_YET, str(error)]
        states[probe] = "done" if not reasons else "missing" if reasons[0] == NONE_YET else "stale"
        if not reasons:
            jobs += read_meta(run.path(probe)).get("jobs", [])
        if reasons not in ([], [NONE_YET]):
            notes.append(f"{probe} is {states[probe]}: {'; '.join(reasons)}")
    for journal in sorted(run.folder.glob("*.job/*.json")):
        with contextlib.suppress(OSError, ValueError, ArtifactError):  # a run may remove it now, or it is not ours
            job, probe = json.loads(journal.read_text(encoding="utf-8")), parse_name(journal.parent.stem)[0]
            notes.append(f"{probe}: job {job['job_id']} at {job['host']} is {job['state']}")
    if jobs:
        notes.append(total_cost(jobs))
    partial, log = (run.folder / PARTIAL).exists(), run.folder / "probe.log"
    last_line = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2] if log.is_file() else ""
    if process := holder(run.folder / RUNNING) or holder(run.folder / COMPUTING):
        notes.append(f"running ({process}), {progress(run)}")
    elif last_line.startswith(FAILED):
        notes.append(f"{last_line}; see {log}, then repeat the command")
    elif partial:
        notes.append("interrupted; repeat the command to go on")
    finished = {*states.values()} == {"done"} and (run.folder / "probe.ipynb").exists() and not partial
    return RunStatus(run.dataset, run.asked["MODEL"], states, [f"{run.name}: {note}" for note in notes], finished)


def place_of_processes() -> str:
    """Where a process's number means the same process: this machine, and a container's own numbers."""
    numbers = "/proc/self/ns/pid"
    return f"{socket.gethostname()} {os.readlink(numbers) if os.path.exists(numbers) else ''}"


def progress(run: RunSpec) -> str:
    """How far a run is that is executed, as its log says: "probe 2/5: logit lens, 40 %"."""
    log, n_probes = run.folder / "probe.log", len(run.asked["PROBES"])
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    *finished, now = re.split(r"^ *\w+: (?:computed in|read from) ", text, flags=re.MULTILINE)
    bars = re.findall(r"([\w ,]+): +(\d+)%\|", now)
    bar = f": {bars[-1][0].strip()}, {bars[-1][1]} %" if bars else ""
    return f"probe {min(len(finished) + 1, n_probes)}/{n_probes}{bar}"


def matrix(out: str, runs: Sequence[RunStatus]) -> str:
    """A row per run, a column per probe; then every run's notes, and a count."""
    probes = [probe for probe in ARTIFACTS if any(probe in run.states for run in runs)]
    rows = [["dataset", "model", *probes]]
    rows += [[run.dataset, run.model, *(run.states.get(probe, "–") for probe in probes)] for run in runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    counts = Counter(state for run in runs for state in run.states.values())
    others = "".join(f", {counts[state]} {state}" for state in ("stale", "missing") if counts[state])
    count = f"{out}: {counts['done']} of {counts.total()} done{others}"
    given = " ".join(f"{name}={text}" for name, text in as_texts(remembered(out)).items())
    settings = [f"{study_file(out)}: {given}"] if given else []
    return "\n".join([*lines, *(note for run in runs for note in run.notes), *settings, count])


def write_parameters(run: RunSpec) -> None:
    """Keep a run's parameters in its folder, for `runs_in`."""
    path, text = run.folder / PARAMETERS, json.dumps(run.asked)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_together({path: text.encode()})


def runs_in(out: str | Path) -> list[RunSpec]:
    """The runs of the sweeps into a folder, with the parameters that they were last run with."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in Path(out).glob(f"*/*/{PARAMETERS}")]
    runs = [RunSpec(cell | {"OUT": str(out)}) for cell in cells]
    return sorted(runs, key=lambda run: (by_size(run.asked["MODEL"]), run.dataset))
