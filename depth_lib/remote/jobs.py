"""One job from request to result: found on the disk, found on the server, or submitted."""

import dataclasses
import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass

from nnsight.schema.response import Status

from .errors import JobFailed, JobUnknown, NotReady, RequestRefused, ResultLost, ServerUnreachable
from .preflight import preflight
from .waiting import completed, failure, patiently

_LARGEST = 16e6  # bytes of a payload; without a captured tensor it has some thousands
_OLD = 30  # seconds of "no such job" that tell that an old job is lost, where a new one may only not be there yet


@dataclass
class Request:
    """What a job needs to be submitted: the model's key and environment, and a function that makes the payload."""

    model_key: str
    env: dict
    payload: Callable[[], bytes]


def obtain(request, entry, server, patience, line):
    """The result of a journalled job, whatever it takes: kept on the disk, running on the server, or new.

    The journal has the job's id before the first question about it, and keeps it whatever happens here.
    Raises RemoteError and its kinds.
    """
    for attempts_left in (1, 0):
        with entry.alone(line):  # two processes that ask for the same submit one job, and both wait for it
            result = entry.result()
            if result is not None:
                return result
            found = entry.state == "submitted"
            if found:
                line.show(f"found job {entry.job_id}, submitted {entry.submitted}, waiting for it")
            else:
                _submit(request, entry, server, patience, line)
            job_id = entry.job_id
        try:
            result = _result(job_id, server, _patience_with(entry, patience, found), line)
        except KeyboardInterrupt:
            line.remains(
                f"interrupted; job {job_id} goes on at {server.host}, and the same call picks it up again "
                f"(journal: {entry.path})"
            )
            raise
        except JobFailed as error:
            entry.ended(job_id, "failed", error.server_text)
            raise
        except (JobUnknown, ResultLost) as error:
            entry.ended(job_id, "lost", str(error))
            if not attempts_left or (isinstance(error, JobUnknown) and not found):
                raise
            line.show(f"{error}; submitting it again")
        else:
            entry.keep(result)
            return result


def _submit(request, entry, server, patience, line):
    if entry.state == "submitting":
        line.remains(f"a submission of {entry.submitted} was never confirmed, and may be running; submitting again")
    preflight(server, request.model_key, patience, line)
    blob = request.payload()
    if len(blob) > _LARGEST:
        raise NotReady(
            f"the request has {len(blob) / 1e6:.0f} MB: a tensor made here travels with every job; make it inside the "
            "probe, or send fewer prompts at once (DEPTH_LIB_PROMPTS_PER_JOB)",
            server.host,
        )
    line.show(f"submitting {len(blob) / 1000:.0f} kB to {server.host}")
    entry.note("submitting", job_id=None, said=None)
    try:
        status = patiently(lambda: server.submit(request.model_key, request.env, blob), patience, line, server.host)
    except (ServerUnreachable, RequestRefused) as error:
        entry.note("refused", said=str(error))  # nothing was taken
        raise
    entry.note("submitted", job_id=status.id)
    if status.status == Status.ERROR:
        entry.note("failed", said=status.description)
        raise failure(status, server.host)


def _result(job_id, server, patience, line):
    """The result of a submitted job, waited for. An address that does not work is asked for again, twice."""
    pauses = patience.pauses()
    for attempt in (1, 2, 3):
        status = completed(server, job_id, patience, line)
        try:
            return server.fetch(status.data)
        except ResultLost as error:
            line.show(f"the result could not be fetched ({error}), asking for it again")
            if attempt == 3:
                raise ResultLost(
                    f"the job has completed, but its result could not be fetched ({error}); run again to compute it "
                    "anew",
                    server.host,
                    job_id,
                ) from error
            time.sleep(next(pauses))


def _patience_with(entry, patience, found):
    """Less patience with a job that the server should have heard of long ago."""
    if found:
        submitted = datetime.datetime.fromisoformat(entry.submitted)
        age = (datetime.datetime.now(datetime.UTC) - submitted).total_seconds()
        if age > patience.unknown:
            return dataclasses.replace(patience, unknown=min(_OLD, patience.unknown))
    return patience
