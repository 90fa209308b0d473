"""What is done, stale, partial, failed or missing of a sweep, read from its folder; nothing there is changed."""

import json
import os
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..files import COMPUTING, describe, holder
from ..params import command
from ..results.provenance import read_meta, why_stale
from ..results.schemas import ARTIFACTS, PROBES, of_pair
from .plan import PlannedRun
from .spec import RunSpec

RUNNING = ".running"  # in a run's folder, locked by the process that executes its notebook
FAILED = "FAILED: "  # begins the last line of a failed run's log
STATES = ("done", "stale", "partial", "failed", "missing")


@dataclass
class ProbeStatus:
    """One probe of one run: its state and why, and of a result its bytes, age in seconds and computing time."""

    state: str
    why: list[str] = field(default_factory=list)
    bytes: int = 0
    age: float | None = None
    seconds: float | None = None


@dataclass
class RunStatus:
    """One model × dataset: its cells by probe, who is at it, why it failed, and its log.

    It is finished if every result is there and matches, and its notebook is there too.
    """

    dataset: str
    model: str
    pair: str
    log: str
    command: str
    cells: dict[str, ProbeStatus]
    running: str | None
    failed: str | None
    interrupted: bool
    finished: bool


def status_of(run: PlannedRun) -> RunStatus:
    """How a run stands."""
    spec, folder = run.spec, run.spec.folder
    log = folder / "probe.log"
    executing, computing = holder(folder / RUNNING), holder(folder / COMPUTING)
    at_it = executing if executing is not None else computing
    cells = {probe: _probe_status(spec, probe) for probe in ARTIFACTS if probe in spec.asked["PROBES"]}
    left = (folder / "probe.partial.ipynb").exists()
    failed = None if at_it is not None else _failure(log)
    done = all(cell.state == "done" for cell in cells.values()) and (folder / "probe.ipynb").exists()
    under_way = cells.get((computing or {}).get("doing"))
    if under_way and under_way.state != "done":
        under_way.state = "partial"
    missing = [cell for cell in cells.values() if cell.state == "missing"]
    if failed and missing:
        missing[0].state, missing[0].why = "failed", [failed]
    return RunStatus(
        spec.dataset,
        spec.asked["MODEL"],
        spec.pair.label,
        str(log),
        run.command,
        cells,
        running=None if at_it is None else describe(at_it),
        failed=failed,
        interrupted=left and at_it is None,
        finished=done and not left and not failed,
    )


def _probe_status(spec: RunSpec, probe: str) -> ProbeStatus:
    path = spec.paths[probe]
    jobs = _remote_jobs(path)
    try:
        there = path.stat()
    except OSError:
        return ProbeStatus("partial", jobs) if jobs else ProbeStatus("missing")
    meta, _ = read_meta(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fewer prompts than asked for: said when the run was made
            why = why_stale(path, spec.provenance(probe, offline=True))
    except (ValueError, OSError) as error:  # the prompts that are asked for cannot be read
        why = [str(error)]
    state = "stale" if why else "done"
    return ProbeStatus(
        state, why + jobs if why else [], there.st_size, time.time() - there.st_mtime, meta.get("seconds")
    )


def _failure(log: Path) -> str | None:
    """Why the run failed, as its launcher wrote it at the end of the log; None if it was only interrupted."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            last = file.read().decode(errors="replace").rstrip().rpartition("\n")[2]
    except OSError:
        return None
    return last.removeprefix(FAILED) if last.startswith(FAILED) else None


def _remote_jobs(artifact: Path) -> list[str]:
    """One line about each journalled job of a result that is still to come."""
    lines = []
    for path in sorted(artifact.with_name(f"{artifact.name}.job").glob("*.json")):
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
            submitted = f", submitted {job['submitted']}" if job.get("submitted") else ""
            part = f"job {job['part']}" if job.get("part") else "job"
            lines.append(f"{part} {job.get('job_id') or 'without id'} at {job['host']}: {job['state']}{submitted}")
        except (OSError, ValueError, KeyError):
            continue
    return lines


def matrix(out: str, runs: list[RunStatus]) -> str:
    """A row for each run, a column for each probe; then a line for whatever is not as it should be, and a count."""
    columns = [probe for probe in ARTIFACTS if probe in PROBES or any(probe in run.cells for run in runs)]
    pair = runs[0].pair if len({run.pair for run in runs}) == 1 else ""
    rows = [["dataset", "model"] + [of_pair(name, pair) if ARTIFACTS[name].of_pair else name for name in columns]]
    for run in runs:
        rows.append([run.dataset, run.model] + [_shown(run.cells.get(probe)) for probe in columns])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for run in runs:
        lines += remarks(run)
    cells = [cell for run in runs for cell in run.cells.values()]
    counts = Counter(cell.state for cell in cells)
    others = "".join(f", {counts[state]} {state}" for state in STATES[1:] if counts[state])
    hint = "" if has_results(out) else elsewhere(out, "status")
    size = _bytes(sum(cell.bytes for cell in cells))
    return "\n".join([*lines, f"{out}: {counts['done']} of {len(cells)} done{others}; {size}{hint}"])


def as_json(out: str, runs: list[RunStatus]) -> str:
    """The same for programs: {"out", "runs": [{dataset, model, finished, cells: {probe: {state, why, …}}, …}]}."""
    return json.dumps({"out": out, "runs": [asdict(run) for run in runs]}, indent=1)


def remarks(run: RunStatus) -> list[str]:
    """A line for whatever is not as it should be, with the next step; none of what only has not begun."""
    name = f"{run.dataset} × {run.model}"
    lines = [
        f"{name}: {probe} is {cell.state}: {'; '.join(cell.why)}"
        for probe, cell in run.cells.items()
        if cell.state in ("stale", "partial") and cell.why
    ]
    n_done = sum(cell.state == "done" for cell in run.cells.values())
    done = f"{n_done} of {len(run.cells)} results"
    if run.running:
        lines.append(f"{name}: running ({run.running}), {done}")
    elif run.failed:
        lines.append(f"{name}: {FAILED}{run.failed}; see {run.log}, then: {run.command}")
    elif run.interrupted:
        lines.append(f"{name}: interrupted, {done}; go on with: {run.command}")
    return lines


def _shown(cell: ProbeStatus | None) -> str:
    if cell is None:
        return "–"
    return f"{cell.state}, {_bytes(cell.bytes)}, {_age(cell.age)} ago" if cell.age is not None else cell.state


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _age(seconds: float) -> str:
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    unit = next((unit for unit, length in units.items() if seconds >= length), "s")
    return f"{max(0, seconds) / units[unit]:.0f} {unit}"


def has_results(out: str | os.PathLike) -> bool:
    """Whether there is any result under a folder, of whatever model and dataset."""
    return any(Path(out).glob("*/*/*.pt")) or (Path(out) / "runs.parquet").is_file()


def elsewhere(out: str | os.PathLike, target: str) -> str:
    """Of a folder without results: where below it there are some, and the make command that looks there."""
    below = next((below for below in sorted(Path(out).glob("*/")) if has_results(below)), None)
    return f"; there are some under {below}: {command(target, OUT=str(below))}" if below else ""
