"""Notebooks executed side by side, each in its own process (execute.py), with a line on how each ended.

`Executor` knows nothing of runs: a `Notebook` says which file is executed with which parameters, whether there is
anything to do, and what is lacking afterwards. Two executors may work on the same notebooks: each is locked.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.std import tqdm

from ..files import Busy, hold
from ..params import INSTALLED
from ..progress import LOG
from .status import FAILED, KILLED, PROBE_FAILED, RUNNING_LOCK, SWEEP_VARIABLE, text_of, wrapped

# A clone keeps notebooks/ beside the package, an installed wheel carries it inside.
NOTEBOOKS = Path(__file__).parents[1 if INSTALLED else 2] / "notebooks"
SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE = 30  # seconds from SIGTERM to SIGKILL
GO_ON = "what was finished is kept; repeat the command to go on"
_BAR = re.compile(r"\d+%\|")


@dataclass
class Notebook:
    """A notebook to execute: notebooks/<name>.ipynb becomes <folder>/<name>.ipynb, with the log <folder>/<name>.log."""

    title: str  # begins the lines printed about it
    name: str
    folder: Path
    parameters: Mapping
    lacking: Callable[[], Sequence[str]]  # one line per result that it should have left and did not
    is_finished: Callable[[], bool] = lambda: False  # whether there is nothing to do
    progress: Callable[[], str] = lambda: "running"
    ranks: int = 1  # with several, torchrun starts one process per rank

    @property
    def path(self) -> Path:
        """The executed notebook."""
        return self.folder / f"{self.name}.ipynb"

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
        return [sys.executable, "-m", *(torchrun if self.ranks > 1 else []), "depth_lib.sweep.execute", *words]

    def start(self, environment: Mapping) -> subprocess.Popen:
        """Start that command in a process group of its own, with these environment variables."""
        self.partial.unlink(missing_ok=True)
        self.log.write_bytes(b"")
        variables = {LOG: str(self.log.absolute()), SWEEP_VARIABLE: str(os.getpid())}
        with self.log.open("ab") as log:  # to which bars are appended too
            pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            return subprocess.Popen(self.command(), env={**environment, **variables}, **pipes)


class Executor:
    """Executes notebooks in order, as many at a time as there are environments, and prints how each ended.

    A notebook whose lock another process holds is tried again after the others. After a failure no other starts, unless
    `keep_going`. SIGTERM and SIGINT end all; `signal` is then the number.
    """

    def __init__(self, environments: Iterable[Mapping] = (os.environ,), keep_going: bool = False):
        self.free = list(environments)
        self.keep_going = keep_going
        self.left = []
        self.waiting = set()
        self.counts = Counter()  # of notebooks finished, failed, stopped
        self.signal = 0

    def execute(self, notebooks: Sequence[Notebook], report: Callable[[], str]) -> int:
        """Execute the notebooks; the exit status, 0 if all are finished. report: printed after "done in 00:12"."""
        self.left = list(notebooks)
        self.report = report
        running = []
        handlers = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            while running or (self.left and self._goes_on()):
                while self.left and self.free and self._goes_on():
                    running.append(self._execution(self.left.pop(0), self.free.pop(0)))
                running = [execution for execution in running if next(execution, False)]
                time.sleep(0.1)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 128 + self.signal if self.signal else int(self.counts["finished"] < len(notebooks))

    def _goes_on(self) -> bool:
        return not self.signal and (self.keep_going or not self.counts["failed"])

    def _stop(self, number: int, _: object) -> None:
        self.signal = self.signal or number  # make sends the signal on, so that it comes twice

    def _execution(self, notebook: Notebook, environment: Mapping) -> Iterator[bool]:
        """Execute one, unless another process has done it or is doing it; yields True while it runs."""
        try:
            notebook.folder.mkdir(parents=True, exist_ok=True)
            with hold(notebook.folder / RUNNING_LOCK, wait=False):
                if notebook.is_finished():
                    self._ended(notebook, "finished", "done by another process")
                else:
                    start = time.time()
                    child = notebook.start(environment)
                    yield from self._while_it_runs(notebook, child, start)
                    how, why = how_it_ended(notebook, -self.signal or child.returncode)
                    if how == "finished":
                        notebook.partial.replace(notebook.path)
                        why = f"done in {tqdm.format_interval(time.time() - start)}"
                    self._ended(notebook, how, why)
        except Busy as other:
            if notebook.title not in self.waiting:
                self.waiting.add(notebook.title)
                say(f"{notebook.title}: another process is at it ({other}); waiting, after all others")
            self.left.append(notebook)
        except OSError as error:
            where = error.filename or notebook.folder
            why = f"{where}: {error.strerror}; choose another OUT, or free the disk"
            self._ended(notebook, "failed", why)
        finally:
            self.free.append(environment)

    def _while_it_runs(self, notebook: Notebook, child: subprocess.Popen, start: float) -> Iterator[bool]:
        """Show a process group's progress on a terminal until it has ended; end it after a signal."""
        shown = kill_at = 0
        with tqdm(bar_format="{desc}", file=sys.stdout, disable=None, leave=False) as line:
            while child.poll() is None:
                now = time.time()
                if not line.disable and now > shown + 1:
                    shown = now
                    passed = tqdm.format_interval(now - start)
                    text = f"{notebook.title}: {notebook.progress()} ({passed})"
                    line.set_description_str(text[: shutil.get_terminal_size().columns - 1])
                if self.signal and now > kill_at:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL if kill_at else signal.SIGTERM)
                    kill_at = now + GRACE
                yield True

    def _ended(self, notebook: Notebook, how: str, why: str) -> None:
        """Count and print how a notebook ended; unless it is finished, write it to the log too, for `status_of`."""
        self.counts[how] += 1
        if how == "finished":
            say(f"{notebook.title}: {why}{self.report()}")
            return
        text = f"{FAILED}{why}" if how == "failed" else f"stopped by {why}; {GO_ON}"
        with contextlib.suppress(OSError), notebook.log.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")
        where = f"; see {notebook.log}" if how == "failed" and notebook.log.is_file() else ""
        say(f"{notebook.title}: {text}{where}")


def say(text: str) -> None:
    """Print a line at once, above the lines that change, and on a terminal wrapped between words.

    If nobody reads the lines any longer, what runs goes on.
    """
    if sys.stdout.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    try:
        tqdm.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """From now on nothing is printed: nobody reads it any longer, as after `| head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def how_it_ended(notebook: Notebook, status: int) -> tuple[str, str]:
    """Whether a notebook with this exit status is "finished", "failed" or "stopped" (which is no failure), and why."""
    if -status in SIGNALS:
        return "stopped", signal.Signals(-status).name
    lacking = notebook.lacking()
    if not status and not lacking:
        return "finished", ""
    return "failed", _why_failed(notebook, status, lacking)


def _why_failed(notebook: Notebook, status: int, lacking: Sequence[str]) -> str:
    """Why a notebook failed, on one line: an error of the notebook, out of memory, or the last line of its log."""
    lines = [line.strip() for line in text_of(notebook.log).splitlines() if line.strip()]
    errors = [line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)][:1]  # of ranks the first
    errors = errors or [line.removeprefix(PROBE_FAILED) for line in lines if line.startswith(PROBE_FAILED)]
    if not shutil.disk_usage(notebook.folder).free:
        return f"No space left on device for {notebook.folder}; free the disk or choose another OUT"
    if errors:
        return "; ".join(error.rstrip(".") for error in errors)
    if status in (-9, 137) or any("Signal 9 (SIGKILL)" in line for line in lines):  # it, its shell or a rank
        return KILLED
    if not status:
        return f"the notebook ended, and {'; '.join(lacking)}"
    said = [line for line in lines if not _BAR.search(line)]
    return said[-1].rstrip(".") if said else f"its command ended with status {status}"
