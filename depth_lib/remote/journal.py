"""What is known of a submitted job, on the disk before anybody waits for it, so that no kernel's death loses it.

One small JSON file a job, named by the hash of its settings, and the result beside it once it has arrived. They lie in
`<artifact>.job/` beside the artifact that they are for (`beside`), else in the user's cache folder, and go when the
artifact is written, or the result returned, and no other process is at them. Never a key in them.
"""

import contextlib
import contextvars
import datetime
import io
import json
import os
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..disk import move_aside, write_together
from ..lock import hold
from ..results.files import parse
from .errors import NotReady
from .sharing import USED, remove_unused, used

_ARTIFACT = contextvars.ContextVar("artifact", default=None)
_KEPT_DAYS = 7  # of a journal in the cache folder that nobody came back for; servers keep results for an hour


@contextlib.contextmanager
def beside(artifact):
    """Journal the remote jobs of this block beside `artifact`, and forget them when the block ends without an error.

    Write the artifact inside the block: if that fails, or the process dies, the next run finds the results that have
    arrived and the jobs that still run, and submits nothing twice.
    """
    token = _ARTIFACT.set(Path(artifact))
    try:
        yield
    finally:
        _ARTIFACT.reset(token)
    remove_unused(_folder(artifact))


def _folder(artifact):
    return Path(artifact).with_name(Path(artifact).name + ".job")


def cache_folder():
    """Where the journals of runs without an artifact are: `depth_lib/jobs` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depth_lib" / "jobs"


@dataclass
class Entry:
    """One job: what it computes (`settings` is the hash of all that decides the result), where, and how far it is.

    state: "submitting" (sent, no answer yet), "refused", "submitted" (it has a job id), "failed", "lost" (the server
    has no such job, or its result no more), or "done" (its result is here).
    """

    settings: str
    probe: str
    host: str
    model: str
    artifact: str | None = None
    part: str | None = None
    state: str = "new"
    job_id: str | None = None
    submitted: str | None = None
    said: str | None = None
    returned = False  # to the caller, who needs it here no more

    @classmethod
    @contextlib.contextmanager
    def used(cls, settings, **facts):
        """The entry with these settings, new or as the disk has it. It stays there as long as any process uses it.

        Raises NotReady if the disk refuses.
        """
        artifact = _ARTIFACT.get()
        entry = cls(settings, artifact=artifact and str(artifact), **facts)
        with entry._entered(used(entry.path.with_suffix(USED), entry._leave)):
            if not entry._read():
                _forget_old()
            yield entry

    @contextlib.contextmanager
    def alone(self, line):
        """A block in which no other process decides about the job, begun with what the disk says of it by now."""

        def say(who):
            line.show(f"waiting for {who}, which is submitting the same job")

        with self._entered(hold(self.path.with_suffix(".deciding"), say=say)):
            self._read()
            yield

    def _read(self):
        """Take over what the disk says, which may be another process's word; False if it says nothing."""
        try:
            stored = type(self)(**json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return False
        except (OSError, ValueError, TypeError) as error:
            kept = move_aside(self.path, "unreadable")
            warnings.warn(
                f"{self.path} could not be read ({error}); kept as {kept.name}, submitting anew", stacklevel=2
            )
            return False
        vars(self).update(asdict(stored) | {"artifact": self.artifact, "part": self.part})  # the folder may have moved
        return True

    @property
    def path(self):
        """The journal file."""
        return (_folder(self.artifact) if self.artifact else cache_folder()) / f"{self.settings}.json"

    def note(self, state, **facts):
        """Remember the new state, on the disk before this returns. NotReady if the disk refuses."""
        self.state = state
        for name, value in facts.items():
            setattr(self, name, value)
        if state == "submitting":
            self.submitted = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._write(self.path, json.dumps(asdict(self), indent=1).encode())

    def keep(self, result):
        """Write the job's result beside the journal."""
        buffer = io.BytesIO()
        torch.save({"result": result}, buffer)
        self._write(self._result_path, buffer.getvalue())
        self.note("done", said=None)

    def result(self):
        """The result that was kept, or None."""
        try:
            stored, problem = parse(self._result_path.read_bytes())
        except OSError:
            return None
        return None if problem else stored.get("result")

    def ended(self, job_id, state, said):
        """Note how a job ended, unless another process has submitted a new one meanwhile."""
        self._read()
        if self.job_id == job_id and self.state == "submitted":
            self.note(state, said=said)

    def _leave(self):
        """What was returned is not kept in the cache folder; beside an artifact it goes with its folder."""
        if self.returned and not self.artifact:
            self.path.unlink(missing_ok=True)
            self._result_path.unlink(missing_ok=True)

    @property
    def _result_path(self):
        return self.path.with_suffix(".pt")

    def _write(self, path, content):
        with self._refused():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: content})

    @contextlib.contextmanager
    def _entered(self, lock):
        with contextlib.ExitStack() as stack:
            with self._refused():  # what the block itself does with a disk is another matter
                stack.enter_context(lock)
            yield

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
    for path in cache_folder().glob("*.*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_DAYS * 86400:
                path.unlink()
