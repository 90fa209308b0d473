"""Notebooks executed by papermill, several at a time, each in its own process, with a line for each result and end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..files import CANNOT_WRITE, Held, hold, write_again
from ..params import INSTALLED
from ..progress import LOG

# A clone keeps notebooks/ beside the package, an installed wheel carries it inside.
NOTEBOOKS = Path(__file__).parents[1 if INSTALLED else 2] / "notebooks"
GRACE = 30  # seconds from SIGTERM to SIGKILL
# papermill's own command. Its standard input ends with the sweep, however that ends; then it ends too, and its kernel.
PAPERMILL = f"""
import logging, os, signal, sys, threading, time
def end():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep({GRACE})
    os._exit(1)
threading.Thread(target=end, daemon=True).start()
from papermill.__main__ import papermill
logging.getLogger("papermill").addFilter(lambda record: "unknown parameter" not in record.getMessage())
papermill()
"""
NO_KERNEL = "Kernel died before replying|Kernel didn't respond"  # what papermill says of one that did not start


@dataclass
class Notebook:
    """notebooks/<name>.ipynb, executed as <folder>/<name>.ipynb with the log <folder>/<name>.log."""

    title: str  # begins the lines printed about it
    name: str
    folder: Path
    parameters: Mapping
    lock: Path  # held while it is executed
    lacking: Callable[[], Sequence[str]] = lambda: []  # what it has still to make
    child: subprocess.Popen | None = field(default=None, init=False)
    start: float = field(default=0.0, init=False)
    starts: int = field(default=0, init=False)
    held: ExitStack = field(default_factory=ExitStack, init=False)
    told: bool = field(default=False, init=False)  # that another process holds it

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.ipynb"

    @property
    def partial(self) -> Path:
        """The notebook while it is executed; the file stays if that fails."""
        return self.folder / f"{self.name}.partial.ipynb"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def take(self) -> bool:
        """Take the notebook's lock. If another process holds it, return False and, the first time, print a line."""
        try:
            self.lock.parent.mkdir(parents=True, exist_ok=True)
            self.held.enter_context(hold(self.lock, wait=False))
        except Held as other:
            if not self.told:
                say(f"{self.title}: {other}; waiting for it")
            self.told = True
            return False
        return True

    def begin(self, environment: Mapping[str, str]) -> None:
        """Start papermill on the notebook, with these environment variables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start, self.waiting_for, self.starts = time.time(), self.lacking(), self.starts + 1
        # papermill fills in {names} in paths
        words = [str(path).replace("{", "{{").replace("}", "}}") for path in (NOTEBOOKS / self.path.name, self.partial)]
        words += ["--parameters_yaml", json.dumps(self.parameters), "--kernel", "python3"]
        words += ["--log-output", "--no-progress-bar", "--start-timeout", "300"]
        # a kernelspec in the user's home must not win over the one of this environment
        environment = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", LOG: str(self.log.absolute()), **environment}
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-c", PAPERMILL, *words],
                env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def seen(self) -> None:
        """Print the new results; on a terminal also the probe's progress."""
        left = self.lacking()
        for name in self.waiting_for:
            if name not in left:
                say(f"  {self.title}: {name} ({len(left)} to go)")
        self.waiting_for = left
        if sys.stdout.isatty() and (bars := re.findall(r"([\w ,]+): +(\d+)%\|", tail(self.log))):
            print(f"\r\x1b[2K  {self.title}: {bars[-1][0].strip()}, {bars[-1][1]}%", end="\r", flush=True)

    def ended(self) -> bool:
        """Print how the notebook ended, and return whether it is finished."""
        passed = "{:02.0f}:{:02.0f}".format(*divmod(round(time.time() - self.start), 60))
        status = self.child.returncode if self.child else None
        if status == 0 and not self.lacking():
            write_again({self.path: self.partial.read_bytes()})
            self.partial.unlink()
            say(f"{self.title}: done in {passed}")
            return True
        why = why_failed(self.partial) if status else f"it ended without {', '.join(self.lacking())}"
        if status and shutil.disk_usage(self.folder).free < 2**20:  # neither notebook nor log can say so
            why = f"the disk of {self.folder} is full; free up space, or set a different OUT"
        say(f"{self.title}: FAILED after {passed}: {why}; see {self.log}")
        return False


def execute(notebooks: Sequence[Notebook], slots: Sequence[Mapping[str, str]] = ({},), keep_going: bool = False) -> int:
    """Execute notebooks, one at a time in each slot (its environment variables); the exit status, 0 if all finished.

    After a failure no other starts, unless `keep_going`. SIGTERM and SIGINT end all of them. A notebook that another
    process executes comes last, and only if a result is still missing then.
    """
    left, free, running, n_failed = [*notebooks], [*slots], [], 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while running or left and (keep_going or not n_failed):
            for notebook in [*left] if keep_going or not n_failed else []:
                if free and notebook.take():
                    left.remove(notebook)
                    if notebook.told and not notebook.lacking():
                        notebook.held.close()
                        continue
                    try:
                        notebook.begin(free[0])
                    except OSError as error:
                        why = f"{error.filename}: {error.strerror}; {CANNOT_WRITE}"
                        say(f"{notebook.title}: FAILED: {why}")
                        notebook.held.close()
                        n_failed += 1
                        break
                    running.append((notebook, free.pop(0)))
            time.sleep(0.2)
            for notebook, slot in [*running]:
                notebook.seen()
                if notebook.child.poll() is not None:
                    if notebook.starts == 1 and re.search(NO_KERNEL, tail(notebook.log)):
                        say(f"{notebook.title}: its kernel did not start; trying once more")
                        notebook.begin(slot)
                        continue
                    running.remove((notebook, slot))
                    free.append(slot)
                    n_failed += not notebook.ended()
                    notebook.held.close()
    except KeyboardInterrupt:
        say("stopped; finished results are kept; rerun the command to resume")
        return 130
    finally:
        for notebook, _ in running:
            end(notebook.child)
            notebook.held.close()
    return int(n_failed > 0)


def end(child: subprocess.Popen) -> None:
    """End papermill, which ends its kernel; what does not end in time is killed."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)


def why_failed(partial: Path) -> str:
    """The first error in a notebook that was not finished, or else the last line of its log."""
    try:
        cells = json.loads(partial.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):  # it had not begun, or is being written
        cells = []
    for output in (output for cell in cells for output in cell.get("outputs", ())):
        if output["output_type"] == "error":
            return f"{output['ename']}: {output['evalue']}".splitlines()[0]
    last = tail(partial.with_name(partial.name.replace(".partial.ipynb", ".log"))).rstrip().rpartition("\n")[2]
    # a killed papermill ends with a cell's line, or with what its kernel says
    if re.match("(Executing|Ending) Cell ", last) or "Parent appears to have exited" in last:
        return "it was interrupted"
    return last + (", perhaps for lack of memory: use fewer JOBS or a smaller model" if "Kernel died" in last else "")


def tail(log: Path) -> str:
    """The last lines of a log."""
    return log.read_bytes()[-4000:].decode(errors="replace") if log.exists() else ""


def slots_for(jobs: int, on_server: bool) -> list[dict[str, str]]:
    """The environment variables of each of the runs side by side: its share of the GPUs or of the cores.

    One run at a time for each GPU, or one if there is none; with fewer `jobs` each has more GPUs.
    """
    gpus = [] if on_server else visible_gpus()
    n = min(jobs or len(gpus) or 1, len(gpus) or jobs or 1)
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[k::n])} for k in range(n)]
    return [{"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // n))} if n > 1 else {} for _ in range(n)]


def visible_gpus() -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES, or all there are."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return re.findall(r"[\w-]+", visible.replace("-1", ""))
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return re.findall(r"^GPU (\d+)", listed.stdout, re.MULTILINE)


def say(text: str) -> None:
    print(text, flush=True)
