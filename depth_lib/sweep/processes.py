"""Notebooks executed side by side, each in a process of its own, and a line for how each ended."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.std import tqdm

from ..files import Busy, hold
from ..params import INSTALLED, ParamsError
from ..progress import LOG
from .status import FAILED, KILLED, PROBE_FAILED, SWEEP, place_of_processes

# A clone keeps notebooks/ beside the package, an installed wheel carries it inside.
NOTEBOOKS = Path(__file__).parents[1 if INSTALLED else 2] / "notebooks"
SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE = 30  # seconds from SIGTERM to SIGKILL
GO_ON = "what was finished is kept; repeat the command to go on"
_SCHEDULER = r"(?:slurmstepd|srun): (?:error: )?\W*"
_OUT_OF_MEMORY = re.compile(_SCHEDULER + "(.*(?:oom|Out Of Memory).*)")
_CANCELLED = re.compile(_SCHEDULER + "(.*(?:CANCELLED|Job step aborted).*)")
_BAR = re.compile(r"\d+%\|")


@dataclass
class Notebook:
    """A notebook to execute: notebooks/<name>.ipynb becomes <folder>/<name>.ipynb, its output <folder>/<name>.log."""

    title: str  # begins the lines printed about it
    name: str
    folder: Path
    parameters: Mapping
    lock: Path  # held while it is executed
    is_finished: Callable[[], bool]  # whether nothing is left to do
    missing: Callable[[], list[Path]]  # files that it should have left and has not
    progress: Callable[[], str] = lambda: "running"
    ranks: int = 1  # with several, torchrun starts as many processes, which share the model
    launch: Sequence[str] = ()  # words before its command

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def partial(self) -> Path:
        """The notebook while it is executed; it stays if that fails."""
        return self.folder / f"{self.name}.partial.ipynb"

    def command(self) -> list[str]:
        """The command that executes it."""
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks), "-m"]
        words = [os.path.relpath(NOTEBOOKS / f"{self.name}.ipynb"), str(self.partial), json.dumps(self.parameters)]
        start = [*self.launch, sys.executable, "-m", *(torchrun if self.ranks > 1 else [])]
        return [*start, "depth_lib.sweep.execute", *words]


class _Process:
    """The process group that executes a notebook, and its line on a terminal."""

    def __init__(self, notebook: Notebook, environment: Mapping):
        self.notebook, self.environment, self.start, self.kill_at = notebook, environment, time.time(), None
        notebook.partial.unlink(missing_ok=True)
        notebook.log.write_bytes(b"")
        variables = {LOG: str(notebook.log.absolute()), SWEEP: f"{os.getpid()} {place_of_processes()}"}
        with notebook.log.open("ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            self.child = subprocess.Popen(notebook.command(), env={**environment, **variables}, **how)
        self.line = tqdm(bar_format="{desc}", file=sys.stdout, disable=None, leave=False)
        self.shown = 0.0

    @property
    def passed(self) -> str:
        return tqdm.format_interval(time.time() - self.start)

    def show(self) -> None:
        if not self.line.disable and time.time() > self.shown + 1:
            self.shown = time.time()
            text = f"{self.notebook.title}: {self.notebook.progress()} ({self.passed})"
            self.line.set_description_str(text[: shutil.get_terminal_size().columns - 1])

    def stop(self) -> None:
        """Ask the group to end, and end it if it has not after GRACE seconds; to be called until it has."""
        first, now = self.kill_at is None, time.time()
        if first or now > self.kill_at:
            self.kill_at = now + GRACE
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGTERM if first else signal.SIGKILL)


class Runner:
    """Executes notebooks in their order, as many at a time as there are environments, and prints how each ended.

    One whose lock another process has is left to that, and looked at again after the others. After a failure no other
    is begun, unless `keep_going`. SIGTERM and SIGINT end all; `signal` is then its number.
    """

    def __init__(self, environments: Iterable[Mapping] = (os.environ,), keep_going: bool = False):
        self.free, self.keep_going = list(environments), keep_going
        self.running, self.waiting, self.errors = {}, set(), []
        self.signal = self.n_finished = self.n_failed = self.n_stopped = 0

    def run(self, notebooks: Iterable[Notebook], report: Callable[[], str] = str) -> None:
        """Execute the notebooks.

        report: what stands after "done in 00:12". Raises the first unexpected error, after all others are done.
        """
        self.left, self.report = list(notebooks), report
        handlers = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            while self.running or (self.left and not self.signal):
                for _ in range(len(self.left)):
                    if self.left and self.free and not self.signal:
                        self._begin(self.left.pop(0))
                for process in [*self.running]:
                    self._look_at(process)
                time.sleep(0.1)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self.errors:
            raise self.errors[0]

    def _stop(self, number: int, _: object) -> None:
        self.signal = self.signal or number  # make sends the signal on, so that it comes twice

    def _begin(self, notebook: Notebook) -> None:
        """Begin one, unless another process has done it or is at it."""
        with contextlib.ExitStack() as stack:
            try:
                notebook.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold(notebook.lock, wait=False))
                if notebook.is_finished():
                    self._done(notebook, "done by another process")
                else:
                    process = _Process(notebook, self.free[0])
                    self.running[process] = stack.pop_all()
                    self.free.pop(0)
            except Busy as other:
                if notebook.title not in self.waiting:
                    self.waiting.add(notebook.title)
                    say(f"{notebook.title}: another process is at it ({other}), waiting for it after all others")
                self.left.append(notebook)
            except ParamsError as problem:  # its prompts can no longer be read
                self._failed(notebook, str(problem))
            except OSError as error:
                where = error.filename or notebook.folder
                remedy = "free the disk, choose another OUT or correct LAUNCH"
                self._failed(notebook, f"{where}: {error.strerror}; {remedy}")
            except Exception as error:  # noqa: BLE001 (a mistake in one is not the others')
                self.errors.append(error)

    def _look_at(self, process: _Process) -> None:
        if process.child.poll() is None:
            process.show()
            if self.signal:
                process.stop()
            return
        process.line.close()
        with self.running.pop(process):
            self.free.append(process.environment)
            self._ended(process)

    def _ended(self, process: _Process) -> None:
        notebook, status = process.notebook, process.child.returncode
        if who := stopped_by(notebook.log, -self.signal or status):
            self.n_stopped += 1
            _end(notebook, f"stopped by {who}; {GO_ON}")
        elif status:
            self._failed(notebook, why_failed(notebook.log, status))
        elif missing := notebook.missing():
            said = [line for line in _lines(notebook.log) if line.startswith((PROBE_FAILED, FAILED))]
            why = "; ".join(line.removeprefix(PROBE_FAILED).removeprefix(FAILED).rstrip(".") for line in said)
            self._failed(notebook, why or f"the notebook left no {missing[0]}")
        else:
            notebook.partial.replace(notebook.folder / f"{notebook.name}.ipynb")
            self._done(notebook, f"done in {process.passed}")

    def _done(self, notebook: Notebook, how: str) -> None:
        self.n_finished += 1
        say(f"{notebook.title}: {how}{self.report()}")

    def _failed(self, notebook: Notebook, why: str) -> None:
        self.n_failed += 1
        _end(notebook, f"{FAILED}{why}")
        if not self.keep_going:
            self.left.clear()


def say(text: str) -> None:
    """Print a line at once, above the lines that change; if nobody reads them any longer, what runs goes on."""
    try:
        with tqdm.external_write_mode(file=sys.stdout):
            print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stopped_by(log: Path, status: int) -> str | None:
    """Who ended a notebook's process by a signal: not a failure of its own. A scheduler's line says why it did."""
    if -status in SIGNALS:
        return signal.Signals(-status).name
    if not status:
        return None
    return next(
        (f"the scheduler ({line[1].strip(' *.')})" for line in map(_CANCELLED.match, _lines(log)) if line), None
    )


def why_failed(log: Path, status: int) -> str:
    """Why a notebook failed, on one line: out of memory, the notebook's own error, or the log's last line."""
    if not shutil.disk_usage(log.parent).free:
        return f"No space left on device for {log.parent}; free the disk or choose another OUT"
    lines = _lines(log)
    if line := next(filter(None, map(_OUT_OF_MEMORY.match, lines)), None):
        return f"killed for memory ({line[1].strip(' *.')}); ask the scheduler for more, or use a smaller model"
    if line := next((line for line in lines if line.startswith(FAILED)), None):
        return line.removeprefix(FAILED).rstrip(".")
    if status in (-9, 137) or any("Signal 9 (SIGKILL)" in line for line in lines):  # itself, in a shell, or a rank
        return KILLED
    said = [line for line in lines if not _BAR.search(line)]
    return said[-1].rstrip(".") if said else f"its command ended with status {status}"


def _lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _end(notebook: Notebook, text: str) -> None:
    """Print how it ended, and write it as the last line of its log, where `status_of` looks for it."""
    with contextlib.suppress(OSError), notebook.log.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    say(f"{notebook.title}: {text}" + (f"; see {notebook.log}" if text.startswith(FAILED) else ""))
