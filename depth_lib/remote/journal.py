"""The journal of submitted jobs, on disk before anybody waits for them, so that a killed kernel loses none.

One small JSON file per job, named by the hash of its settings, and beside it the bytes of its result once they have
arrived. They lie in `<artifact>.job/` beside the artifact that they are for (`journalled`), else in the user's cache
folder. A process holds the lock of an entry while it works on the job. The API key is never written.
"""

import contextlib
import contextvars
import datetime
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..files import cache_folder, hold, move_aside, write_together
from .errors import NotReady

_ARTIFACT = contextvars.ContextVar("artifact", default=None)  # what the jobs of this block are for
_JOBS = contextvars.ContextVar("jobs", default=None)  # the list of what this block's jobs were


@contextlib.contextmanager
def journalled(artifact: str | Path) -> Iterator[list[dict]]:
    """Journal the remote jobs of this block beside `artifact`, and forget them when the block ends without an error.

    Write the artifact inside the block: if that fails, or the process dies, the next run finds the results that have
    arrived and the jobs that still run, and submits nothing twice. Yields a list of the block's jobs, for the
    artifact's meta: `id` and `cost` (the server's report of run time and memory).
    """
    jobs = []
    tokens = _ARTIFACT.set(Path(artifact)), _JOBS.set(jobs)
    try:
        yield jobs
    finally:
        _ARTIFACT.reset(tokens[0])
        _JOBS.reset(tokens[1])
    shutil.rmtree(journal_folder(artifact), ignore_errors=True)


def journal_folder(artifact: str | Path) -> Path:
    """`<artifact>.job/`, beside the artifact."""
    return Path(artifact).with_name(Path(artifact).name + ".job")


@dataclass
class Entry:
    """One job: what it computes (`settings` is the hash of all that decides the result), where, and how far it is.

    state: "new", "submitting" (sent, no answer yet), "submitted" (it has a job id), "ended" (failed, refused or lost:
    `problem` says why) or "done" (its result is here).
    """

    settings: str
    probe: str
    host: str
    model: str
    part: str | None = None
    state: str = "new"
    job_id: str | None = None
    submitted: str | None = None
    problem: str | None = None
    cost: dict | None = None
    folder: Path = field(default_factory=lambda: _folder(), repr=False)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Read the entry from disk and keep its lock for a block. NotReady if the disk cannot be written."""
        with contextlib.ExitStack() as stack:
            with self._disk():
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold(self.path.with_suffix(".lock")))
                self._read()
            yield

    def _read(self):
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            for name in ("state", "job_id", "submitted", "problem", "cost"):
                setattr(self, name, stored[name])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            kept = move_aside(self.path, "unreadable")
            warnings.warn(f"{self.path} cannot be read ({error}); kept as {kept.name}, submitting anew", stacklevel=2)

    @property
    def path(self) -> Path:
        """The journal file."""
        return self.folder / f"{self.settings}.json"

    @property
    def content(self) -> Path:
        """The file of the result, as the server sent it."""
        return self.path.with_suffix(".result")

    def note(self, state: str, **facts: object) -> None:
        """Remember the new state, on disk before this returns. NotReady if the disk cannot be written."""
        vars(self).update(facts, state=state)
        if state == "submitting":
            self.submitted = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        facts = {name: value for name, value in asdict(self).items() if name != "folder"}
        with self._disk():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_together({self.path: json.dumps(facts, indent=1).encode()})

    def keep(self, content: bytes, cost: dict | None) -> None:
        """Write the bytes of the job's result beside the journal."""
        with self._disk():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_together({self.content: content})
        self.note("done", problem=None, cost=cost)

    def kept(self) -> bytes | None:
        """The bytes of the result that was kept; None if there is none."""
        if self.state == "done":
            with contextlib.suppress(OSError):
                return self.content.read_bytes()
        return None

    def used(self) -> None:
        """Tell the block of the artifact about the job; without one, forget it."""
        jobs = _JOBS.get()
        if jobs is not None:
            jobs.append({"id": self.job_id, "cost": self.cost})
        else:
            for path in (self.content, self.path, self.path.with_suffix(".lock")):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _disk(self):
        try:
            yield
        except OSError as error:
            raise NotReady(
                f"the job's journal {self.path} cannot be written ({error.strerror or error}); free the disk, or set "
                "XDG_CACHE_HOME to a folder that can be written",
                self.host,
                self.job_id,
            ) from error


def _folder():
    artifact = _ARTIFACT.get()
    return journal_folder(artifact) if artifact else cache_folder("jobs")
