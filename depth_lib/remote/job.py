"""One job: sent once, waited for, and its result read, whatever happens to this process meanwhile.

It is nnsight's client, with patience, with its state on the disk, and running no code that the server sends.
"""

import contextlib
import datetime
import json
import reprlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import zstandard
from nnsight import TransformersModel
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.intervention.backends.remote import RemoteError as BackendError
from nnsight.intervention.serialization import reduce_block
from nnsight.schema.response import ResponseModel, Status
from pydantic import ValidationError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
)

from ..files import hold, holder, move_aside, write_together
from .errors import (
    JobFailed,
    NotReady,
    RemoteError,
    ResultRefused,
    ServerUnreachable,
    forgotten,
    job_failed,
    one_line,
    refused,
)
from .plain import BrokenDownload, check_size, plain
from .server import host_and_key, model_key, positive, say
from .travel import pickled, settings_hash

SILENCE = 300  # seconds in which a server may refuse connections or send nonsense
QUIET = 60  # seconds without a byte after which a question is asked again
UNKNOWN = 600  # seconds, of a job without a status, after which it is lost
RESULT_STAYS = 3600  # seconds that the address of a result is valid
PAUSES = (0.5, 15)  # seconds between two questions: the first, and the longest
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_KEPT = "settings probe part host model_key state job_id submitted problem meta runs".split()


class Job(RemoteBackend):
    """One job, and its entry in the journal's folder; a session that is given it as its backend is sent, and ends.

    remote: True (NDIF_HOST, or https://api.ndif.us) or the server's URL. asked: what decides the result beside the
    probe's source, the server and the model. `settings` is the hash of all that, which names the entry; state: "new",
    "submitting" (sent, no answer yet), "submitted" (it has a job_id), "ended" (failed, refused or lost: `problem` says
    why) or "done" (its result is here). Raises NotReady if there is no key, no such host, or no name for the model.
    """

    def __init__(
        self,
        llm: TransformersModel,
        remote: bool | str,
        folder: Path,
        probe: Callable,
        asked: dict,
        part: str | None = None,
    ):
        host, key = host_and_key(remote)
        super().__init__(model_key(llm, host), host=host, api_key=key, env=llm._remoteable_get_env(), blocking=False)
        self.compress, self.content = True, None
        self.http = httpx.Client(timeout=QUIET)  # one for all questions: to make one reads the certificates
        # nnsight rewrites its line in place, which in a file is a line for each question
        self.display.enabled = self.display.enabled and (self.display.notebook or sys.stdout.isatty())
        self.deadline = positive("DEPTH_LIB_DEADLINE", 12, float) * 3600
        whole = {"host": host, "model": self.model_key, "env": self.env, "names": getattr(llm, "_rename", None)}
        self.settings = settings_hash(probe, args=asked, **whole)
        self.probe, self.part, self.state = probe.__qualname__, part, "new"
        self.submitted = self.problem = self.runs = None
        self.told = 0.0  # when the server last told a status
        self.file = folder / f"{self.settings}.json"
        self._result, self._next = self.file.with_suffix(".result"), self.file.with_suffix(".next")

    # The journal

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks and reads the entry; errors raised inside carry host and job_id."""
        try:
            with contextlib.ExitStack() as lock:
                with self._disk():
                    self.file.parent.mkdir(parents=True, exist_ok=True)
                    with hold(self._next):
                        lock.enter_context(hold(self.file.with_suffix(".lock")))
                    self._read()
                yield
        except RemoteError as error:
            error.host, error.job_id = self.host, self.job_id
            raise

    def keep(self, state: str, content: bytes | None = None, **facts: object) -> None:
        """Remember the new state, and the bytes of the result, on disk before this returns; NotReady if it cannot."""
        vars(self).update(facts, state=state)
        files = {} if content is None else {self._result: content}  # first, as the journal says that it is there
        files[self.file] = json.dumps({name: getattr(self, name) for name in _KEPT}, indent=1).encode()
        with self._disk():
            write_together(files)

    def forget(self) -> None:
        """Remove the entry, unless an equal call waits for it: that takes the result, and forgets it. The locks' files
        stay, as some systems remove no file that is open."""
        if not holder(self._next):
            self._result.unlink(missing_ok=True)
            self.file.unlink(missing_ok=True)

    def _read(self):
        try:
            vars(self).update(json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except (ValueError, TypeError) as error:
            kept = move_aside(self.file, "unreadable")
            warnings.warn(f"{self.file} cannot be read ({error}); kept as {kept.name}, submitting anew", stacklevel=2)

    @contextlib.contextmanager
    def _disk(self):
        try:
            yield
        except OSError as error:
            raise NotReady(
                f"the job's journal {self.file} cannot be written ({error.strerror or error}); free the disk, or set "
                "XDG_CACHE_HOME to a folder that can be written",
                retry="ask",
            ) from error

    # From the request to the result

    def result(self, send: Callable[[], None], accept: Callable[[dict], None]) -> dict:
        """What the job saved: kept on the disk, running on the server, or sent now.

        send: runs a session with this backend. accept: checks a result before it is kept, and may raise ResultRefused.
        A job that the server has forgotten is sent again, once; no other is. The job's id is in the journal before the
        server is first asked about it. Raises RemoteError and its kinds.
        """
        if self.state == "done":
            try:
                return plain(self._result.read_bytes())
            except (OSError, BrokenDownload) as error:
                say(f"the result kept in {self._result} is damaged ({error}); fetching it again")
                self.keep("submitted")
        return Retrying(
            retry=retry_if_exception(lambda error: getattr(error, "forgotten", False)),
            stop=stop_after_attempt(2),
            before_sleep=lambda tried: say(f"{tried.outcome.exception()}: sending it again, once"),
            reraise=True,
        )(self._result_once, send, accept)

    def _result_once(self, send, accept):
        try:
            if self.state == "submitted":
                say(f"found job {self.job_id}, submitted {self.submitted}; waiting for it")
            else:
                self._submit(send)
            result = self._wait()
            accept(result)
        except KeyboardInterrupt:
            if self.job_id:
                say(f"interrupted; job {self.job_id} goes on at {self.host}, and the same call picks it up again")
            raise
        except (JobFailed, ResultRefused) as error:
            if error.retry != "ask":
                self.keep("ended", problem=error.server_text or str(error))
            raise
        self.keep("done", self.content, problem=None)
        return result

    def _submit(self, send):
        if self.state == "submitting":
            say(f"a submission of {self.submitted} was never confirmed, and may be running; submitting again")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.keep("submitting", job_id=None, problem=None, submitted=now)
        try:
            send()
        except Exception as error:
            if not self.job_id and getattr(error, "retry", None) != "send":  # the server took nothing
                self.keep("ended", problem=str(error))
            raise
        finally:
            if self.job_id:  # whatever failed after that
                self.keep("submitted")

    def _wait(self):
        """What the submitted job saved, once it has completed."""

        def overdue(waited: RetryCallState):
            raise ServerUnreachable(
                f"the job is {self.status.value if self.status else 'unknown to the server'} after "
                f"{waited.seconds_since_start:.0f} s; run again to go on waiting for it (DEPTH_LIB_DEADLINE sets the "
                "hours)",
                retry="ask",
            )

        return Retrying(
            retry=retry_if_result(lambda result: result is None),
            wait=_pauses(),
            stop=stop_before_delay(self.deadline),
            retry_error_callback=overdue,
        )(self._patiently, self.poll)

    def _sent(self):
        return datetime.datetime.fromisoformat(self.submitted).timestamp()

    # What nnsight's client calls

    def _serialize(self, tracer):
        frame = tracer.info.frame
        block = reduce_block(tracer.node, frame.f_globals, dict(frame.f_locals))
        request, _ = pickled((tracer, block))  # as nnsight's RequestModel.serialize
        return zstandard.ZstdCompressor(level=19).compress(request)

    def _post(self, request, blob):
        response = self._patiently(partial(super()._post, request, blob), submitting=True)
        self.job_id, response.description = response.id, self._without_key(response.description)
        if response.status == Status.ERROR:
            raise job_failed(response.description)
        return response

    def poll(self, tracer: object = None) -> dict | None:
        """The result, or None while there is none. As nnsight's, which waits ten minutes for a server that hangs."""
        answer = self.http.get(f"{self.host}/response/{self.job_id}", headers={"ndif-api-key": self.api_key})
        if answer.status_code == 404:
            silent = time.time() - max(self._sent(), self.told)
            if silent > UNKNOWN:
                raise forgotten(f"the server has had no status of the job for {silent:.0f} s")
            return None
        response = ResponseModel.model_validate_json(answer.raise_for_status().text)
        self.status, self.told = response.status, time.time()
        response.description = self._without_key(response.description)
        try:
            return self.handle(response)
        except BackendError as error:
            raise job_failed(str(error)) from None

    def download_result(self, url: str) -> dict:
        """The result at this address. As nnsight's, which waits ten minutes too, and follows no redirect."""
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            sent = self._without_key(reprlib.repr(url))
            raise ResultRefused(
                f"the job has completed, but in place of its result's address the server sent {sent}; tell those who "
                "run it, or run again to send the job anew"
            )
        content = bytearray()
        with self.http.stream("GET", url, follow_redirects=True) as answer:
            if answer.is_client_error and answer.status_code != 429:
                what = f"the job has completed, but the address of its result is refused (HTTP {answer.status_code})"
                if time.time() - self._sent() > RESULT_STAYS:
                    raise forgotten(f"{what}, as it has expired")
                raise ServerUnreachable(f"{what}; run again to ask for it again", retry="ask")
            if answer.is_error:
                answer.read()
            for chunk in answer.raise_for_status().iter_bytes():
                content += chunk
                check_size(len(content))
        return self.finalize(bytes(content))

    def finalize(self, content: bytes) -> dict:
        """What the session saved, from the bytes of a result; nnsight's unpickles them."""
        self.content = content
        return plain(content)

    # Patience

    def _patiently(self, ask, submitting=False):
        """ask(), repeated for SILENCE seconds while its errors may pass; submitting: while it is certain that the
        server took no job."""

        def named():
            try:
                return ask()
            except (BackendError, BrokenDownload, httpx.HTTPError, ValidationError) as error:
                failure = self._failure(error, submitting)
            # outside of the handler: the error itself shows what the server sent, which may quote the key
            raise failure

        def told(tried: RetryCallState):
            if tried.attempt_number == 3:
                say(f"trying {self.host} again for {SILENCE / 60:.0f} minutes: {tried.outcome.exception()}")

        passes = retry_if_exception(lambda error: getattr(error, "retry", None) == "ask")
        stop = stop_before_delay(SILENCE)
        return Retrying(wait=_pauses(), retry=passes, stop=stop, before_sleep=told, reraise=True)(named)

    def _failure(self, error, submitting):
        """The exception that names this error of a question to the server, should it not pass."""
        if isinstance(error, BrokenDownload):
            return ResultRefused(
                f"the job has completed, but its result arrives damaged ({error}); run again to fetch it again",
                retry="ask",
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
            return ServerUnreachable(
                f"the job was sent, but the server did not say that it took it ({problem}); it may be running, under "
                "an id nobody knows: run again to submit another one",
                text,
                retry="send",
            )
        return ServerUnreachable(
            f"the server could not be reached ({problem}); check the host and the network, then run again",
            text,
            retry="ask",
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


def _pauses():
    first, longest = PAUSES
    return wait_exponential(multiplier=first, exp_base=1.5, max=longest)
