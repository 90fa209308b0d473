"""What is known of a submitted job, on the disk before anybody waits for it, so that no kernel's death loses it.

One small JSON file a job, named by the hash of its settings, and beside it the bytes of its result once they have
arrived. They lie in `<artifact>.job/` beside the artifact that they are for (`journalled`), else in the user's cache
folder. A process that is at a job holds the lock of its entry; whoever asks for the same meanwhile waits for the lock
and reads the result that was kept. What has been returned is kept some minutes longer, for those. Never a key in it.
"""

import contextlib
import contextvars
import datetime
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..files import Busy, cache_folder, hold, move_aside, write_together
from .errors import NotReady
from .reading import load

_PLACE = contextvars.ContextVar("place", default=(None, None))  # the artifact, and what its jobs were
_KEPT_DAYS = 7  # what nobody came back for; servers keep results for an hour
_SHARED_FOR = 600  # seconds that a returned result is kept for other processes that wait for it


@contextlib.contextmanager
def journalled(artifact: str | Path) -> Iterator[list[dict]]:
    """Journal the remote jobs of this block beside `artifact`, and forget them when the block ends without an error.

    Write the artifact inside the block: if that fails, or the process dies, the next run finds the results that have
    arrived and the jobs that still run, and submits nothing twice. Yields a list of what the block's jobs were, for the
    artifact's meta: `id`, `cost` (the server's word on run time and memory) and `versions`.
    """
    with journalled_at(artifact) as jobs:
        yield jobs
    for entry in entries(journal_folder(artifact)):
        with contextlib.suppress(Busy, OSError), hold(entry.path.with_suffix(".lock"), wait=False):
            entry.hand_over(ended=True)
    with contextlib.suppress(OSError):
        for lock in journal_folder(artifact).glob("*.lock"):
            lock.unlink()
        journal_folder(artifact).rmdir()


@contextlib.contextmanager
def journalled_at(artifact: str | Path) -> Iterator[list[dict]]:
    """The same, but nothing is forgotten when the block ends."""
    jobs = []
    token = _PLACE.set((Path(artifact), jobs))
    try:
        yield jobs
    finally:
        _PLACE.reset(token)


def entries(folder: Path) -> list["Entry"]:
    """The readable entries in a folder of journals."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(_stored(path))
    return found


def journal_folder(artifact: str | Path) -> Path:
    """`<artifact>.job/`, beside the artifact."""
    return Path(artifact).with_name(Path(artifact).name + ".job")


def _stored(path):
    entry = Entry(**json.loads(path.read_text(encoding="utf-8")))
    entry.folder = path.parent
    return entry


@dataclass
class Entry:
    """One job: what it computes (`settings` is the hash of all that decides the result), where, and how far it is.

    state: "submitting" (sent, no answer yet), "refused", "submitted" (it has a job id), "failed", "lost" (the server
    has no such job, or its result no more), "unread" (its result is here, but is not plain) or "done" (and is).
    calls: the settings of the calls that one job computes together.
    """

    settings: str
    probe: str
    host: str
    model: str
    artifact: str | None = None
    part: str | None = None
    calls: list | None = None
    state: str = "new"
    job_id: str | None = None
    submitted: str | None = None
    said: str | None = None
    cost: dict | None = None
    versions: dict | None = None
    returned: float | None = None  # when it was given to the caller, who needs it here no more

    def __post_init__(self):
        self.folder = journal_folder(self.artifact) if self.artifact else cache_folder("jobs")

    @classmethod
    @contextlib.contextmanager
    def held(cls, settings: str, began: float, say: Callable[[str], None], **facts: object) -> Iterator["Entry"]:
        """The entry with these settings, as the disk has it or new, while no other process is at it.

        began: when the call that asks for it began: what was returned to another caller since then is its result, too.
        Raises NotReady if the disk refuses.
        """
        artifact = _PLACE.get()[0]
        entry = cls(settings, artifact=artifact and str(artifact), **facts)
        with contextlib.ExitStack() as stack:
            with entry._refused():  # what the block itself does with a disk is another matter
                entry._lock(stack, say)
                if not entry._read(began):
                    _forget_old()
            yield entry

    def _lock(self, stack, say):
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # the folder went, with the job of whoever held the lock
                return stack.enter_context(hold(self.path.with_suffix(".lock"), say=say))

    def _read(self, began):
        """Take over what the disk says; False if it says nothing that concerns a call that began then."""
        for path in (self.path, cache_folder("jobs") / self.path.name):
            try:
                stored = _stored(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError) as error:
                kept = move_aside(path, "unreadable")
                warnings.warn(f"{path} could not be read ({error}); kept as {kept.name}, submitting anew", stacklevel=2)
                continue
            if (stored.returned or began) >= began:
                here = {"artifact": self.artifact, "part": self.part, "folder": stored.folder}  # it may have moved
                vars(self).update(vars(stored) | here)
                return True
        return False

    @property
    def path(self) -> Path:
        """The journal file."""
        return self.folder / f"{self.settings}.json"

    @property
    def content(self) -> Path:
        """The file of the result, as the server sent it."""
        return self.path.with_suffix(".result")

    def note(self, state: str, **facts: object) -> None:
        """Remember the new state, on the disk before this returns. NotReady if the disk refuses."""
        vars(self).update(facts, state=state)
        if state == "submitting":
            self.submitted = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._write(self.path, json.dumps(asdict(self), indent=1).encode())

    def keep(self, content: bytes, state: str = "done", **facts: object) -> None:
        """Write the bytes of the job's result beside the journal."""
        self._write(self.content, content)
        self.note(state, **facts)

    def result(self) -> dict | None:
        """What was saved in the result that was kept; None if there is none. Raises reading.NotPlain."""
        if self.state not in ("done", "unread"):
            return None
        try:
            return load(self.content.read_bytes())["result"]
        except (OSError, EOFError, ValueError, RuntimeError, KeyError, TypeError):  # a disk's fault: it is not there
            return None

    def used(self) -> None:
        """Tell the block of the artifact about the job."""
        if (jobs := _PLACE.get()[1]) is not None:
            jobs.append({"id": self.job_id, "cost": self.cost, "versions": self.versions})

    def hand_over(self, ended: bool = False) -> None:
        """The caller has the result: keep it in the cache folder for who waits for it. What is for an artifact stays
        beside it until the artifact's block has `ended`."""
        if self.state == "unread" or (self.artifact and not ended):
            return
        away = replace(self, artifact=None, returned=time.time())
        with contextlib.suppress(OSError, NotReady):
            if self.state == "done":
                away.keep(self.content.read_bytes())
        if self.artifact:
            self._remove()

    def _remove(self):
        for path in (self.content, self.path):
            path.unlink(missing_ok=True)

    def _write(self, path, content):
        with self._refused():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: content})

    @contextlib.contextmanager
    def _refused(self):
        try:
            yield
        except OSError as error:
            raise NotReady(
                f"the job's journal {self.path} cannot be written ({error.strerror or error}); free the disk, or set "
                "XDG_CACHE_HOME to a folder that can be written",
                self.host,
                self.job_id,
            ) from error


def _forget_old():
    for entry in entries(cache_folder("jobs")):
        with contextlib.suppress(OSError):
            age = time.time() - entry.path.stat().st_mtime
            old = age > (_SHARED_FOR if entry.returned else _KEPT_DAYS * 86400)
            if old and entry.state != "unread":
                entry._remove()
