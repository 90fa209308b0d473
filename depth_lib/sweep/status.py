"""What is done, stale, partial, failed or missing of a sweep, read from its folder; nothing there is changed."""

import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..lock import COMPUTING, describe, elapsed, holder
from ..results.commands import command
from ..results.provenance import read_meta, why_stale
from ..results.schemas import ARTIFACTS, PROBES, of_pair
from .plan import PlannedRun
from .spec import OfflineSpec

RUNNING = ".running"  # in a run's folder, held by the process that executes its notebook
FAILED = "FAILED: "  # begins the last line of a failed run's log
STATES = ("done", "stale", "partial", "failed", "missing")
TYPICAL = {probe: row.cost for probe, row in ARTIFACTS.items()}


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
    """One model × dataset: its cells by probe, what it does at the moment, why it failed, and its log."""

    dataset: str
    model: str
    cells: dict[str, ProbeStatus]
    running: dict | None
    failed: str | None
    interrupted: bool
    log: str
    command: str
    pair: str = ""

    @property
    def finished(self) -> bool:
        """Whether every result that is asked for is there and matches, and no notebook was left half-way."""
        return not self.interrupted and not self.failed and all(cell.state == "done" for cell in self.cells.values())


def status_of(run: PlannedRun) -> RunStatus:
    """How a run stands. Raises ParamsError for parameters that do not fit."""
    asked = OfflineSpec(run.parameters)
    folder = asked.paths[PROBES[0]].parent
    busy, computing = holder(folder / RUNNING), holder(folder / COMPUTING)
    running = None if busy is None and computing is None else (computing or {}) | (busy or {})
    log = folder / "probe.log"
    left = (folder / "probe.partial.ipynb").exists()
    failed = _failure(log) if running is None else None
    cells = {probe: _probe_status(asked, probe) for probe in ARTIFACTS if probe in run.parameters["PROBES"]}
    _explain(cells, running, failed)
    interrupted = left and running is None
    where = str(log), run.command, asked.pair.label
    return RunStatus(asked.dataset, run.parameters["MODEL"], cells, running, failed, interrupted, *where)


def _probe_status(asked: OfflineSpec, probe: str) -> ProbeStatus:
    path = asked.paths[probe]
    jobs = _remote_jobs(path)
    try:
        there = path.stat()
    except OSError:
        return ProbeStatus("partial", jobs) if jobs else ProbeStatus("missing")
    meta, _ = read_meta(path)
    seconds = meta.get("seconds")
    found = ProbeStatus("done", [], there.st_size, time.time() - there.st_mtime, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fewer prompts than asked for: said when the run was made
            found.why = why_stale(path, asked.provenance(probe))
    except (ValueError, OSError) as error:  # the prompts that are asked for cannot be read
        found.why = [str(error)]
    if found.why:
        found.state, found.why = "stale", found.why + jobs
    return found


def _explain(cells: dict[str, ProbeStatus], running: dict | None, failed: str | None) -> None:
    """The probe that is being computed is partial; of a failed run, the first without a result is the one."""
    if running and running.get("probe") in cells and cells[running["probe"]].state != "done":
        cells[running["probe"]].state = "partial"
    first = next((cell for cell in cells.values() if cell.state == "missing"), None)
    if failed and first:
        first.state, first.why = "failed", [failed]


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
    said = []
    for path in sorted(artifact.with_name(artifact.name + ".job").glob("*.json")):
        try:
            job = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        part = f"job {job['part']}" if job.get("part") else "job"
        said.append(
            f"{part} {job.get('job_id') or 'without id'} at {job['host']}: {job['state']}"
            + (f", submitted {job['submitted']}" if job.get("submitted") else "")
        )
    return said


def share_done(run: RunStatus, costs: Mapping[str, float]) -> float:
    """The share of a run's computing that its finished results are, by what each probe costs."""
    return sum(costs[probe] for probe, cell in run.cells.items() if cell.state == "done") / _total(run, costs)


def progress(run: RunStatus, costs: Mapping[str, float] = TYPICAL) -> str:
    """How far a running notebook is, on one line: "layer effects 3/10 prompts, 1 of 5 probes, 0:35 of about 2:10".

    costs: what the probes cost beside each other, so that a short one does not promise a short run. The time until the
    first probe computes (imports, weights) is spent once: what is to come is judged by the computing alone.
    """
    now = run.running
    if not now:
        return ""
    begun, spent = now.get("begun"), time.time() - now["since"] if now.get("since") else 0
    done, probe = [name for name, cell in run.cells.items() if cell.state == "done"], now.get("probe")
    within = now.get("share", 0) * costs[probe] / _total(run, costs) if probe in set(run.cells) - set(done) else 0
    share = share_done(run, costs) + within
    words = [f"{now['label']} {now['done']}/{now['total']} {now.get('unit', 'prompt')}s"] if "total" in now else []
    words.append(f"{len(done)} of {len(run.cells)} probes")
    if begun is not None and share > begun:
        computed = [cell.seconds or 0 for cell in run.cells.values() if cell.state == "done" and cell.age < spent]
        computing = sum(computed) + time.time() - now["computing_since"] if "computing_since" in now else spent
        to_come = computing * (1 - share) / (share - begun)
        words.append(f"{elapsed(spent)} of about {elapsed(spent + to_come)}")
    else:
        words.append(elapsed(spent))
    return ", ".join(words)


def _total(run: RunStatus, costs: Mapping[str, float]) -> float:
    return sum(costs[probe] for probe in run.cells)


def matrix(out: str, runs: list[RunStatus]) -> str:
    """A row for each run, a column for each probe; then a line for whatever is not as it should be, and a count."""
    columns = [probe for probe in ARTIFACTS if probe in PROBES or any(probe in run.cells for run in runs)]
    pairs = {run.pair for run in runs if any(ARTIFACTS[probe].of_pair for probe in run.cells)}
    pair = pairs.pop() if len(pairs) == 1 else ""
    named = [of_pair(probe, pair) if ARTIFACTS[probe].of_pair else probe for probe in columns]
    rows, lines, counts, size = [("dataset", "model", *named)], [], Counter(), 0
    for run in runs:
        rows.append((run.dataset, run.model, *(_shown(run.cells.get(probe)) for probe in columns)))
        counts.update(cell.state for cell in run.cells.values())
        size += sum(cell.bytes for cell in run.cells.values())
        lines += _remarks(run)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    others = "".join(f", {counts[state]} {state}" for state in STATES[1:] if counts[state])
    hint = "" if has_results(out) else elsewhere(out, "status")
    total = f"{out}: {counts['done']} of {counts.total()} done{others}; {_bytes(size)}{hint}"
    return "\n".join([*table, *lines, total])


def as_json(out: str, runs: list[RunStatus]) -> str:
    """The same for programs: {"out", "runs": [{dataset, model, finished, cells: {probe: {state, why, …}}, …}]}."""
    listed = [asdict(run) | {"finished": run.finished, "progress": progress(run)} for run in runs]
    return json.dumps({"out": out, "runs": listed}, indent=1)


def _remarks(run: RunStatus) -> list[str]:
    name, lines = f"{run.dataset} × {run.model}", []
    for probe, cell in run.cells.items():
        if cell.state in ("stale", "partial") and cell.why:
            lines.append(f"{name}: {probe} is {cell.state}: {'; '.join(cell.why)}")
    if run.running:
        lines.append(f"{name}: running ({describe(run.running).partition(',')[0]}): {progress(run)}")
    elif run.failed:
        lines.append(f"{name}: FAILED: {run.failed}; see {run.log}, then: {run.command}")
    elif run.interrupted:
        lines.append(f"{name}: interrupted; go on with: {run.command}")
    return lines


def _shown(cell: ProbeStatus | None) -> str:
    if cell is None:
        return "–"
    return f"{cell.state}, {_bytes(cell.bytes)}, {_age(cell.age)} ago" if cell.age is not None else cell.state


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def costs_in(out: str | os.PathLike, model: str) -> dict[str, float]:
    """What the probes cost in a folder of results: mean seconds with this model, or with all if it has none yet.

    A probe that has no result there costs what is typical beside those that have.
    """
    for pattern in (f"*/{model}/*.pt", "*/*/*.pt"):
        found: dict[str, list[float]] = {}
        for path in sorted(Path(out).glob(pattern))[:200]:
            meta, _ = read_meta(path)
            if meta.get("seconds"):
                found.setdefault(meta["probe"], []).append(meta["seconds"])
        if found:
            means = {probe: sum(seconds) / len(seconds) for probe, seconds in found.items()}
            unit = sum(means.values()) / sum(TYPICAL[probe] for probe in means)
            return {probe: means.get(probe, unit * cost) for probe, cost in TYPICAL.items()}
    return dict(TYPICAL)


def has_results(out: str | os.PathLike) -> bool:
    """Whether there is any result under a folder, of whatever model and dataset."""
    return any(Path(out).glob("*/*/*.pt")) or (Path(out) / "runs.parquet").is_file()


def elsewhere(out: str | os.PathLike, target: str) -> str:
    """Of a folder without results: where below it there are some, and the make command that looks there."""
    below = next((below for below in sorted(Path(out).glob("*/")) if has_results(below)), None)
    return f"; there are some under {below}: {command(target, OUT=str(below))}" if below else ""
