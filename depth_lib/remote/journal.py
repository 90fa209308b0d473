"""The journal of submitted jobs, on disk before the client waits for them, so that a killed kernel loses none.

One small JSON file per job, named by the hash of its settings, and beside it the bytes of its result once they have
arrived. They lie in `<artifact>.job/` beside the artifact that they are for (`journalled`), else in the user's cache
folder. A process holds the lock of a job's file while it works on the job. The API key is never written.
"""

import contextlib
import contextvars
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..files import cache_folder
from .errors import RemoteError


@dataclass
class Journal:
    """The folder of jobs that are for one artifact, or of all others."""

    folder: Path
    artifact: bool = False
    finished: list = field(default_factory=list)
    facts: list[dict] = field(default_factory=list)  # `id` and `cost` of each, for the artifact's meta

    def finish(self, jobs: list) -> None:
        """The results of a call's jobs are returned: keep what an artifact's meta says of them, else forget them.

        RemoteError if the model was deployed anew between two jobs for one result: the next run repeats the older.
        """
        self.finished += jobs
        last = jobs[-1]
        older = [job for job in self.finished if job.model_key == last.model_key and job.runs != last.runs]
        for job in older:
            job.drop()
        if older:
            raise RemoteError(
                f"the server deployed the model anew between two jobs ({older[0].runs}, then {last.runs}), which are "
                "not joined; run again to repeat the older ones",
                retry="send",
            )
        self.facts += [{"id": job.job_id, "cost": job.meta} for job in jobs]
        if not self.artifact:
            for job in jobs:
                job.forget()


_JOURNAL: contextvars.ContextVar[Journal | None] = contextvars.ContextVar("journal", default=None)


def journal() -> Journal:
    """The journal of the enclosing `journalled` block, or the user's."""
    return _JOURNAL.get() or Journal(cache_folder("jobs"))


@contextlib.contextmanager
def journalled(artifact: str | Path) -> Iterator[list[dict]]:
    """Journal the remote jobs of this block beside `artifact`, and forget them when the block ends without an error.

    Write the artifact inside the block: if that fails, or the process dies, the next run finds the results that have
    arrived and the jobs that still run, and submits nothing twice. Yields a list of the block's jobs, for the
    artifact's meta: `id` and `cost` (the server's report of run time and memory).
    """
    beside = Journal(Path(f"{artifact}.job"), artifact=True)
    token = _JOURNAL.set(beside)
    try:
        yield beside.facts
    finally:
        _JOURNAL.reset(token)
    shutil.rmtree(beside.folder, ignore_errors=True)


def total_cost(jobs: list[dict]) -> str:
    """How long the jobs in artifacts' meta ran in all."""
    costs = [job.get("cost") for job in jobs]
    times = [cost.get("runtime") for cost in costs if isinstance(cost, dict)]
    seconds = sum(time for time in times if isinstance(time, int | float))  # a server's words, checked here only
    return f"{len(jobs)} jobs on the server: {seconds:.1f} s in all"
