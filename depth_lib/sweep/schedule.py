"""A whole sweep: its unfinished runs side by side, then those that another sweep was at, and how it ended."""

import contextlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from ..params import ParamsError
from .launch import Launch
from .notebooks import environment, execution, nearby
from .plan import Plan, PlannedRun
from .status import RunStatus, status_of


@dataclass
class Sweep:
    """A plan's runs, `jobs` at a time (0: all), with `keep_going` past failures; share_cores: bound their threads."""

    plan: Plan
    jobs: int = 1
    keep_going: bool = False
    share_cores: bool = True
    launches: list[Launch] = field(default_factory=list)
    signal: int | None = None
    status: int = 0

    def run(self) -> int:
        """Run what is missing or stale and say how it ended; the exit status.

        A run that another sweep is at is left to it, and looked at again when all others are done. What failed stays
        failed until the next sweep. ParamsError for what cannot be run, before anything runs.
        """
        since, runs = time.time(), self.plan.runs()
        unfinished = [run for run in runs if not _is_up_to_date(run)]
        _check_quantization(unfinished)
        with self._signals():
            self._all(unfinished, since, wait=False)
            since, now = time.time(), [status_of(run) for run in unfinished]
            left = [run for run, status in zip(unfinished, now, strict=True) if not (status.finished or status.failed)]
            if left and not self._is_over():
                self._all(left, since, wait=True)
        if self.signal:
            return 128 + self.signal
        left = [status for run in unfinished if not (status := status_of(run)).finished]
        print(summary(self.plan.folder, len(runs), left))
        return self.status or int(bool(left))

    def _all(self, runs: list[PlannedRun], since: float, wait: bool) -> None:
        jobs = self.jobs or max(1, len(runs))
        variables = environment(self._threads(jobs))

        def one(run: PlannedRun) -> None:
            if self._is_over():
                return
            launch = Launch(run, [], since, wait, self.plan.gpus, variables)
            launch.command = [*self.plan.launcher, *execution("probe", launch.partial, run.parameters)]
            self.launches.append(launch)
            if self.signal:  # it came between the question above and here
                return
            self.status = launch.run() or self.status

        with ThreadPoolExecutor(jobs) as pool:
            going = [pool.submit(one, run) for run in runs]
            while _still(going):  # in short waits, so that this thread hears signals
                pass
        for done in going:
            done.result()

    def _is_over(self) -> bool:
        return bool(self.signal or (self.status and not self.keep_going))

    def _threads(self, jobs: int) -> int | None:
        """Jobs side by side share the cores: more threads than those make each many times slower.

        None leaves what the environment says, as a scheduler knows better, and whoever gave OMP_NUM_THREADS to make.
        """
        if jobs == 1 or self.plan.launcher or not self.share_cores:
            return None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        inherited = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        share = -(-cores // jobs)
        return min(share, int(inherited)) if inherited.isdigit() else share

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """In this block a signal ends every run with a sentence and without leftovers."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _) -> None:
        self.signal = self.signal or number
        for launch in list(self.launches):
            launch.stop(self.signal)


def summary(out: str, n_runs: int, left: list[RunStatus]) -> str:
    """How a sweep of n_runs ended: what is left, why, and how to go on."""
    if not left:
        return f"{out}: all {n_runs} runs finished"
    lines = []
    for run in left:
        name = f"  {run.dataset} × {run.model}"
        if run.running:
            lines.append(f"{name}: another sweep is at it")
        elif run.failed:
            lines.append(f"{name}: {run.failed}\n    log: {run.log}   again: {run.command}")
        else:
            done = sum(cell.state == "done" for cell in run.cells.values())
            state = "interrupted" if run.interrupted else "not started" if not done else "unfinished"
            lines.append(f"{name}: {state}, {done} of {len(run.cells)} results\n    again: {run.command}")
    failed = sum(bool(run.failed) for run in left)
    head = f"{out}: {n_runs - len(left)} of {n_runs} runs finished, {failed} failed"
    return "\n".join([head, *lines])


def _still(going: list) -> bool:
    return bool(wait(going, timeout=0.2).not_done)


def _is_up_to_date(run: PlannedRun) -> bool:
    """Whether the results are there and match, and the notebook is younger than its params files."""
    status = status_of(run)
    notebook = Path(status.log).with_name("probe.ipynb")
    changed = max(path.stat().st_mtime for path in run.files)
    return status.finished and notebook.exists() and notebook.stat().st_mtime >= changed


def _check_quantization(runs: list[PlannedRun]) -> None:
    """ParamsError, before any run, where weights are to be held here in a way that this environment cannot."""
    held = {run.parameters["QUANTIZATION"] for run in runs if run.parameters["REMOTE"] in (False, "local")} - {None}
    if held and importlib.util.find_spec("bitsandbytes") is None:
        python = nearby(Path(sys.executable))
        raise ParamsError(
            f"{' and '.join(sorted(held))} weights need bitsandbytes, which is not installed; "
            f"run: {python} -m pip install bitsandbytes   (or add QUANTIZATION=null: weights as wide as DTYPE)"
        )
