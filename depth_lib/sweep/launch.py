"""One run of a sweep as make starts it: alone in its folder, through a launcher, with a log and a last word."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..lock import COMPUTING, Busy, Held, elapsed, hold, holder, remove_leftovers
from ..results.schemas import sweep_command
from .cell import Asked
from .status import FAILED, RUNNING, RunStatus, costs_in, progress, status_of

_NEWS = 30  # seconds between two lines about the progress of one run
_GRACE = 20  # seconds for the notebook to end after a signal, less than a scheduler's own (Slurm's KillWait is 30)
_DIED = "the notebook's kernel died without a word, as it does when memory runs out"


@dataclass
class Launch:
    """A parameters cell, the command that executes its notebook into `probe.partial.ipynb`, and where it is to run.

    since: when the run was seen to be unfinished; another sweep may have finished it in the meantime.
    """

    cell: dict
    command: list[str]
    since: float = 0.0
    wait: bool = False
    gpus: list[str] = field(default_factory=list)
    say: Callable[[str], None] = print

    def __post_init__(self):
        self.status = status_of(self.cell)
        self.folder = Path(self.status.log).parent
        self.log, self.target = self.folder / "probe.log", self.folder / "probe.ipynb"
        self.partial = self.folder / "probe.partial.ipynb"
        self.tail, self.signal = deque(maxlen=200), None

    def run(self) -> int:
        """Execute the notebook unless another sweep is at it; the exit status for make.

        Without `wait` a busy run is left to whoever has it, and 0; with it, the run is looked at again afterwards.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                held = stack.enter_context(hold(self.folder / RUNNING, self.wait, self._waiting))
                if self._done_meanwhile():
                    self._say("done by the other sweep")
                    return 0
                gpu = stack.enter_context(_gpu(self.gpus, self._say)) if self.gpus else None  # a name and its lock
                return self._execute(held, gpu)
        except Busy as other:
            self._say(f"another sweep is at it ({other}), left to it for now")
            return 0
        except OSError as error:
            return self._failed(
                f"{error.filename or self.folder} cannot be written ({error.strerror}); free the disk "
                "or choose another OUT"
            )

    def _execute(self, held: Held, gpu: tuple[str, Held] | None) -> int:
        start = time.time()
        self._say(f"running, log in {self.log}")
        self.status = status_of(self.cell)
        costs = costs_in(self.cell["OUT"], self.cell["MODEL"])
        held.note(begun=_share_done(self.status, costs))
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpu[0]} if gpu else {})
        # The notebook's process has the locks too: if only this one is killed, the run is still not free.
        locks = [held.descriptor, *([gpu[1].descriptor] if gpu else [])]
        with _signals(self._stop):
            try:
                self.child = subprocess.Popen(
                    self.command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=locks,
                )
            except OSError as error:
                return self._failed(f"{self.command[0]} cannot be started ({error.strerror}); correct LAUNCH")
            reader = threading.Thread(target=self._read, daemon=True)
            reader.start()
            self._watch(costs)
            reader.join(2)  # a kernel that outlives its notebook may keep the pipe open
        self._sweep_up()
        if self.child.returncode or self.signal:
            return self._failed(self._why(start), self.child.returncode)
        absent = [path for path in self._results() if not (path.is_file() and path.stat().st_size)]
        if absent:
            return self._failed(f"the notebook left no {absent[0]}")
        os.utime(self.partial)  # its last cell may have ended before another sweep began to wait
        os.replace(self.partial, self.target)
        self._say(f"done in {elapsed(time.time() - start)}")
        return 0

    def _watch(self, costs: dict[str, float]) -> None:
        told, at, deadline = "", time.time(), None
        while True:
            try:
                self.child.wait(timeout=1)
                return
            except subprocess.TimeoutExpired:
                pass
            if self.signal and deadline is None:
                deadline = time.time() + _GRACE
            if deadline and time.time() > deadline:
                self.child.kill()
            if time.time() - at >= _NEWS and holder(self.folder / COMPUTING):
                at, now = time.time(), progress(status_of(self.cell), costs)
                if now.rpartition(", ")[0] != told.rpartition(", ")[0]:
                    self._say(now)
                told = now

    def _stop(self, number: int, _) -> None:
        self.signal = number
        self.child.send_signal(signal.SIGTERM)

    def _read(self) -> None:
        with open(self.log, "wb", buffering=0) as log, self.child.stdout:
            for line in self.child.stdout:
                self.tail.append(line.decode(errors="replace").rstrip())
                with contextlib.suppress(OSError):  # a full disk: the last lines are still here
                    log.write(line)

    def _why(self, start: float) -> str:
        """One line: the signal, the scheduler's word, the notebook's own error, or the last thing that was said."""
        if self.signal:
            return (
                f"stopped by {signal.Signals(self.signal).name} (a scheduler's limit, or somebody); "
                "what was finished is kept"
            )
        lines = [line for line in self.tail if line.strip()]
        if cancelled := next((line for line in lines if "CANCELLED" in line), None):
            return cancelled.strip().strip("* ")
        if error := _error_in(self.partial, start):
            return error
        if any("DeadKernelError" in line for line in lines):
            return _DIED
        return lines[-1].strip() if lines else f"its command ended with status {self.child.returncode}"

    def _failed(self, why: str, status: int = 1) -> int:
        with contextlib.suppress(OSError), open(self.log, "a", encoding="utf-8") as log:
            log.write(f"\n{FAILED}{why}\n")
        self._say(f"{FAILED}{why}")
        self._say(f"see {self.log}, then: {sweep_command(self.folder)}")
        return 128 + self.signal if self.signal else status if status > 0 else 128 - status

    def _sweep_up(self) -> None:
        """Remove what a killed kernel left: it may live a moment longer than its notebook."""
        for _ in range(50):
            with contextlib.suppress(Busy), hold(self.folder / COMPUTING, wait=False):
                remove_leftovers(self.folder)
                return
            time.sleep(0.2)

    def _done_meanwhile(self) -> bool:
        with contextlib.suppress(OSError):
            return self.target.stat().st_mtime >= self.since and status_of(self.cell).finished
        return False

    def _results(self) -> list[Path]:
        paths = Asked(self.cell).paths
        return [paths[probe] for probe in self.cell["PROBES"]]

    def _waiting(self, who: str) -> None:
        self._say(f"another sweep is at it ({who}), waiting for that")

    def _say(self, text: str) -> None:
        self.say(f"{self.status.dataset} × {self.status.model}: {text}")


@contextlib.contextmanager
def _gpu(gpus: list[str], say: Callable[[str], None]):
    """One of these GPUs for a block, alone among all sweeps of this user on this machine; waits for a free one."""
    folder = Path(tempfile.gettempdir(), f"depth_lib-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    told = False
    while True:
        for gpu in gpus:
            with contextlib.suppress(Busy), contextlib.ExitStack() as stack:
                held = stack.enter_context(hold(folder / f"gpu-{gpu}", wait=False))
                yield gpu, held
                return
        if not told:
            say(f"waiting for one of GPUs {', '.join(gpus)}")
        told = True
        time.sleep(1)


@contextlib.contextmanager
def _signals(handler: Callable):
    """SIGTERM, SIGINT and SIGHUP go to the handler, so that a run ends with a sentence and without leftovers."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _error_in(notebook: Path, start: float) -> str | None:
    """The error that stopped a notebook executed since `start`, "kind: first line"."""
    try:
        if notebook.stat().st_mtime < start - 2:
            return None
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return None
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    errors = [output for output in outputs if output.get("output_type") == "error"]
    if not errors:
        return None
    first = next((line for line in errors[-1]["evalue"].splitlines() if line.strip()), "")
    return f"{errors[-1]['ename']}: {first.strip()}".rstrip(": ")


def _share_done(run: RunStatus, costs: dict[str, float]) -> float:
    weights = {probe: costs.get(probe) or 1 for probe in run.cells}
    return sum(weights[probe] for probe, cell in run.cells.items() if cell.state == "done") / sum(weights.values())
