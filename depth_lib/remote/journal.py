"""The journal of submitted jobs, on disk before the client waits for them, so that a killed kernel loses none.

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
from .errors import NotReady, RemoteError


@dataclass
class _Block:
    """A `journalled` block: its folder, its jobs for the artifact's meta, and their entries."""

    folder: Path
    jobs: list[dict] = field(default_factory=list)
    finished: list["Entry"] = field(default_factory=list)


_BLOCK = contextvars.ContextVar("block", default=None)


@contextlib.contextmanager
def journalled(artifact: str | Path) -> Iterator[list[dict]]:
    """Journal the remote jobs of this block beside `artifact`, and forget them when the block ends without an error.

    Write the artifact inside the block: if that fails, or the process dies, the next run finds the results that have
    arrived and the jobs that still run, and submits nothing twice. Yields a list of the block's jobs, for the
    artifact's meta: `id` and `cost` (the server's report of run time and memory).
    """
    block = _Block(Path(f"{artifact}.job"))
    token = _BLOCK.set(block)
    try:
        yield block.jobs
    finally:
        _BLOCK.reset(token)
    shutil.rmtree(block.folder, ignore_errors=True)


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
    runs: dict | None = None  # the model that computed it, as `models.check.running` describes it

    @property
    def path(self) -> Path:
        """The journal file."""
        block = _BLOCK.get()
        return (block.folder if block else cache_folder("jobs")) / f"{self.settings}.json"

    @property
    def content(self) -> Path:
        """The file of the result, as the server sent it."""
        return self.path.with_suffix(".result")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Read the entry from disk and keep its lock for a block, whose errors get the names of host and job."""
        try:
            with contextlib.ExitStack() as lock:
                with self._disk():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    lock.enter_context(hold(self.path.with_suffix(".lock")))
                    self._read()
                yield
        except RemoteError as error:
            error.host, error.job_id = self.host, self.job_id
            raise

    def _read(self):
        try:
            vars(self).update(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except (ValueError, TypeError) as error:
            kept = move_aside(self.path, "unreadable")
            warnings.warn(f"{self.path} cannot be read ({error}); kept as {kept.name}, submitting anew", stacklevel=2)

    def note(self, state: str, content: bytes | None = None, **facts: object) -> None:
        """Remember the new state, and the bytes of the result, on disk before this returns.

        Raises NotReady if the disk cannot be written.
        """
        vars(self).update(facts, state=state)
        if state == "submitting":
            self.submitted = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        files = {} if content is None else {self.content: content}  # first, as the journal says that it is there
        files[self.path] = json.dumps(asdict(self), indent=1).encode()
        with self._disk():
            write_together(files)

    @contextlib.contextmanager
    def _disk(self):
        try:
            yield
        except OSError as error:
            raise NotReady(
                f"the job's journal {self.path} cannot be written ({error.strerror or error}); free the disk, or set "
                "XDG_CACHE_HOME to a folder that can be written"
            ) from error


def finish(entries: list[Entry]) -> None:
    """Add the jobs of a call to the enclosing `journalled` block; without one, delete their entries.

    RemoteError if the model was deployed anew between two jobs of the call or block: the next run repeats the older.
    """
    block, model, runs = _BLOCK.get(), entries[-1].model, entries[-1].runs
    all_jobs = [*block.finished, *entries] if block else entries
    if older := [entry for entry in all_jobs if entry.model == model and entry.runs != runs]:
        changes = [f"{key} {value}, then {runs[key]}" for key, value in older[0].runs.items() if runs[key] != value]
        for entry in older:
            entry.note("ended", problem="the model was deployed anew")
        raise RemoteError(
            f"the server deployed the model anew between two jobs ({', '.join(changes)}), which are not joined; run "
            "again to repeat the older ones",
            host=entries[0].host,
        )
    if block:
        block.finished += entries
        block.jobs += [{"id": entry.job_id, "cost": entry.cost} for entry in entries]
        return
    for entry in entries:
        for path in (entry.content, entry.path, entry.path.with_suffix(".lock")):
            path.unlink(missing_ok=True)


def total_cost(jobs: list[dict]) -> str:
    """The total cost of the jobs in artifacts' meta: seconds, and the most memory beside the weights."""
    costs = [job["cost"] or {} for job in jobs]
    seconds = sum(cost.get("runtime", 0) for cost in costs)
    gigabytes = max(cost.get("max_memory_usage", 0) for cost in costs) / 1e9
    return f"{len(jobs)} jobs on the server: {seconds:.1f} s in all, at most {gigabytes:.2f} GB beside the weights"
