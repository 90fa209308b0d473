"""What is done, stale or missing of each run, and how it ended, read from its folder. Does not import torch.

A run's folder has its results, `probe.json` (what was asked), `probe.log` (what its process printed, at the end why it
failed), the executed notebook, or a partial one if it did not end well, and locks that tell which process is at it.
"""

import contextlib
import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ..files import COMPUTING, holder
from ..params import ParamsError, in_order
from ..remote.journal import total_cost
from ..results.asked import PARAMETERS, RunSpec, asked_in
from ..results.provenance import State, not_done
from ..results.schemas import ARTIFACTS, ArtifactError, parse_name

RUNNING_LOCK = ".running"  # in a run's folder; locked by the sweep that executes its notebook
LOG_FILE = "probe.log"  # in a run's folder: what its process and its notebook printed
PARTIAL = "probe.partial.ipynb"  # the notebook while it is executed; kept if it fails
FAILED = "FAILED: "  # begins the line of a log with the reason of a failure
PROBE_FAILED = "failed: "  # begins the line on a probe that failed while others went on
KILLED = "killed by SIGKILL, probably because memory ran out; use fewer JOBS or a smaller model"
SWEEP_VARIABLE = "DEPTH_LIB_SWEEP"  # the sweep's process; a notebook's process ends with it


@dataclass
class RunStatus:
    """The state of each result that a run asks for, and whether its executed notebook, which draws them, is there."""

    run: RunSpec
    states: dict[str, State]
    executed: bool

    @property
    def lacking(self) -> list[str]:
        """A line on the results that are not done; [] if all are."""
        return not_done(self.states)

    @property
    def finished(self) -> bool:
        return self.executed and not self.lacking


def status_of(run: RunSpec) -> RunStatus:
    """The status of a run."""
    executed = (run.folder / "probe.ipynb").exists() and not (run.folder / PARTIAL).exists()
    return RunStatus(run, run.states(), executed)


def notes_on(status: RunStatus) -> list[str]:
    """Lines about a run: its stale results, its jobs on a server, and whether it is running, failed or interrupted."""
    folder = status.run.folder
    notes = [line for line in status.lacking if not line.endswith("missing") or "@" in line]  # which have no column
    for journal in sorted(folder.glob("*.job/*.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, ArtifactError):  # just removed, or not ours
            job = json.loads(journal.read_text(encoding="utf-8"))
            name = parse_name(journal.parent.stem)
            notes.append(f"{name.key}: job {job['job_id']} at {job['host']} is {job['state']}")
    if jobs := [job for state in status.states.values() if state.word == "done" for job in state.meta.get("jobs", [])]:
        notes.append(total_cost(jobs))
    last_line = text_of(folder / LOG_FILE).rstrip().rpartition("\n")[2]
    if process := holder(folder / RUNNING_LOCK) or holder(folder / COMPUTING):
        notes.append(f"running ({process}), {progress(status.run)}")
    elif last_line.startswith(FAILED):
        notes.append(f"{last_line}; see {folder / LOG_FILE}, then repeat the command")
    elif (folder / PARTIAL).exists():
        notes.append("interrupted; repeat the command to go on")
    return [f"{status.run.name}: {note}" for note in notes]


def progress(run: RunSpec) -> str:
    """The progress of a running notebook, from its log: "probe 2/5: logit lens, 40 %"."""
    n_probes = len(run.params["PROBES"])
    *finished, now = re.split(r"^ *\w+: (?:computed in|read from) ", text_of(run.folder / LOG_FILE), flags=re.MULTILINE)
    bars = re.findall(r"([\w ,]+): +(\d+)%\|", now)
    bar = f": {bars[-1][0].strip()}, {bars[-1][1]} %" if bars else ""
    return f"probe {min(len(finished) + 1, n_probes)}/{n_probes}{bar}"


def text_of(log: Path) -> str:
    """What a log says; "" if there is none."""
    return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""


def matrix(out: str | Path, runs: Sequence[RunSpec], problems: Sequence[str] = ()) -> str:
    """A table with a row per run and a column per probe, then all notes, what the runs ask, and a count."""
    statuses = list(map(status_of, runs))
    probes = [probe for probe in ARTIFACTS if any(probe in status.states for status in statuses)]
    rows: list = [*zip_longest(*(name.split("_") for name in ("dataset", "model", *probes)), fillvalue="")]
    asked = defaultdict(list)
    for status in statuses:
        run = status.run
        params = run.params
        words = (status.states[probe].word if probe in status.states else "–" for probe in probes)
        rows.append([run.dataset, params["MODEL"], *words])
        asked[" ".join(f"{name}={params[name]}" for name in ("N_EXAMPLES", "SOURCE", "DTYPE"))].append(run.name)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    notes = [note for status in statuses for note in notes_on(status)]
    made_with = [wrapped(f"with {words}: {', '.join(names)}", 80) for words, names in asked.items()]
    counts = Counter(state.word for status in statuses for state in status.states.values())
    others = "".join(f", {counts[word]} {word}" for word in ("stale", "missing") if counts[word])
    return "\n".join(
        [*table, *notes, *problems, *made_with, f"{out}: {counts['done']} of {counts.total()} done{others}"]
    )


def wrapped(text: str, width: int) -> str:
    """A line wrapped between words, the following lines indented."""
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def runs_in(out: str | Path, **given: object) -> tuple[list[RunSpec], list[str]]:
    """The runs in a folder, with the parameters of their last command, overridden by those given now; and a message on
    each whose parameters cannot be read."""
    runs, problems = [], []
    for path in sorted(Path(out).glob(f"*/*/{PARAMETERS}")):
        try:
            runs.append(asked_in(path.parent, **given))
        except (ParamsError, ArtifactError) as problem:
            problems.append(f"{path.parent.parent.name} × {path.parent.name}: {problem}")
    models = in_order(run.params["MODEL"] for run in runs)
    return sorted(runs, key=lambda run: (models.index(run.params["MODEL"]), run.dataset)), problems
