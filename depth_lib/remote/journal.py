"""The journal of submitted jobs, on disk before the client waits, so that a killed process loses none.

One JSON file per job, named by the hash of its settings, and beside it the bytes of its result. They are in
`<artifact>.job/` beside the artifact (`journalled`), or in the user's cache. A process locks a job's file while it
works on the job. The API key is never written.
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
    """A folder of jobs: those of one artifact, or all others."""

    folder: Path
    artifact: bool = False
    finished: list = field(default_factory=list)
    facts: list[dict] = field(default_factory=list)  # `id` and `cost` of each, for the artifact's meta

    def finish(self, jobs: list) -> None:
        """Move a call's jobs to the artifact's meta, or forget them.

        Raises RemoteError if the model was deployed again between two jobs of one result; the next run repeats the
        older one.
        """
        self.finished += jobs
        last = jobs[-1]
        older = [job for job in self.finished if job.model_key == last.model_key and job.runs != last.runs]
        for job in older:
            job.drop()
        if older:
            raise RemoteError(
                f"the server redeployed the model between two jobs ({older[0].runs}, then {last.runs}), whose "
                "results are not combined; rerun to compute the older ones again",
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
    """Journal this block's remote jobs beside `artifact`, and forget them if the block ends without an error.

    Write the artifact inside the block: if that fails, the next run finds the results and the running jobs. Yields
    a list of the jobs for the artifact's meta: `id` and `cost` (run time and memory, as the server reports them).
    """
    beside = Journal(Path(f"{artifact}.job"), artifact=True)
    token = _JOURNAL.set(beside)
    try:
        yield beside.facts
    finally:
        _JOURNAL.reset(token)
    shutil.rmtree(beside.folder, ignore_errors=True)
