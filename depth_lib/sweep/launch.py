"""A sweep: its unfinished runs in a pool of threads, each of which waits for one papermill process at a time."""

import contextlib
import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

from tqdm import tqdm

from ..files import COMPUTING, Busy, hold, holder, remove_leftovers
from ..params import INSTALLED, ParamsError
from .plan import Plan, PlannedRun
from .status import FAILED, RUNNING, remarks, status_of

# A clone keeps notebooks/ beside the package, an installed wheel carries it inside.
NOTEBOOKS = Path(__file__).parents[1 if INSTALLED else 2] / "notebooks"
_GRACE = 20  # seconds for a notebook to end after a signal, less than a scheduler's own (Slurm's KillWait is 30)
_KEPT = "what was finished is kept"


def execution(name: str, output: str | Path, parameters: Mapping, ranks: int = 1) -> list[str]:
    """The command that executes the notebook of this name with these parameters, and writes it to `output`.

    ranks: with several, torchrun starts as many processes of it, which share the model.
    """
    notebook, given = os.path.relpath(NOTEBOOKS / f"{name}.ipynb"), json.dumps(dict(parameters), ensure_ascii=False)
    if ranks > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [sys.executable, "-m", *torchrun, "-m", "depth_lib.sweep.rank", notebook, str(output), given]
    papermill = ["papermill", "--kernel", "python3", "--no-progress-bar", "--log-output", "--start-timeout", "300"]
    return [sys.executable, "-m", *papermill, notebook, str(output), "-y", given]  # JSON is YAML too


def environment(**variables: str) -> dict[str, str]:
    """The environment of such a command: a kernelspec in the user's home must not win over the environment's own."""
    kept = {key: value for key, value in os.environ.items() if key != "JUPYTER_PATH"}
    return kept | {"JUPYTER_PREFER_ENV_PATH": "1"} | variables


class Sweep:
    """A plan's runs, `jobs` at a time (0: all; None: one, or one for each GPU), with `keep_going` past failures."""

    def __init__(self, plan: Plan, jobs: int | None = None, keep_going: bool = False):
        self.plan, self.keep_going, self.runs = plan, keep_going, plan.runs()
        self.jobs = (jobs or len(self.runs)) if jobs is not None else len(plan.gpus) or 1
        self.gpus = queue.SimpleQueue()
        if plan.gpus:
            self.jobs = min(self.jobs, len(plan.gpus))
            for gpu in plan.gpus:
                self.gpus.put(gpu)
        self.children: set[subprocess.Popen] = set()
        self.signal, self.failed, self.n_finished, self.waiting = 0, False, 0, set()

    def run(self) -> int:
        """Run what is missing or stale and say how it ended; the exit status.

        A run that another sweep is at is left to it, and looked at again when all others are done. What failed stays
        failed until the next sweep. ParamsError for what cannot be run, before anything runs.
        """
        unfinished = [run for run in self.runs if not status_of(run).finished]
        self.n_finished = len(self.runs) - len(unfinished)
        _check_quantization(unfinished)
        _check_gpus(unfinished, self.plan.gpus)
        with self._signals():
            left = self._pool(unfinished)
            while left and not self._is_over():
                time.sleep(0.5)
                left = self._pool(left)
        if self.signal:
            return 128 + self.signal
        statuses = [status_of(run) for run in unfinished]
        left = [status for status in statuses if not status.finished]
        count = f"{len(self.runs) - len(left)} of {len(self.runs)} runs finished"
        print(f"{self.plan.folder}: {count}")
        for status in left:
            name = f"{status.dataset} × {status.model}"
            for line in remarks(status) or [f"{name}: not finished; go on with: {status.command}"]:
                print(f"  {line}")
        return int(bool(left))

    def _pool(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Do these runs side by side; returns those that another sweep is at."""
        with ThreadPoolExecutor(self.jobs) as pool:
            going = [pool.submit(self._one, run) for run in runs]
            while wait(going, timeout=0.2).not_done:  # in short waits, so that this thread hears signals
                pass
        return [run for run, done in zip(runs, going, strict=True) if not done.result()]

    def _one(self, run: PlannedRun) -> bool:
        """Execute one run's notebook; False if another sweep is at it."""
        if self._is_over():
            return True
        folder = run.spec.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with hold(folder / RUNNING, wait=False):
                if status_of(run).finished:
                    self._done(run, "done by the other sweep")
                elif why := self._execute(run):
                    self._fail(run, why)
        except Busy as other:
            if run.spec.name not in self.waiting:
                self.waiting.add(run.spec.name)
                self._say(run, f"another sweep is at it ({other}), waiting for it when all others are done")
            return False
        except OSError as error:
            where = error.filename or folder
            self._fail(run, f"{where} cannot be written ({error.strerror}); free the disk or choose another OUT")
        return True

    def _execute(self, run: PlannedRun) -> str | None:
        """Execute a run's notebook and say what became of it; why it failed, if it did."""
        start, folder = time.time(), run.spec.folder
        partial, log = folder / "probe.partial.ipynb", folder / "probe.log"
        partial.unlink(missing_ok=True)
        with log.open("wb") as file:
            self._say(run, f"running, log in {log}")
            status = self._wait(run, partial, file)
        _wait_for_the_kernel(folder)
        if -status in (signal.SIGTERM, signal.SIGINT) and not self.signal:
            time.sleep(0.5)  # a signal to the group reaches the notebook and this process in either order
        if self.signal == signal.SIGINT:
            return self._say(run, f"stopped by Ctrl-C; {_KEPT}; go on with: {run.command}")
        if self.signal:
            return f"stopped by {signal.Signals(self.signal).name} (a scheduler's limit, or somebody); {_KEPT}"
        if status:
            return _why(folder, status)
        if absent := [probe for probe in run.spec.asked["PROBES"] if not run.spec.paths[probe].is_file()]:
            return f"the notebook left no {run.spec.paths[absent[0]]}"
        os.replace(partial, folder / "probe.ipynb")
        return self._done(run, f"done in {tqdm.format_interval(time.time() - start)}")

    def _wait(self, run: PlannedRun, partial: Path, log: IO[bytes]) -> int:
        """Execute the notebook in a process of its own; its exit status."""
        notebook = execution("probe", partial, run.spec.asked, run.spec.asked["TENSOR_PARALLEL"])
        gpu = self.gpus.get() if self.plan.gpus else None
        variables = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
        if self.jobs > 1 and not self.plan.launcher and "OMP_NUM_THREADS" not in os.environ:
            variables["OMP_NUM_THREADS"] = str(-(-_cores() // self.jobs))  # more threads than cores are far slower
        output = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        try:
            child = subprocess.Popen([*self.plan.launcher, *notebook], env=environment(**variables), **output)
            self.children.add(child)
            if self.signal:  # it came before there was a child to send it to
                child.terminate()
            return child.wait()
        except FileNotFoundError:
            log.write(f"{self.plan.launcher[0]} cannot be started (no such file); correct LAUNCH".encode())
            return 127
        finally:
            if gpu:
                self.gpus.put(gpu)

    def _is_over(self) -> bool:
        return bool(self.signal or (self.failed and not self.keep_going))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """In this block a signal ends every run with a sentence and without leftovers."""
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.signal(number, self._stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _) -> None:
        self.signal = self.signal or number
        for child in self.children:
            child.terminate()
            timer = threading.Timer(_GRACE, child.kill)
            timer.daemon = True
            timer.start()

    def _done(self, run: PlannedRun, how: str) -> None:
        self.n_finished += 1
        self._say(run, f"{how} ({self.n_finished} of {len(self.runs)} runs)")

    def _fail(self, run: PlannedRun, why: str) -> None:
        self.failed, log = True, run.spec.folder / "probe.log"
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write(f"\n{FAILED}{why}\n")
        self._say(run, f"{FAILED}{why}")
        self._say(run, f"see {log}, then: {run.command}")

    def _say(self, run: PlannedRun, text: str) -> None:
        print(f"{run.spec.name}: {text}\n", end="", flush=True)  # one write per line


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_quantization(runs: list[PlannedRun]) -> None:
    """ParamsError, before any run, where weights are to be held here in a way that this environment cannot."""
    kinds = {run.spec.asked["QUANTIZATION"] for run in runs if run.spec.remote in (False, "local")} - {None}
    if kinds and importlib.util.find_spec("bitsandbytes") is None:
        raise ParamsError(
            f"{' and '.join(sorted(kinds))} weights need bitsandbytes, which is not installed; run: "
            f"{sys.executable} -m pip install bitsandbytes   (or add QUANTIZATION=null: weights as wide as DTYPE)"
        )


def _check_gpus(runs: list[PlannedRun], gpus: tuple[str, ...]) -> None:
    """ParamsError, before any run, where each run would have one GPU and needs several."""
    ranks = max((run.spec.asked["TENSOR_PARALLEL"] for run in runs), default=1)
    if gpus and ranks > 1:
        raise ParamsError(f"GPUS gives each run one GPU, and TENSOR_PARALLEL={ranks} needs {ranks}; leave out GPUS")


def _wait_for_the_kernel(folder: Path) -> None:
    """A killed notebook's kernel may live a moment longer; what it left half-written goes."""
    for _ in range(50):
        if holder(folder / COMPUTING) is None:
            return remove_leftovers(folder)
        time.sleep(0.2)


def _why(folder: Path, status: int) -> str:
    """Why a notebook failed, on one line: the scheduler's word, the notebook's own error, or the log's last line."""
    if not shutil.disk_usage(folder).free:
        return f"No space left on device for {folder}; free the disk or choose another OUT"
    log = (folder / "probe.log").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if cancelled := next((line for line in lines if "CANCELLED" in line), None):
        return cancelled.strip("* ")
    if rank := next((line for line in lines if re.match(r"rank \d+: ", line)), None):
        return rank
    if error := _error_in(folder / "probe.partial.ipynb"):
        return error
    if any("DeadKernelError" in line for line in lines):
        return "the notebook's kernel died without a word, as it does when memory runs out"
    return lines[-1] if lines else f"its command ended with status {status}"


def _error_in(notebook: Path) -> str | None:
    """The error that stopped an executed notebook, "kind: first line"."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if output.get("output_type") == "error":
                    return f"{output['ename']}: {output['evalue'].strip().splitlines()[0]}"
    return None
