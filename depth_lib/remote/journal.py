"""What is known of a submitted job, on the disk before anybody waits for it, so that no kernel's death loses it.

One small JSON file a job, named by the hash of its settings, and the result beside it once it has arrived. They lie in
`<artifact>.job/` beside the artifact that they are for (`beside`), else in the user's cache folder, and go when the
artifact is written, or the result returned. Never a key in them.
"""

import contextlib
import contextvars
import datetime
import io
import json
import os
import shutil
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from depth_lib.storage import move_aside, parse, write_together

from .errors import NotReady

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
    shutil.rmtree(_folder(artifact), ignore_errors=True)


def _folder(artifact):
    return Path(artifact).with_name(Path(artifact).name + ".job")


def cache_folder():
    """Where the journals of runs without an artifact are: `depth_lib/jobs` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depth_lib" / "jobs"


@dataclass
class Entry:
    """One job: what it computes (`settings` is the hash of all that decides the result), where, and how far it is.

    state: "submitting" (sent, no answer yet), "submitted" (it has a job id), "failed", "unknown" to the server, or
    "done" (its result is here).
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

    @classmethod
    def open(cls, settings, **facts):
        """The entry with these settings as the disk has it, or a new one."""
        artifact = _ARTIFACT.get()
        entry = cls(settings, artifact=artifact and str(artifact), **facts)
        try:
            stored = json.loads(entry.path.read_text(encoding="utf-8"))
            entry = cls(**stored)
        except FileNotFoundError:
            _forget_old()
        except (OSError, ValueError, TypeError) as error:
            kept = move_aside(entry.path, "unreadable")
            warnings.warn(f"{entry.path} could not be read ({error}); kept as {kept.name}, submitting anew",
                          stacklevel=2)
        return entry

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

    def forget(self):
        """Remove what is kept of the job in the cache folder; what lies beside an artifact goes with its folder."""
        if not self.artifact:
            self.path.unlink(missing_ok=True)
            self._result_path.unlink(missing_ok=True)

    @property
    def _result_path(self):
        return self.path.with_suffix(".pt")

    def _write(self, path, content):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: content})
        except OSError as error:
            raise NotReady(
                f"the job's journal {path} cannot be written ({error.strerror or error}); free the disk, or set "
                "XDG_CACHE_HOME to a folder that can be written",
                self.host, self.job_id,
            ) from error  # fmt: skip


def _forget_old():
    for path in cache_folder().glob("*.*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_DAYS * 86400:
                path.unlink()
