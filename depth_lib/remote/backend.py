"""nnsight's own client for one journalled job: with patience, and without running any code of the server's."""

import io
import os
import pickle
import random
import re
import sys
import time
import types
import zipfile
from collections.abc import Callable, Iterator

import httpx
import torch
import zstandard
from nnsight import CONFIG, TransformersModel
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.intervention.backends.remote import RemoteError as BackendError
from nnsight.schema.request import RequestModel
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

SILENCE = 300  # seconds in which a server may refuse connections or answer nonsense
UNKNOWN = 600  # seconds in which a server may have no status of a job just submitted
UNKNOWN_BEFORE = 30  # the same of a job that an earlier process submitted
PAUSES = (0.5, 15)  # seconds between two questions: the first, and the longest
SUBMISSIONS = 3  # of one job that the server interrupts or loses
_FETCHES = 3  # of one result whose download breaks
_DEADLINE_HOURS = 12
_LARGEST = 16e6  # bytes of a request; without a captured tensor it has some thousands
_SENT_NOTHING = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TRY_AGAIN = (429, 502, 503)


class Unsteady(Exception):
    """The server did not answer properly; it is safe to ask again."""


class BrokenDownload(Exception):
    """The result arrived damaged, or in part; fetching it again may help."""


class JobBackend(RemoteBackend):
    """nnsight's client for one job. remote: True (NDIF_HOST, or https://api.ndif.us) or the server's URL.

    smaller: the variable that makes such a job smaller, for the message when it takes too long. A session that is given
    this backend is serialised, and nothing is sent before `submit_job`. NotReady if there is no key, no such host, or
    no name for the model.
    """

    def __init__(self, llm: TransformersModel, remote: bool | str, smaller: str = "DEPTH_LIB_PROMPTS_PER_JOB"):
        host, key = _host_and_key(remote)
        env = llm._remoteable_get_env()
        super().__init__(_model_key(llm, host), host=host, api_key=key, env=env, blocking=False)
        self.api_key, self.compress, self.smaller = key, True, smaller
        # nnsight rewrites its line in place, which in a file is a line for each question
        self.display.enabled = self.display.enabled and (self.display.notebook or sys.stdout.isatty())
        self.blob = self.content = None

    def __call__(self, tracer: object) -> None:
        """Serialise what a session captured."""
        raw = RequestModel.serialize(tracer)
        self.blob = zstandard.ZstdCompressor(level=19 if len(raw) < 1e6 else 3).compress(raw)
        if len(self.blob) > _LARGEST:
            raise NotReady(
                f"the request has {len(self.blob) / 1e6:.0f} MB: a tensor made here travels with every job; make it "
                "inside the probe, or send fewer prompts at once (DEPTH_LIB_PROMPTS_PER_JOB)",
                self.host,
            )

    def _serialize(self, tracer):
        return self.blob

    def submit_job(self) -> None:
        """Send the serialised session; sets `job_id`.

        Raises ServerUnreachable, RequestRefused (nothing was taken) or SubmissionUnconfirmed.
        """
        self.job_id = None
        self._patiently(lambda: self.submit(None))

    def _post(self, request, blob) -> ResponseModel:
        try:
            return super()._post(request, blob)
        except BackendError as error:
            cause = error.__cause__
            if isinstance(cause, httpx.HTTPStatusError):
                self._check_status(cause)
            if isinstance(cause, _SENT_NOTHING):
                raise Unsteady(one_line(cause)) from error
            problem, text = one_line(cause), self._without_key(str(error))
        except ValidationError as error:
            problem, text = f"no status, but {one_line(error)}", None
        raise SubmissionUnconfirmed(
            f"the job was sent, but the server did not say that it took it ({problem}); it may be running, under an id "
            "nobody knows: run again to submit another one",
            self.host,
            server_text=text,
        )

    def wait(self, unknown: float) -> dict:
        """What the submitted job saved, once it has completed; `content` holds the bytes and `meta` its cost.

        unknown: seconds in which the server may have no status of it. Raises JobFailed and JobInterrupted, JobUnknown,
        JobOverdue, ResultLost, ResultRefused, ServerUnreachable or RequestRefused.
        """
        start = known = time.monotonic()
        deadline, broken, seen = _deadline(), 0, None
        waits = pauses()
        while True:
            self.status = None
            try:
                result = self._patiently(self._poll)
                if result is not None:
                    return result
            except BrokenDownload as error:
                broken += 1
                if broken == _FETCHES:
                    raise ResultLost(
                        f"the job has completed, but its result could not be fetched ({error}); run again to compute "
                        "it anew",
                        self.host,
                        self.job_id,
                    ) from error
            now = time.monotonic()
            if self.status is not None:
                known = now
            elif now - known > unknown:
                raise JobUnknown(
                    f"the server has had no status of the job for {now - known:.0f} s: it was lost, or has expired; "
                    "run again to submit it anew",
                    self.host,
                    self.job_id,
                )
            if self.status != seen:
                seen, waits = self.status, pauses()
            pause = next(waits)
            if now - start + pause > deadline:
                state = seen.value if seen else "unknown to the server"
                raise JobOverdue(
                    f"the job is {state} after {now - start:.0f} s; run again to go on waiting for it "
                    "(DEPTH_LIB_DEADLINE sets the hours)",
                    self.host,
                    self.job_id,
                )
            time.sleep(pause)

    def _poll(self):
        """The result, or None while there is none."""
        try:
            return self.poll()
        except BackendError as error:
            raise job_failed(self._without_key(str(error)), self.smaller, self.host, self.job_id) from error
        except httpx.HTTPStatusError as error:
            self._check_status(error)
            raise Unsteady(f"HTTP {error.response.status_code}") from error
        except (httpx.HTTPError, ValidationError) as error:
            raise Unsteady(one_line(error)) from error

    def download_result(self, url: str | bytes | None) -> dict:
        """As nnsight's; ResultLost if the address has expired, BrokenDownload if another attempt may help."""
        try:
            result = super().download_result(url)
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            if code in (403, 404, 410):
                raise ResultLost(
                    f"the job has completed, but the address of its result has expired (HTTP {code}); run again to "
                    "compute it anew",
                    self.host,
                    self.job_id,
                ) from error
            raise BrokenDownload(f"HTTP {code}") from error
        except httpx.HTTPError as error:
            raise BrokenDownload(one_line(error)) from error
        if result is None:
            raise BrokenDownload("no address and no data")
        return result

    def finalize(self, content: bytes) -> dict:
        """What the session saved, from the bytes of a result. Raises ResultRefused or BrokenDownload."""
        try:
            self.content = content
            return plain(content)
        except ResultRefused as error:
            raise ResultRefused(str(error), self.host, self.job_id) from error

    def _check_status(self, error):
        """Raise Unsteady for a status that may pass and RequestRefused for one that will not; else return."""
        code = error.response.status_code
        if code in _TRY_AGAIN:
            raise Unsteady(f"HTTP {code}: {self._detail(error.response)}") from error
        if code < 500:
            raise refused(code, self._detail(error.response), self.host) from error

    def _detail(self, response):
        try:
            body = response.json()
            text = str(body.get("detail", body) if isinstance(body, dict) else body)
        except ValueError:
            text = response.text
        return self._without_key(text.strip()) or "no reason given"

    def _without_key(self, text):
        """A server may quote the key it was sent; it must not come into a notebook's output that way."""
        return text.replace(self.api_key, "<the key>") if self.api_key else text

    def _patiently(self, ask):
        """ask(), repeated while it raises Unsteady; ServerUnreachable after SILENCE seconds."""
        start = time.monotonic()
        for n_failures, pause in enumerate(pauses(), 1):
            try:
                return ask()
            except Unsteady as error:
                silent = time.monotonic() - start
                if silent + pause > SILENCE:
                    raise ServerUnreachable(
                        f"the server could not be reached for {silent:.0f} s ({error}); check the host and the "
                        "network, then run again",
                        self.host,
                        self.job_id,
                        server_text=str(error),
                    ) from error
                if n_failures == 3:
                    say(f"{self.host} cannot be reached ({error}); trying again for {SILENCE / 60:.0f} minutes")
            time.sleep(pause)
        raise AssertionError("pauses never end")


def complete(backend: JobBackend, entry: Entry, serialise: Callable[[], None], accept: Callable[[dict], None]) -> dict:
    """What a journalled job saved: kept on the disk, running on the server, or submitted now.

    serialise: makes backend.blob. accept: checks a result before it is kept, and may raise ResultNotFinite. A job that
    the server interrupted or lost is submitted again, SUBMISSIONS times in all. The job's id is in the journal before
    the server is first asked about it. Raises RemoteError and its kinds.
    """
    kept = entry.kept()
    if kept is not None:
        try:
            return plain(kept)
        except BrokenDownload as error:
            say(f"the result kept in {entry.content} is damaged ({error}); fetching it again")
            entry.note("submitted" if entry.job_id else "new")
    for attempt in range(1, SUBMISSIONS + 1):
        unknown = UNKNOWN
        if entry.state == "submitted":
            unknown = min(UNKNOWN, UNKNOWN_BEFORE)
            say(f"found job {entry.job_id}, submitted {entry.submitted}; waiting for it")
            backend.job_id = entry.job_id
        else:
            _submit(backend, entry, serialise)
        try:
            result = backend.wait(unknown)
            accept(result)
            entry.keep(backend.content, backend.meta)
            return result
        except KeyboardInterrupt:
            say(f"interrupted; job {entry.job_id} goes on at {entry.host}, and the same call picks it up again")
            raise
        except (JobInterrupted, JobUnknown, ResultLost) as error:
            entry.note("ended", problem=str(error))
            if attempt == SUBMISSIONS:
                raise
            say(f"{error}: submitting it again, attempt {attempt + 1} of {SUBMISSIONS}")
        except (JobFailed, ResultNotFinite, ResultRefused) as error:
            entry.note("ended", problem=error.server_text or str(error))
            raise


def _submit(backend, entry, serialise):
    if entry.state == "submitting":
        say(f"a submission of {entry.submitted} was never confirmed, and may be running; submitting again")
    if backend.blob is None:
        serialise()
    entry.note("submitting", job_id=None, problem=None)
    try:
        backend.submit_job()
    except (ServerUnreachable, RequestRefused) as error:
        entry.note("ended", problem=str(error))  # nothing was taken
        raise
    entry.note("submitted", job_id=backend.job_id)


def plain(content: bytes) -> dict:
    """What a session saved, from the compressed bytes of torch.save, read without running any of it.

    A pickle runs code only through names that its reader looks up; here they are looked up in a list of tensors and
    plain containers. (`torch.load(weights_only=True)` takes pickle protocol 2 only, and servers write 4.) Raises
    ResultRefused, which names what else it asks for, or BrokenDownload.
    """
    try:
        archive = zstandard.ZstdDecompressor().decompress(content)
        if any(name.endswith("/constants.pkl") for name in zipfile.ZipFile(io.BytesIO(archive)).namelist()):
            raise ResultRefused("the result is a TorchScript archive, which could run code here; it was not loaded")
        saved = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=False, pickle_module=_PLAIN_PICKLE)
        return saved["result"]
    except (ResultRefused, MemoryError):
        raise
    except Exception as error:  # a cut download breaks in zstandard, zipfile, pickle or torch
        raise BrokenDownload(one_line(error)) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if name in _PLAIN_NAMES.get(module, ()):
            return getattr(sys.modules[module], name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype | type(torch.FloatStorage)):
            return getattr(torch, name)
        raise ResultRefused(
            f"the result asks to load {module}.{name}, which is neither a tensor nor a plain container and may run "
            "code here; it was not loaded: ask those who run the server what they changed"
        )


_PLAIN_NAMES = {
    "collections": {"OrderedDict"},
    "torch": {"Size", "device"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.storage": {"UntypedStorage"},
}
_PLAIN_PICKLE = types.ModuleType("plain_pickle")  # torch.load takes its unpickler from a module
_PLAIN_PICKLE.Unpickler = _Unpickler
_PLAIN_PICKLE.load = lambda file, **options: _Unpickler(file, **options).load()


def pauses() -> Iterator[float]:
    """Growing pauses, each up to a quarter shorter or longer, so that clients do not all ask at the same moments."""
    pause, longest = PAUSES
    while True:
        yield pause * random.uniform(0.75, 1.25)
        pause = min(pause * 1.5, longest)


def say(sentence: str) -> None:
    """Print a line to stderr, whether or not progress is shown."""
    print(sentence, file=sys.stderr, flush=True)


def _deadline():
    """Seconds to wait for one job, queue included."""
    hours = os.environ.get("DEPTH_LIB_DEADLINE") or _DEADLINE_HOURS
    try:
        return float(hours) * 3600
    except ValueError:
        raise NotReady(f"DEPTH_LIB_DEADLINE is {hours!r}; give the hours to wait for a job as a number") from None


def _host_and_key(remote):
    configured = os.environ.get("NDIF_HOST") or CONFIG.API.HOST
    host = configured if remote is True else remote
    if not (isinstance(host, str) and re.match(r"https?://[^/\s]+", host)):
        raise NotReady(f'remote={host!r} is no host; use True, False, "local" or a URL (https://…)')
    if not (os.environ.get("NDIF_API_KEY") or CONFIG.API.APIKEY):
        CONFIG._from_env()  # a Colab secret may have been granted after nnsight was imported
    key = (os.environ.get("NDIF_API_KEY") or CONFIG.API.APIKEY or "").strip()
    if not re.fullmatch("[!-~]*", key):
        raise NotReady("NDIF_API_KEY has characters that no key has (a space, a line break …); copy it again", host)
    if not key and host == configured:
        raise NotReady(
            "there is no NDIF key; get one at https://login.ndif.us and put it into the environment variable (or Colab "
            "secret) NDIF_API_KEY, never into the notebook",
            host,
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
            host,
        ) from error
