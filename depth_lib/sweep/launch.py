"""A sweep: each unfinished run is the process of one notebook; JOBS or GPUS say how many run side by side."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from ..files import Busy, hold
from ..params import INSTALLED, ParamsError
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


def run_unfinished(plan: Plan) -> int:
    """Run what is missing or stale, and print how each run ended.

    Returns the exit status. A run that another sweep executes is left to it, and looked at again after the others.
    After a failure no other run is begun, unless plan.KEEP_GOING. What failed stays failed until the next sweep.
    Raises ParamsError for a LAUNCH that is no command, before anything runs.
    """
    sweep = _Sweep(plan)
    unfinished = list(sweep.left)
    asyncio.run(sweep.run())
    statuses = [status for run in unfinished if not (status := status_of(run)).finished]
    print(f"{plan.folder}: {sweep.n_runs - len(statuses)} of {sweep.n_runs} runs finished")
    for status in statuses:
        print(*(status.notes or [f"{status.dataset} × {status.model}: not started"]), sep="\n")
    return 128 + sweep.signal if sweep.signal else int(bool(statuses))


class _Sweep:
    """The runs of a plan that are left to do, and the workers that do them."""

    def __init__(self, plan: Plan):
        self.plan, runs = plan, plan.runs()
        try:
            self.launch = shlex.split(plan.LAUNCH)
        except ValueError as error:
            raise ParamsError(f"LAUNCH is {plan.LAUNCH}, which is no command ({error}); close its quotes") from None
        self.left = [run for run in runs if not status_of(run).finished]
        self.n_runs, self.n_finished = len(runs), len(runs) - len(self.left)
        slots = plan.GPUS[: plan.JOBS or None] or [None] * (plan.JOBS or 1)
        threads = {}
        if len(slots) > 1 and not plan.LAUNCH:  # more threads than cores are far slower
            threads = {"OMP_NUM_THREADS": str(max(1, _cores() // len(slots)))}
        self.environments = [threads | os.environ | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}) for gpu in slots]
        self.signal, self.waiting, self.errors = 0, set(), []

    async def run(self) -> None:
        """Do what is left; SIGTERM and SIGINT end every run. Raises the first unexpected error, after all runs."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: int, _: object) -> None:
            if not self.signal:  # make sends the signal on, so that it comes twice
                self.signal = number
                loop.call_soon_threadsafe(task.cancel)

        handlers = {number: signal.signal(number, stop) for number in SIGNALS}
        try:
            with contextlib.suppress(asyncio.CancelledError):
                # return_exceptions: a cancelled worker does not keep this from waiting for the others
                await asyncio.gather(*map(self._work, self.environments), return_exceptions=True)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self.errors:
            raise self.errors[0]

    async def _work(self, environment: Mapping) -> None:
        """Do one run after another, each in a process with these environment variables."""
        while self.left and not self.signal:
            run = self.left.pop(0)
            try:
                await self._do(run, environment)
            except Exception as error:  # noqa: BLE001 (a mistake in one run is not the others')
                self.errors.append(error)

    async def _do(self, run: RunSpec, environment: Mapping) -> None:
        """Do one run, unless another sweep has done it or is at it."""
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            with hold(run.folder / RUNNING, wait=False):
                if status_of(run).finished:
                    self._done(run, "done by another sweep")
                else:
                    await self._execute(run, environment)
        except Busy as other:
            if run.name not in self.waiting:
                self.waiting.add(run.name)
                _say(run, f"another sweep is at it ({other}), waiting for it when all others are done")
            self.left.append(run)
            await asyncio.sleep(0.5)
        except ParamsError as problem:  # its prompts can no longer be read
            self._fail(run, str(problem))
        except BrokenPipeError:  # nobody reads what is printed, and nothing is wrong with the run
            raise
        except OSError as error:
            where = error.filename or run.folder
            self._fail(run, f"{where}: {error.strerror}; free the disk, choose another OUT or correct LAUNCH")

    async def _execute(self, run: RunSpec, environment: Mapping) -> None:
        """Execute a run's notebook and print what became of it."""
        start, partial, log = time.time(), run.folder / PARTIAL, run.folder / "probe.log"
        partial.unlink(missing_ok=True)
        _say(run, f"running, log in {log}")
        command = [*self.launch, *execution("probe", partial, run.asked, run.asked["TENSOR_PARALLEL"])]
        with log.open("wb") as file:
            child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            await _ended(child)
        except asyncio.CancelledError:
            child.terminate()
            await _ended(child)
            _stopped(run, self.signal)
            raise
        if -child.returncode in SIGNALS:  # from somebody else
            _stopped(run, -child.returncode)
            return
        if child.returncode:
            self._fail(run, _why(log, child.returncode))
            return
        results = [run.path(probe, offline=True) for probe in run.asked["PROBES"]]
        if missing := [path for path in results if not path.is_file()]:
            self._fail(run, f"the notebook left no {missing[0]}")
        else:
            os.replace(partial, run.folder / "probe.ipynb")
            self._done(run, f"done in {tqdm.format_interval(time.time() - start)}")

    def _done(self, run: RunSpec, how: str) -> None:
        self.n_finished += 1
        _say(run, f"{how} ({self.n_finished} of {self.n_runs} runs)")

    def _fail(self, run: RunSpec, why: str) -> None:
        _end(run, f"{FAILED}{why}")
        if not self.plan.KEEP_GOING:
            self.left.clear()


async def _ended(child: subprocess.Popen) -> None:
    while child.poll() is None:
        await asyncio.sleep(0.1)


def _stopped(run: RunSpec, number: int) -> None:
    name = signal.Signals(number).name
    _end(run, f"stopped by {name}; what was finished is kept; repeat the command to go on")


def _end(run: RunSpec, text: str) -> None:
    """Print how a run ended, and write it as the last line of its log, where `status_of` looks for it."""
    with contextlib.suppress(OSError), (run.folder / "probe.log").open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    _say(run, text)


def _say(run: RunSpec, text: str) -> None:
    print(f"{run.name}: {text}", flush=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _why(log: Path, status: int) -> str:
    """Why a notebook failed, on one line: the scheduler's word, the notebook's own error, or the log's last line."""
    if not shutil.disk_usage(log.parent).free:
        return f"No space left on device for {log.parent}; free the disk or choose another OUT"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    # Slurm writes "CANCELLED AT", or now and then only the other line
    scheduler = [line for word in ("CANCELLED", "Job step aborted") for line in lines if word in line]
    notebook = [line for line in lines if line.startswith(FAILED)]
    for line in [*scheduler, *notebook, *lines[-1:]]:
        return line.removeprefix(FAILED).strip("* ").rstrip(".")
    return f"its command ended with status {status}"
