"""A sweep: its unfinished runs in a pool of threads, each of which waits for the process of one notebook at a time."""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from ..files import Busy, hold
from ..params import INSTALLED
from .plan import Plan
from .spec import RunSpec
from .status import FAILED, PARTIAL, RUNNING, status_of

# A clone keeps notebooks/ beside the package, an installed wheel carries it inside.
NOTEBOOKS = Path(__file__).parents[1 if INSTALLED else 2] / "notebooks"
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def execution(name: str, output: str | Path, parameters: Mapping, ranks: int = 1) -> list[str]:
    """The command that executes the notebook of this name with these parameters, and writes it to `output`.

    ranks: with several, torchrun starts as many processes, which share the model.
    """
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    words = [os.path.relpath(NOTEBOOKS / f"{name}.ipynb"), str(output), json.dumps(dict(parameters))]
    return [sys.executable, "-m", *torchrun, "depth_lib.sweep.execute", *words]


class Sweep:
    """A plan's runs, `jobs` at a time (one, or one per GPU, unless given), with `keep_going` past failures."""

    def __init__(self, plan: Plan, jobs: int | None = None, keep_going: bool = False):
        self.plan, self.keep_going, self.runs = plan, keep_going, plan.runs()
        self.jobs = min(jobs or len(plan.gpus), len(plan.gpus)) if plan.gpus else jobs or 1
        self.gpus = queue.SimpleQueue()  # those that no run has now
        for gpu in plan.gpus:
            self.gpus.put(gpu)
        self.children: set[subprocess.Popen] = set()
        self.signal, self.failed, self.n_finished, self.waiting = 0, False, 0, set()

    def run(self) -> int:
        """Run what is missing or stale and print how it ended; the exit status.

        A run that another sweep executes is left to it, and looked at again when all others are done. What failed stays
        failed until the next sweep.
        """
        unfinished = [run for run in self.runs if not status_of(run).finished]
        self.n_finished, left = len(self.runs) - len(unfinished), unfinished
        handlers = {number: signal.signal(number, self._stop) for number in SIGNALS}
        while left and not self._is_over():
            with ThreadPoolExecutor(self.jobs) as pool:
                left = [run for run, mine in zip(left, pool.map(self._one, left), strict=True) if not mine]
            time.sleep(0.5 if left else 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        statuses = [status for run in unfinished if not (status := status_of(run)).finished]
        print(f"{self.plan.folder}: {len(self.runs) - len(statuses)} of {len(self.runs)} runs finished")
        for status in statuses:
            print(*(status.notes or [f"{status.dataset} × {status.model}: not started"]), sep="\n")
        return 128 + self.signal if self.signal else int(bool(statuses))

    def _one(self, run: RunSpec) -> bool:
        """Execute one run's notebook; False if another sweep does."""
        if self._is_over():
            return True
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            with hold(run.folder / RUNNING, wait=False):
                if status_of(run).finished:
                    self._done(run, "done by another sweep")
                else:
                    self._execute(run)
        except Busy as other:
            if run.name not in self.waiting:
                self.waiting.add(run.name)
                self._say(run, f"another sweep is at it ({other}), waiting for it when all others are done")
            return False
        except OSError as error:
            where = error.filename or run.folder
            self._fail(run, f"{where}: {error.strerror}; free the disk, choose another OUT or correct LAUNCH")
        return True

    def _execute(self, run: RunSpec) -> None:
        """Execute a run's notebook and print what became of it."""
        start, partial, log = time.time(), run.folder / PARTIAL, run.folder / "probe.log"
        partial.unlink(missing_ok=True)
        self._say(run, f"running, log in {log}")
        status = self._wait(run, partial, log)
        paths = [run.path(probe, offline=True) for probe in run.asked["PROBES"]]
        missing = [str(path) for path in paths if not path.is_file()]
        if self.signal or -status in SIGNALS:
            name = signal.Signals(self.signal or -status).name
            self._end(run, f"stopped by {name}; what was finished is kept; repeat the command to go on")
        elif status:
            self._fail(run, _why(log, status))
        elif missing:
            self._fail(run, f"the notebook left no {missing[0]}")
        else:
            os.replace(partial, run.folder / "probe.ipynb")
            self._done(run, f"done in {tqdm.format_interval(time.time() - start)}")

    def _wait(self, run: RunSpec, partial: Path, log: Path) -> int:
        """Execute the notebook in a process of its own; its exit status."""
        command = [*self.plan.launcher, *execution("probe", partial, run.asked, run.asked["TENSOR_PARALLEL"])]
        gpu = self.gpus.get() if self.plan.gpus else None
        environment = dict(os.environ)
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        if self.jobs > 1 and not self.plan.launcher:  # more threads than cores are far slower
            environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // self.jobs)))
        try:
            with log.open("wb") as file:
                child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
            self.children.add(child)
            if self.signal:  # it came before there was a child to send it to
                child.terminate()
            return child.wait()
        finally:
            if gpu:
                self.gpus.put(gpu)

    def _is_over(self) -> bool:
        return bool(self.signal or (self.failed and not self.keep_going))

    def _stop(self, number: int, _) -> None:
        """End every run when a signal comes."""
        self.signal = self.signal or number
        for child in list(self.children):
            child.terminate()

    def _done(self, run: RunSpec, how: str) -> None:
        self.n_finished += 1
        self._say(run, f"{how} ({self.n_finished} of {len(self.runs)} runs)")

    def _fail(self, run: RunSpec, why: str) -> None:
        self.failed = True
        self._end(run, f"{FAILED}{why}")

    def _end(self, run: RunSpec, text: str) -> None:
        """Print how a run ended, and write it as the last line of its log, where `status_of` looks for it."""
        with contextlib.suppress(OSError), (run.folder / "probe.log").open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")
        self._say(run, text)

    def _say(self, run: RunSpec, text: str) -> None:
        print(f"{run.name}: {text}\n", end="", flush=True)  # one write per line


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _why(log: Path, status: int) -> str:
    """Why a notebook failed, on one line: the scheduler's word, the notebook's own error, or the log's last line."""
    if not shutil.disk_usage(log.parent).free:
        return f"No space left on device for {log.parent}; free the disk or choose another OUT"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    cancelled = [line for line in lines if "CANCELLED" in line]
    aborted = [line for line in lines if "Job step aborted" in line]  # Slurm leaves out the other line now and then
    failed = [line for line in lines if line.startswith(FAILED)]
    for line in [*cancelled, *aborted, *failed, *lines[-1:]]:
        return line.removeprefix(FAILED).strip("* ")
    return f"its command ended with status {status}"
