"""One job from request to result: found on the disk, found on the server, or submitted."""

import dataclasses
import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass

from .errors import (
    JobFailed,
    JobUnknown,
    NotReady,
    RequestRefused,
    ResultLost,
    ResultNotFinite,
    ResultRefused,
    ServerUnreachable,
)
from .journal import Entry
from .preflight import preflight
from .reading import TRUST, NotPlain, load
from .server import Server, reason
from .status_line import StatusLine
from .waiting import Patience, completed, failure, patiently

_LARGEST = 16e6  # bytes of a payload; without a captured tensor it has some thousands
_OLD = 30  # seconds of "no such job" that tell that an old job is lost, where a new one may only not be there yet


@dataclass
class Request:
    """What it takes to submit a job and to wait for it.

    model_key, env: of the model; payload: a function that makes what is sent; accept: a function that looks at a
    result before it is kept, and raises ResultNotFinite.
    """

    model_key: str
    env: dict
    payload: Callable[[], bytes]
    accept: Callable[[dict], None]
    server: Server
    patience: Patience
    line: StatusLine


def complete(request: Request, entry: Entry) -> dict:
    """What a journalled job saved, whatever it takes: kept on the disk, running on the server, or new.

    The journal has the job's id before the first question about it, and keeps it whatever happens here.
    Raises RemoteError and its kinds.
    """
    try:
        if (result := entry.result()) is not None:
            return result
    except NotPlain as error:
        raise _refused(entry, error) from error
    for attempts_left in (1, 0):
        found = entry.state == "submitted"
        if found:
            request.line.show(f"found job {entry.job_id}, submitted {entry.submitted}, waiting for it")
        else:
            _submit(request, entry)
        patience = _patience_with(entry, request.patience, found)
        try:
            return _arrived(dataclasses.replace(request, patience=patience), entry)
        except KeyboardInterrupt:
            request.line.remains(
                f"interrupted; job {entry.job_id} goes on at {request.server.host}, and the same call picks it up "
                f"again (journal: {entry.path})"
            )
            raise
        except (JobFailed, ResultNotFinite) as error:
            entry.note("failed", said=error.server_text or str(error))
            raise
        except (JobUnknown, ResultLost) as error:
            entry.note("lost", said=str(error))
            if not attempts_left or (isinstance(error, JobUnknown) and not found):
                raise
            request.line.show(f"{error}; submitting it again")


def _submit(request, entry):
    server, patience, line = request.server, request.patience, request.line
    if entry.state == "submitting":
        line.remains(f"a submission of {entry.submitted} was never confirmed, and may be running; submitting again")
    versions = preflight(server, request.model_key, patience, line)
    blob = request.payload()
    if len(blob) > _LARGEST:
        raise NotReady(
            f"the request has {len(blob) / 1e6:.0f} MB: a tensor made here travels with every job; make it inside the "
            "probe, or send fewer prompts at once (DEPTH_LIB_PROMPTS_PER_JOB)",
            server.host,
        )
    line.show(f"submitting {len(blob) / 1000:.0f} kB to {server.host}")
    entry.note("submitting", job_id=None, said=None, versions=versions)
    try:
        status = patiently(lambda: server.submit(request.model_key, request.env, blob), patience, line, server.host)
    except (ServerUnreachable, RequestRefused) as error:
        entry.note("refused", said=str(error))  # nothing was taken
        raise
    entry.note("submitted", job_id=status.id)
    if status.state == "ERROR":
        entry.note("failed", said=status.description)
        raise failure(status, server.host)


def _arrived(request, entry):
    """What a submitted job saved, waited for and kept. An address that does not work is asked for again, twice."""
    server, pauses = request.server, request.patience.pauses()
    for attempt in (1, 2, 3):
        status = completed(server, entry.job_id, request.patience, request.line)
        try:
            content = server.fetch(status.data)
            result = _saved(content)
            break
        except NotPlain as error:
            entry.keep(content, "unread", said=str(error), cost=status.cost)
            raise _refused(entry, error) from error
        except ResultLost as error:
            request.line.show(f"the result could not be fetched ({error}), asking for it again")
            if attempt == 3:
                raise ResultLost(
                    f"the job has completed, but its result could not be fetched ({error}); run again to compute it "
                    "anew",
                    server.host,
                    entry.job_id,
                ) from error
            time.sleep(next(pauses))
    request.accept(result)
    entry.keep(content, said=None, cost=status.cost)
    return result


def _saved(content):
    """What a session saved, before anybody keeps it; ResultLost if it is damaged."""
    try:
        result = load(content)["result"]
        if not (isinstance(result, dict) and result):
            raise ValueError(f"no probe returns this: {type(result).__name__}")
        return result
    except (NotPlain, MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 (a cut download breaks in zstandard, zipfile, pickle or torch)
        raise ResultLost(reason(error)) from error


def _refused(entry, error):
    return ResultRefused(
        f"the result asks to load {error}, which is neither a tensor nor a plain container and may run code here; it "
        f"is kept unread as {entry.content}: set {TRUST}=1 if you trust the server, and run again to read it",
        entry.host,
        entry.job_id,
    )


def _patience_with(entry, patience, found):
    """Less patience with a job that the server should have heard of long ago."""
    if found:
        submitted = datetime.datetime.fromisoformat(entry.submitted)
        age = (datetime.datetime.now(datetime.UTC) - submitted).total_seconds()
        if age > patience.unknown:
            return dataclasses.replace(patience, unknown=min(_OLD, patience.unknown))
    return patience
