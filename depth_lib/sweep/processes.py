"""Notebooks executed side by side, each in its own process, with a line on how each ended."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_SCHEDULER = r"(?:slurmstepd[^:]*|srun): (?:error: )?\W*"  # slurmstepd-<host> in some versions
_OUT_OF_MEMORY = re.compile(_SCHEDULER + "(.*(?:oom|Out Of Memory).*)")
_CANCELLED = re.compile(_SCHEDULER + "(.*(?:CANCELLED|Job step aborted).*)")
_BAR = re.compile(r"\d+%\|")


@dataclass
class Notebook:
    """A notebook to execute: notebooks/<name>.ipynb becomes <folder>/<name>.ipynb, with the log <folder>/<name>.log."""

    title: str  # begins the lines printed about it
    name: str
    folder: Path
    parameters: Mapping
    lock: Path  # held while it is executed
    is_finished: Callable[[], bool]  # whether there is nothing to do
    missing: Callable[[], list[Path]]  # files that it should have written and has not
    progress: Callable[[], str] = lambda: "running"
    ranks: int = 1  # with several, torchrun starts one process per rank
    launch: Sequence[str] = ()  # words in front of its command

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

    def start(self, environment: Mapping) -> subprocess.Popen:
        """Start that command in a process group of its own, with these environment variables."""
        self.partial.unlink(missing_ok=True)
        self.log.write_bytes(b"")
        variables = {LOG: str(self.log.absolute()), SWEEP: f"{os.getpid()} {place_of_processes()}"}
        with self.log.open("ab") as log:  # to which bars are appended too
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            return subprocess.Popen(self.command(), env={**environment, **variables}, **how)


class Executor:
    """Executes notebooks in order, as many at a time as there are environments, and prints how each ended.

    A notebook whose lock another process holds is tried again after the others. After a failure no other starts, unless
    `keep_going`. SIGTERM and SIGINT end all; `signal` is then the number.
    """

    def __init__(self, environments: Iterable[Mapping] = (os.environ,), keep_going: bool = False):
        self.free, self.keep_going = list(environments), keep_going
        self.left, self.waiting, self.errors = [], set(), []
        self.counts, self.signal = Counter(), 0  # of notebooks finished, failed, stopped

    def execute(self, notebooks: Sequence[Notebook], report: Callable[[], str] = str) -> int:
        """Execute the notebooks; the exit status, 0 if all are finished.

        report: what stands after "done in 00:12". Raises the first unexpected error, after all others are done.
        """
        self.left, self.report, running = list(notebooks), report, []
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
        if self.errors:
            raise self.errors[0]
        return 128 + self.signal if self.signal else int(self.counts["finished"] < len(notebooks))

    def _goes_on(self) -> bool:
        return not self.signal and (self.keep_going or not self.counts["failed"])

    def _stop(self, number: int, _: object) -> None:
        self.signal = self.signal or number  # make sends the signal on, so that it comes twice

    def _execution(self, notebook: Notebook, environment: Mapping) -> Iterator[bool]:
        """Execute one, unless another process has done it or is doing it; yields True while it runs."""
        try:
            notebook.folder.mkdir(parents=True, exist_ok=True)
            with hold(notebook.lock, wait=False):
                if notebook.is_finished():
                    self._done(notebook, "done by another process")
                else:
                    yield from self._until_ended(notebook, notebook.start(environment))
        except Busy as other:
            if notebook.title not in self.waiting:
                self.waiting.add(notebook.title)
                say(f"{notebook.title}: another process is at it ({other}); waiting, after all others")
            self.left.append(notebook)
        except ParamsError as problem:  # its prompts can no longer be read
            self._failed(notebook, str(problem))
        except OSError as error:
            where = error.filename or notebook.folder
            self._failed(notebook, f"{where}: {error.strerror}; free the disk, choose another OUT or correct LAUNCH")
        except Exception as error:  # noqa: BLE001 (a mistake in one is not the others')
            self.errors.append(error)
        finally:
            self.free.append(environment)

    def _until_ended(self, notebook: Notebook, child: subprocess.Popen) -> Iterator[bool]:
        """Show a process group's progress on a terminal until it has ended; end it after a signal."""
        start, shown, kill_at = time.time(), 0, 0
        with tqdm(bar_format="{desc}", file=sys.stdout, disable=None, leave=False) as line:
            while child.poll() is None:
                now = time.time()
                passed = tqdm.format_interval(now - start)
                if not line.disable and now > shown + 1:
                    text, shown = f"{notebook.title}: {notebook.progress()} ({passed})", now
                    line.set_description_str(text[: shutil.get_terminal_size().columns - 1])
                if self.signal and now > kill_at:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL if kill_at else signal.SIGTERM)
                    kill_at = now + GRACE
                yield True
        status = child.returncode
        if who := stopped_by(notebook.log, -self.signal or status):
            self.counts["stopped"] += 1
            _end(notebook, f"stopped by {who}; {GO_ON}")
        elif status:
            self._failed(notebook, why_failed(notebook.log, status))
        elif missing := notebook.missing():
            said = [line for line in _lines(notebook.log) if line.startswith((PROBE_FAILED, FAILED))]
            why = "; ".join(line.removeprefix(PROBE_FAILED).removeprefix(FAILED).rstrip(".") for line in said)
            self._failed(notebook, why or f"the notebook left no {missing[0]}")
        else:
            notebook.partial.replace(notebook.folder / f"{notebook.name}.ipynb")
            self._done(notebook, f"done in {tqdm.format_interval(time.time() - start)}")

    def _done(self, notebook: Notebook, how: str) -> None:
        self.counts["finished"] += 1
        say(f"{notebook.title}: {how}{self.report()}")

    def _failed(self, notebook: Notebook, why: str) -> None:
        self.counts["failed"] += 1
        _end(notebook, f"{FAILED}{why}")


def say(text: str) -> None:
    """Print a line at once, above the lines that change, and on a terminal wrapped between words.

    If nobody reads the lines any longer, what runs goes on.
    """
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    try:
        with tqdm.external_write_mode(file=sys.stdout):
            print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stopped_by(log: Path, status: int) -> str | None:
    """Who ended a notebook's process with a signal, which is no failure; None if nobody did."""
    if -status in SIGNALS:
        return signal.Signals(-status).name
    if not status:
        return None
    said = [line[1].strip(" *.") for line in map(_CANCELLED.match, _lines(log)) if line]
    return f"the scheduler ({max(said, key=lambda line: 'DUE TO' in line)})" if said else None


def why_failed(log: Path, status: int) -> str:
    """Why a notebook failed, on one line: out of memory, the notebook's own error, or the last line of its log."""
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
    """Print how a notebook ended, and append it to the log, where `status_of` reads it."""
    with contextlib.suppress(OSError), notebook.log.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    say(f"{notebook.title}: {text}" + (f"; see {notebook.log}" if text.startswith(FAILED) else ""))
