"""One run of a sweep: alone in its folder, its notebook through a launcher, with a log and a last word."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..lock import COMPUTING, Busy, Lock, elapsed, hold, holder, remove_leftovers
from .plan import PlannedRun
from .spec import RunSpec
from .status import FAILED, RUNNING, costs_in, progress, share_done, status_of

_NEWS = 30  # seconds between two lines about the progress of one run
_GRACE = 20  # seconds for the notebook to end after a signal, less than a scheduler's own (Slurm's KillWait is 30)
_DIED = "the notebook's kernel died without a word, as it does when memory runs out"
_KEPT = "what was finished is kept"


class Stopped(Exception):
    """A signal came while the run was waiting for its turn."""


@dataclass
class Launch:
    """A run, the command that executes its notebook into `probe.partial.ipynb`, and where that is to run.

    since: when the run was seen to be unfinished; another sweep may have finished it in the meantime. `stop` may be
    called from another thread, or by a signal's handler, at any moment.
    """

    planned: PlannedRun
    command: list[str]
    since: float = 0.0
    wait: bool = False
    gpus: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.folder = Path(self._status().log).parent
        self.log, self.target = self.folder / "probe.log", self.folder / "probe.ipynb"
        self.partial = self.folder / "probe.partial.ipynb"
        self.tail, self.signal, self.child = deque(maxlen=200), None, None

    def run(self) -> int:
        """Execute the notebook unless another sweep is at it; the exit status.

        Without `wait` a busy run is left to whoever has it, and 0; with it, the run is looked at again afterwards.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._own_turn() as running, _gpu(self.gpus, self._waited) as (gpu, locked):
                if self._done_meanwhile():
                    self._say("done by the other sweep")
                    return 0
                return self._execute(running, gpu, locked)
        except Busy as other:
            self._say(f"another sweep is at it ({other}), left to it for now")
            return 0
        except Stopped:
            return 128 + self.signal
        except OSError as error:
            path = error.filename or self.folder
            return self._failed(f"{path} cannot be written ({error.strerror}); free the disk or choose another OUT")

    def stop(self, number: int) -> None:
        """End the run as this signal asks for, whether it has begun or not."""
        self.signal = number
        if self.child:
            self.child.send_signal(signal.SIGTERM)

    def _execute(self, running: Lock, gpu: str | None, locked: list[Lock]) -> int:
        start = time.time()
        self._say(f"running, log in {self.log}")
        costs = costs_in(self.planned.parameters["OUT"], self.planned.parameters["MODEL"])
        running.note(begun=share_done(self._status(), costs))
        try:
            self._start(gpu, [running, *locked])
        except OSError as error:
            return self._failed(f"{self.command[0]} cannot be started ({error.strerror}); correct LAUNCH")
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        self._watch(costs)
        reader.join(2)  # a kernel that outlives its notebook may keep the pipe open
        self._sweep_up()
        if self.signal == signal.SIGINT:
            self._say(f"stopped by Ctrl-C; {_KEPT}; go on with: {self.planned.command}")
            return 128 + self.signal
        if self.child.returncode or self.signal:
            return self._failed(self._why(start), self.child.returncode)
        absent = [path for path in self._results() if not (path.is_file() and path.stat().st_size)]
        if absent:
            return self._failed(f"the notebook left no {absent[0]}")
        os.utime(self.partial)  # its last cell may have ended before another sweep began to wait
        os.replace(self.partial, self.target)
        self._say(f"done in {elapsed(time.time() - start)}")
        return 0

    def _start(self, gpu: str | None, locks: list[Lock]) -> None:
        """Start the command. It has the locks too: if only this process is killed, the run is still not free."""
        self.child = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})},
            pass_fds=[lock.descriptor for lock in locks],
        )
        if self.signal:  # it came before there was a child to send it to
            self.child.send_signal(signal.SIGTERM)

    def _watch(self, costs: dict[str, float]) -> None:
        """Wait for the child, say now and then how far it is, and kill it if it does not end after a signal."""
        said, at, deadline = "", time.time(), None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=1)
                return
            if self.signal and deadline is None:
                deadline = time.time() + _GRACE
            if deadline and time.time() > deadline:
                self.child.kill()
            if time.time() - at >= _NEWS and holder(self.folder / COMPUTING):
                at, now = time.time(), progress(self._status(), costs)
                if now.rpartition(", ")[0] != said.rpartition(", ")[0]:
                    self._say(now)
                said = now

    def _read(self) -> None:
        with open(self.log, "wb", buffering=0) as log, self.child.stdout:
            for line in self.child.stdout:
                self.tail.append(line.decode(errors="replace").rstrip())
                with contextlib.suppress(OSError):  # a full disk: the last lines are still here
                    log.write(line)

    def _why(self, start: float) -> str:
        """One line: the signal, the scheduler's word, the notebook's own error, or the last thing that was said."""
        if self.signal:
            return f"stopped by {signal.Signals(self.signal).name} (a scheduler's limit, or somebody); {_KEPT}"
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
        self._say(f"see {self.log}, then: {self.planned.command}")
        return 128 + self.signal if self.signal else status if status > 0 else 128 - status

    def _sweep_up(self) -> None:
        """Remove what a killed kernel left: it may live a moment longer than its notebook."""
        for _ in range(50):
            with contextlib.suppress(Busy), hold(self.folder / COMPUTING, wait=False):
                remove_leftovers(self.folder)
                return
            time.sleep(0.2)

    @contextlib.contextmanager
    def _own_turn(self) -> Iterator[Lock]:
        """The lock of the run, as soon as no other sweep has it; Busy without `wait`."""
        with contextlib.ExitStack() as stack:
            said = False
            while True:
                try:
                    running = stack.enter_context(hold(self.folder / RUNNING, wait=False))
                    break
                except Busy as other:
                    if not self.wait:
                        raise
                    said = said or not self._say(f"another sweep is at it ({other}), waiting for that")
                self._waited()
            yield running

    def _waited(self, news: str = "") -> None:
        """A moment of waiting, with a word about what for; Stopped if a signal came."""
        if news:
            self._say(news)
        if self.signal:
            raise Stopped
        time.sleep(0.5)

    def _done_meanwhile(self) -> bool:
        with contextlib.suppress(OSError):
            return self.target.stat().st_mtime >= self.since and self._status().finished
        return False

    def _results(self) -> list[Path]:
        paths = RunSpec(self.planned.parameters).paths
        return [paths[probe] for probe in self.planned.parameters["PROBES"]]

    def _status(self):
        return status_of(self.planned)

    def _say(self, text: str) -> None:
        parameters = self.planned.parameters
        print(f"{parameters['DATASET']} × {parameters['MODEL']}: {text}\n", end="", flush=True)  # one write a line


@contextlib.contextmanager
def _gpu(gpus: tuple[str, ...], waited: Callable[..., None]) -> Iterator[tuple[str | None, list[Lock]]]:
    """One of these GPUs and its lock, alone among all sweeps of this user on this machine; waits for a free one."""
    if not gpus:
        yield None, []
        return
    folder = Path(tempfile.gettempdir(), f"depth_lib-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    news = f"waiting for one of GPUs {', '.join(gpus)}"
    while True:
        for gpu in gpus:
            with contextlib.suppress(Busy), contextlib.ExitStack() as stack:
                locked = stack.enter_context(hold(folder / f"gpu-{gpu}", wait=False))
                yield gpu, [locked]
                return
        waited(news)
        news = ""


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
