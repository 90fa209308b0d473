"""nnsight's client for one journalled job: it retries, and runs no code that the server sends."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import zstandard
from nnsight import CONFIG, TransformersModel
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.intervention.backends.remote import RemoteError as BackendError
from nnsight.intervention.serialization import reduce_block
from nnsight.schema.response import ResponseModel
from pydantic import ValidationError

from .errors import (
    JobFailed,
    JobInterrupted,
    JobOverdue,
    JobUnknown,
    NotReady,
    RequestRefused,
    ResultLost,
    ResultNotFinite,
    ResultRefused,
    ServerUnreachable,
    SubmissionUnconfirmed,
    job_failed,
    one_line,
    refused,
)
from .journal import Entry
from .plain import BrokenDownload, check_size, plain
from .travel import pickled

SILENCE = 300  # seconds, after a first failure, in which a server may refuse connections or send nonsense
QUIET = 60  # seconds without a byte after which a question is asked again
UNKNOWN = 600  # seconds in which a server may have no status of a job just submitted
UNKNOWN_BEFORE = 30  # the same of a job that an earlier process submitted
PAUSES = (0.5, 15)  # seconds between two questions: the first, and the longest
SUBMISSIONS = 3  # of one job that the server interrupts or loses
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_URL = re.compile(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/\S*)?")


class JobBackend(RemoteBackend):
    """nnsight's client for one job, not blocking: a session that is given it is serialised and sent, and ends.

    remote: True (NDIF_HOST, or https://api.ndif.us) or the server's URL. Raises NotReady if there is no key, no such
    host, or no name for the model; sending a session raises ServerUnreachable, RequestRefused (the server took nothing)
    or SubmissionUnconfirmed.
    """

    def __init__(self, llm: TransformersModel, remote: bool | str):
        host, key = host_and_key(remote)
        super().__init__(_model_key(llm, host), host=host, api_key=key, env=llm._remoteable_get_env(), blocking=False)
        self.compress, self.content = True, None
        self.http = httpx.Client(timeout=QUIET)  # one for all questions: to make one reads the certificates
        # nnsight rewrites its line in place, which in a file is a line for each question
        self.display.enabled = self.display.enabled and (self.display.notebook or sys.stdout.isatty())

    def _serialize(self, tracer):
        frame = tracer.info.frame
        block = reduce_block(tracer.node, frame.f_globals, dict(frame.f_locals))
        request, _ = pickled((tracer, block))  # as nnsight's RequestModel.serialize
        return zstandard.ZstdCompressor(level=19).compress(request)

    def _post(self, request, blob):
        response = self._patiently(partial(super()._post, request, blob), submitting=True)
        response.description = self._without_key(response.description)
        return response

    def wait(self, unknown: float) -> dict:
        """What the submitted job saved, once it has completed; `content` has the bytes and `meta` its cost.

        unknown: seconds in which the server may have no status of it. Raises JobFailed and JobInterrupted, JobUnknown,
        JobOverdue, ResultLost, ResultRefused, ServerUnreachable or RequestRefused.
        """
        start = known = time.monotonic()
        deadline = start + positive("DEPTH_LIB_DEADLINE", 12, float) * 3600
        for pause in _pauses():
            self.status = None
            result = self._patiently(self.poll)
            if result is not None:
                return result
            now = time.monotonic()
            if self.status is not None:
                known = now
            elif now - known > unknown:
                raise JobUnknown(
                    f"the server has had no status of the job for {now - known:.0f} s: it was lost, or has expired; "
                    "run again to submit it anew"
                )
            if now + pause > deadline:
                state = self.status.value if self.status else "unknown to the server"
                raise JobOverdue(
                    f"the job is {state} after {now - start:.0f} s; run again to go on waiting for it "
                    "(DEPTH_LIB_DEADLINE sets the hours)"
                )
            time.sleep(pause)

    def poll(self, tracer: object = None) -> dict | None:
        """The result, or None while there is none. As nnsight's, which waits ten minutes for a server that hangs."""
        answer = self.http.get(f"{self.host}/response/{self.job_id}", headers={"ndif-api-key": self.api_key})
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        response = ResponseModel.model_validate_json(self._without_key(answer.text))
        self.status = response.status
        try:
            return self.handle(response)
        except BackendError as error:
            raise job_failed(str(error)) from None

    def download_result(self, url: str) -> dict:
        """The result at this address, in `content` as it came. Raises ResultLost, ResultRefused or BrokenDownload."""
        content = bytearray()
        with self.http.stream("GET", url) as answer:
            if answer.is_client_error and answer.status_code != 429:
                raise ResultLost(
                    f"the job has completed, but the address of its result has expired (HTTP {answer.status_code}); "
                    "run again to compute it anew"
                )
            if answer.is_error:
                answer.read()
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                content += chunk
                check_size(len(content))
        self.content = bytes(content)
        return plain(self.content)

    def _patiently(self, ask, submitting=False):
        """ask(), repeated for SILENCE seconds while its errors may pass.

        submitting: ask() is repeated only if it is certain that the server took no job. Raises what `_failure` returns,
        outside of the handler: the error itself shows what the server sent, which may quote the key.
        """
        failing_since = None
        for n_failures, pause in enumerate(_pauses(), 1):
            try:
                return ask()
            except (BackendError, BrokenDownload, httpx.HTTPError, ValidationError) as error:
                failure = self._failure(error, submitting)
            now = time.monotonic()
            failing_since = failing_since or now
            if isinstance(failure, RequestRefused | SubmissionUnconfirmed) or now + pause > failing_since + SILENCE:
                raise failure
            if n_failures == 3:
                say(f"trying {self.host} again for {SILENCE / 60:.0f} minutes: {failure}")
            time.sleep(pause)

    def _failure(self, error, submitting):
        """The exception that names this error of a question to the server, should it not pass."""
        if isinstance(error, BrokenDownload):
            return ResultLost(
                f"the job has completed, but its result could not be fetched ({one_line(error)}); run again to compute "
                "it anew"
            )
        if isinstance(error, BackendError):
            error = error.__cause__  # which nnsight's _post does not tell in full
        code = text = None
        problem = one_line(error)
        if isinstance(error, httpx.HTTPStatusError):
            code, text = error.response.status_code, self._reason(error.response)
            problem = f"HTTP {code}: {one_line(text)}"
            if code < 500 and code != 429:
                return refused(code, text)
        # NDIF's own 503 has a detail; a proxy that answers 502 or 503 may have passed the request on
        not_taken = code == 429 or (code == 503 and '"detail"' in error.response.text)
        if submitting and not (not_taken or isinstance(error, _NOTHING_SENT)):
            return SubmissionUnconfirmed(
                f"the job was sent, but the server did not say that it took it ({problem}); it may be running, under "
                "an id nobody knows: run again to submit another one",
                text,
            )
        return ServerUnreachable(
            f"the server could not be reached ({problem}); check the host and the network, then run again", text
        )

    def _reason(self, response):
        """Why the server refuses, in its own words, whole."""
        try:
            reason = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            reason = response.text
        return self._without_key(str(reason).strip()) or "no reason given"

    def _without_key(self, text):
        """A server may quote the key it was sent; it must not come into a notebook's output that way."""
        return text.replace(self.api_key, "<the key>") if self.api_key else text


def complete(backend: JobBackend, entry: Entry, send: Callable[[], None], accept: Callable[[dict], None]) -> dict:
    """What a journalled job saved: kept on the disk, running on the server, or submitted now.

    send: runs a session with the backend. accept: checks a result before it is kept, and may raise ResultNotFinite. A
    job that the server interrupted or lost is submitted again, SUBMISSIONS times in all. The job's id is in the journal
    before the server is first asked about it. Raises RemoteError and its kinds.
    """
    if entry.state == "done":
        try:
            return plain(entry.content.read_bytes())
        except (OSError, BrokenDownload) as error:
            say(f"the result kept in {entry.content} is damaged ({error}); fetching it again")
            entry.note("submitted")
    for attempt in range(1, SUBMISSIONS + 1):
        unknown = UNKNOWN
        if entry.state == "submitted":
            unknown = UNKNOWN_BEFORE
            say(f"found job {entry.job_id}, submitted {entry.submitted}; waiting for it")
            backend.job_id = entry.job_id
        else:
            _submit(backend, entry, send)
        try:
            result = backend.wait(unknown)
            accept(result)
            entry.note("done", backend.content, problem=None, cost=backend.meta)
            return result
        except KeyboardInterrupt:
            say(f"interrupted; job {entry.job_id} goes on at {entry.host}, and the same call picks it up again")
            raise
        except (JobFailed, JobUnknown, ResultLost, ResultNotFinite, ResultRefused) as error:
            entry.note("ended", problem=error.server_text or str(error))
            if attempt == SUBMISSIONS or not isinstance(error, JobInterrupted | JobUnknown | ResultLost):
                raise
            say(f"{error}: submitting it again, attempt {attempt + 1} of {SUBMISSIONS}")
            time.sleep(PAUSES[1])


def _submit(backend, entry, send):
    if entry.state == "submitting":
        say(f"a submission of {entry.submitted} was never confirmed, and may be running; submitting again")
    entry.note("submitting", job_id=None, problem=None)
    backend.job_id = None
    try:
        send()
    except Exception as error:
        if not (backend.job_id or isinstance(error, SubmissionUnconfirmed)):  # the server took nothing
            entry.note("ended", problem=str(error))
        raise
    finally:
        if backend.job_id:  # whatever failed after that
            entry.note("submitted", job_id=backend.job_id)


def _pauses() -> Iterator[float]:
    """Growing pauses."""
    pause, longest = PAUSES
    while True:
        yield pause
        pause = min(pause * 1.5, longest)


def say(sentence: str) -> None:
    """Print a line to stderr, whether or not progress is shown."""
    print(sentence, file=sys.stderr, flush=True)


def positive(variable: str, default: float, kind: type = int) -> float:
    """The number above 0 in an environment variable, or the default. Raises NotReady if it is none."""
    text = os.environ.get(variable) or default
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not number > 0:  # NaN is not
        raise NotReady(f"{variable} is {text!r}; give a {'whole ' if kind is int else ''}number above 0")
    return number


def host_of(remote: bool | str) -> str:
    """The server that `remote` names."""
    # the environment as it is now: nnsight's CONFIG has it as it was when nnsight was imported
    return (os.environ.get("NDIF_HOST") or CONFIG.API.HOST) if remote is True else remote


def host_and_key(remote: bool | str) -> tuple[str, str]:
    """The server that `remote` names, and the key for it, which may be "" for a server of one's own.

    Raises NotReady if it is no host, or NDIF without a key.
    """
    host = host_of(remote)
    if not _URL.fullmatch(str(host)):
        raise NotReady(f'remote={host!r} is no host; use True, False, "local" or a URL (https://…)')
    if not (os.environ.get("NDIF_API_KEY") or CONFIG.API.APIKEY):
        CONFIG._from_env()  # a Colab secret may have been granted since
    key = (os.environ.get("NDIF_API_KEY") or CONFIG.API.APIKEY or "").strip()
    if not re.fullmatch("[!-~]*", key):
        raise NotReady(
            "NDIF_API_KEY has characters that no key has (a space, a line break …); copy it again", host=host
        )
    if not key and host == host_of(True):
        raise NotReady(
            "there is no NDIF key; get one at https://login.ndif.us and put it into the environment variable (or Colab "
            "secret) NDIF_API_KEY, never into the notebook",
            host=host,
        )
    return host.rstrip("/"), key


def _model_key(llm, host):
    """The key a server knows the model by."""
    try:
        return llm.to_model_key()
    except Exception as error:  # huggingface_hub and httpx raise a dozen kinds
        raise NotReady(
            f"the Hub does not know the model {llm.repo_id!r}, by whose name a server finds it ({one_line(error)}); "
            "load it by its Hub id (owner/name) with a network, or run with remote=False",
            host=host,
        ) from error
