"""nnsight's own client for one journalled job: with patience, and without running any code of the server's."""

import io
import itertools
import math
import os
import pickle
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterator

import httpx
import torch
import zstandard
from nnsight import CONFIG, TransformersModel
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.intervention.backends.remote import RemoteError as BackendError
from nnsight.intervention.serialization import reduce_block
from pydantic import ValidationError

from .errors import (
    JobFailed,
    JobInterrupted,
    JobOverdue,
    JobUnknown,
    NotReady,
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
from .travel import pickled

SILENCE = 300  # seconds in which a server may refuse connections or answer nonsense
UNKNOWN = 600  # seconds in which a server may have no status of a job just submitted
UNKNOWN_BEFORE = 30  # the same of a job that an earlier process submitted
PAUSES = (0.5, 15)  # seconds between two questions: the first, and the longest
SUBMISSIONS = 3  # of one job that the server interrupts or loses
_FETCHES = 3  # of one result whose download breaks
_LARGEST = 16e6  # bytes of a request; without a captured tensor it has some thousands
_TRY_AGAIN = (429, 502, 503)
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class BrokenDownload(Exception):
    """The result arrived damaged, or in part; fetching it again may help."""


class JobBackend(RemoteBackend):
    """nnsight's client for one job, not blocking: a session that is given it is serialised and sent, and ends.

    remote: True (NDIF_HOST, or https://api.ndif.us) or the server's URL. smaller: what to do if it takes too long, for
    the message. Raises NotReady if there is no key, no such host, or no name for
    the model; sending a session raises ServerUnreachable, RequestRefused (the server took nothing) or
    SubmissionUnconfirmed.
    """

    def __init__(self, llm: TransformersModel, remote: bool | str, smaller: str):
        host, key = _host_and_key(remote)
        super().__init__(_model_key(llm, host), host=host, api_key=key, env=llm._remoteable_get_env(), blocking=False)
        self.compress, self.smaller, self.content = True, smaller, None
        # nnsight rewrites its line in place, which in a file is a line for each question
        self.display.enabled = self.display.enabled and (self.display.notebook or sys.stdout.isatty())

    def _serialize(self, tracer):
        frame = tracer.info.frame
        block = reduce_block(tracer.node, frame.f_globals, dict(frame.f_locals))
        request, _ = pickled((tracer, block))  # as nnsight's RequestModel.serialize
        blob = zstandard.ZstdCompressor(level=6).compress(request)
        if len(blob) > _LARGEST:
            raise NotReady(
                f"the request has {len(blob) / 1e6:.0f} MB: a tensor made here travels with every job; make it "
                "inside the probe, or send fewer prompts at once (DEPTH_LIB_PROMPTS_PER_JOB)"
            )
        return blob

    def _post(self, request, blob):
        post = super()._post

        def post_or_say_why():
            try:
                return post(request, blob)
            except BackendError as error:
                raise error.__cause__ from None

        return self._patiently(post_or_say_why, submitting=True)

    def wait(self, unknown: float) -> dict:
        """What the submitted job saved, once it has completed; `content` holds the bytes and `meta` its cost.

        unknown: seconds in which the server may have no status of it. Raises JobFailed and JobInterrupted, JobUnknown,
        JobOverdue, ResultLost, ResultRefused, ServerUnreachable or RequestRefused.
        """
        start = known = time.monotonic()
        deadline = start + _hours_to_wait() * 3600
        for pause in _pauses():
            self.status = None
            result = self.poll()
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
        """The result, or None while there is none."""
        try:
            return self._patiently(super().poll)
        except BackendError as error:
            raise job_failed(self._without_key(str(error)), self.smaller) from error

    def download_result(self, url: str | bytes | None) -> dict:
        """As nnsight's; a damaged result is fetched again, and while none comes the job is asked for again.

        Raises ResultLost.
        """
        problem = "no address and no data"
        for pause in itertools.islice(_pauses(), _FETCHES if url else 0):
            try:
                return super().download_result(url)
            except BrokenDownload as error:
                problem = one_line(error)
            except httpx.HTTPStatusError as error:
                code = _status_code(error)
                if code < 500 and code not in _TRY_AGAIN:
                    raise ResultLost(
                        f"the job has completed, but the address of its result has expired (HTTP {code}); run again to "
                        "compute it anew"
                    ) from error
                raise httpx.ReadError(f"HTTP {code} from the address of the result") from error
            time.sleep(pause)
        raise ResultLost(
            f"the job has completed, but its result could not be fetched ({problem}); run again to compute it anew"
        )

    def finalize(self, content: bytes) -> dict:
        """What the session saved, from the bytes of a result. Raises ResultRefused or BrokenDownload."""
        self.content = content
        return plain(content)

    def _patiently(self, ask, submitting=False):
        """ask(), repeated while the server cannot be reached; ServerUnreachable after SILENCE seconds.

        submitting: ask() is not repeated once the server may have taken what was sent. RequestRefused if the server
        refuses it.
        """
        start = time.monotonic()
        for n_failures, pause in enumerate(_pauses(), 1):
            try:
                return ask()
            except (httpx.HTTPError, ValidationError) as error:
                code, text = _status_code(error), self._server_text(error)
                problem = f"HTTP {code}: {one_line(text)}" if code else one_line(error)
                if code and code < 500 and code not in _TRY_AGAIN:
                    raise refused(code, text) from error
                if submitting and not (code in _TRY_AGAIN or isinstance(error, _NOTHING_SENT)):
                    raise SubmissionUnconfirmed(
                        f"the job was sent, but the server did not say that it took it ({problem}); it may be "
                        "running, under an id nobody knows: run again to submit another one",
                        text,
                    ) from error
                silent = time.monotonic() - start
                if silent + pause > SILENCE:
                    raise ServerUnreachable(
                        f"the server could not be reached for {silent:.0f} s ({problem}); check the host and the "
                        "network, then run again",
                        text,
                    ) from error
            if n_failures == 3:
                say(f"{self.host} cannot be reached ({problem}); trying again for {SILENCE / 60:.0f} minutes")
            time.sleep(pause)

    def _server_text(self, error):
        """The reason that the server gives, whole; None if it did not answer."""
        if not _status_code(error):
            return None
        try:
            reason = error.response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            reason = error.response.text
        return self._without_key(str(reason).strip()) or "no reason given"

    def _without_key(self, text):
        """A server may quote the key it was sent; it must not come into a notebook's output that way."""
        return text.replace(self.api_key, "<the key>") if self.api_key else text


def _status_code(error):
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


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
            entry.keep(backend.content, backend.meta)
            return result
        except KeyboardInterrupt:
            say(f"interrupted; job {entry.job_id} goes on at {entry.host}, and the same call picks it up again")
            raise
        except (JobFailed, JobUnknown, ResultLost, ResultNotFinite, ResultRefused) as error:
            entry.note("ended", problem=error.server_text or str(error))
            if attempt == SUBMISSIONS or not isinstance(error, JobInterrupted | JobUnknown | ResultLost):
                raise
            say(f"{error}: submitting it again, attempt {attempt + 1} of {SUBMISSIONS}")


def _submit(backend, entry, send):
    if entry.state == "submitting":
        say(f"a submission of {entry.submitted} was never confirmed, and may be running; submitting again")
    entry.note("submitting", job_id=None, problem=None)
    backend.job_id = None
    try:
        send()
    except SubmissionUnconfirmed:
        raise
    except Exception as error:
        if not backend.job_id:  # the server took nothing
            entry.note("ended", problem=str(error))
        raise
    finally:
        if backend.job_id:  # whatever failed after that
            entry.note("submitted", job_id=backend.job_id)


def plain(content: bytes) -> dict:
    """What a session saved, from the compressed bytes of torch.save, read without running any of it.

    A pickle runs code only through names that its reader looks up; here they are looked up in a list of tensors and
    plain containers. (`torch.load(weights_only=True)` takes pickle protocol 2 only, and servers write 4.) Raises
    ResultRefused, which names what else it asks for, or BrokenDownload.
    """
    try:
        archive = io.BytesIO(zstandard.ZstdDecompressor().decompress(content))
        if any(name.endswith("/constants.pkl") for name in zipfile.ZipFile(archive).namelist()):
            raise ResultRefused("the result is a TorchScript archive, which could run code here; it was not loaded")
        archive.seek(0)
        return torch.load(archive, map_location="cpu", weights_only=False, pickle_module=_PlainPickle)["result"]
    except (ResultRefused, MemoryError):
        raise
    except Exception as error:  # a cut download breaks in zstandard, zipfile, pickle or torch
        raise BrokenDownload(one_line(error)) from error


_PLAIN_NAMES = {
    "collections": {"OrderedDict"},
    "torch": {"Size", "device"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.storage": {"UntypedStorage"},
}


class _PlainPickle:
    """What torch.load takes as its pickle module."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            if name in _PLAIN_NAMES.get(module, ()):
                return getattr(sys.modules[module], name)
            if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype | type(torch.FloatStorage)):
                return getattr(torch, name)
            raise ResultRefused(
                f"the result asks to load {module}.{name}, which is neither a tensor nor a plain container and may run "
                "code here; it was not loaded: ask those who run the server what they changed"
            )


def _pauses() -> Iterator[float]:
    """Growing pauses."""
    pause, longest = PAUSES
    while True:
        yield pause
        pause = min(pause * 1.5, longest)


def say(sentence: str) -> None:
    """Print a line to stderr, whether or not progress is shown."""
    print(sentence, file=sys.stderr, flush=True)


def _hours_to_wait():
    """For one job, queue included."""
    hours = os.environ.get("DEPTH_LIB_DEADLINE") or 12
    try:
        if not math.isnan(float(hours)):
            return float(hours)
    except ValueError:
        pass
    raise NotReady(f"DEPTH_LIB_DEADLINE is {hours!r}; give the hours to wait for a job as a number")


def host_of(remote: bool | str) -> str:
    """The server that `remote` names."""
    # the environment as it is now: nnsight's CONFIG has it as it was when nnsight was imported
    return (os.environ.get("NDIF_HOST") or CONFIG.API.HOST) if remote is True else remote


def _host_and_key(remote):
    host = host_of(remote)
    if not (isinstance(host, str) and re.match(r"https?://[^/\s]+", host) and _is_url(host)):
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


def _is_url(text):
    try:
        return bool(httpx.URL(text).host)
    except (httpx.InvalidURL, UnicodeError):
        return False


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
