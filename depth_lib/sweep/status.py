"""What is done, stale or missing of a sweep, and what became of its runs, read from their folders."""

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..files import COMPUTING, holder
from ..params import command
from ..results.provenance import NONE_YET, why_stale
from ..results.schemas import ARTIFACTS, ArtifactError, parse_name
from .spec import RunSpec, in_project

RUNNING = ".running"  # in a run's folder, locked by the sweep that executes its notebook
PARTIAL = "probe.partial.ipynb"  # the notebook while it is executed; it stays if that fails
FAILED = "FAILED: "  # begins the line of a log that says why a notebook failed


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
    states, notes = {}, []
    for probe in run.asked["PROBES"]:
        try:
            reasons = why_stale(run.path(probe, offline=True), run.provenance(probe, offline=True))
        except (ValueError, OSError) as error:  # the prompts cannot be read
            kept = run.folder.glob(ARTIFACTS[probe].names("*", run.pair.label)[0])
            reasons = [str(error)] if any(kept) else [NONE_YET, str(error)]
        states[probe] = "done" if not reasons else "missing" if reasons[0] == NONE_YET else "stale"
        if reasons not in ([], [NONE_YET]):
            notes.append(f"{probe} is {states[probe]}: {'; '.join(reasons)}")
    for journal in sorted(run.folder.glob("*.job/*.json")):
        with contextlib.suppress(OSError, ValueError, ArtifactError):  # a run may remove it now, or it is not ours
            job, probe = json.loads(journal.read_text(encoding="utf-8")), parse_name(journal.parent.stem)[0]
            notes.append(f"{probe}: job {job['job_id']} at {job['host']} is {job['state']}")
    partial, log = (run.folder / PARTIAL).exists(), run.folder / "probe.log"
    last_line = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2] if log.is_file() else ""
    if process := holder(run.folder / RUNNING) or holder(run.folder / COMPUTING):
        notes.append(f"running ({process})")
    elif last_line.startswith(FAILED):
        notes.append(f"{last_line}; see {log}, then repeat the command")
    elif partial:
        notes.append("interrupted; repeat the command to go on")
    finished = {*states.values()} == {"done"} and (run.folder / "probe.ipynb").exists() and not partial
    return RunStatus(run.dataset, run.asked["MODEL"], states, [f"{run.name}: {note}" for note in notes], finished)


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
    return "\n".join([*lines, *(note for run in runs for note in run.notes), count])


def where_others_are(out: str, runs: Sequence[RunStatus]) -> str | None:
    """Where OUT has results, but none of these runs': a line with the command that shows them."""
    there = {path.parts[-3:-1] for path in in_project(out).glob("*/*/*.pt")}
    if not there or any(run.notes or (run.dataset, run.model) in there for run in runs):
        return None
    datasets, models = (" ".join(sorted({*names})) for names in zip(*there, strict=True))
    return f"{out} has only results of others: {command('status', MODELS=models, DATASETS=datasets, OUT=out)}"
