"""One job: sent once, awaited, and its result read, whatever happens to this process.

It is nnsight's client with retries and state on disk, and it runs no code from the server.
"""

import contextlib
import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import httpx
import zstandard
from huggingface_hub import constants
from huggingface_hub.errors import RepositoryNotFoundError
from nnsight import TransformersModel
from nnsight.intervention.backends.remote import RemoteBackend
from nnsight.intervention.backends.remote import RemoteError as BackendError
from nnsight.intervention.serialization import reduce_block
from nnsight.schema.response import ResponseModel
from pydantic import BaseModel, Field, ValidationError, model_validator
from tenacity import Retrying, retry_if_exception, retry_if_result, stop_before_delay, wait_exponential

from ..files import hold, holder, move_aside, write_together
from .errors import (
    AGAIN,
    Forgotten,
    JobFailed,
    NotReady,
    RemoteError,
    ResultRefused,
    ServerUnreachable,
    job_failed,
    one_line,
)
from .plain import plain
from .server import from_environment, host_and_key, say
from .travel import pickled, settings_hash

SILENCE = 300  # seconds during which a server may refuse connections or send nonsense
QUIET = 60  # seconds without a byte until a request is repeated
UNKNOWN = 600  # seconds without a status until a job is lost
RESULT_STAYS = 3600  # seconds for which the address of a result is valid
PAUSES = wait_exponential(multiplier=0.5, exp_base=1.5, max=15)  # seconds between two requests
JOB_ID = "[A-Za-z0-9_-]{1,200}"
_KEPT = "probe host job_id submitted checks meta".split()


class _Entry(BaseModel):
    """The fields of a journal entry that are read; never the host, to which the key would be sent."""

    state: Literal["submitting", "submitted", "done"]
    job_id: str | None = Field(pattern=f"^{JOB_ID}$")
    submitted: float = Field(allow_inf_nan=False)
    checks: bool = False
    meta: dict | None = None

    @model_validator(mode="after")
    def _has_an_id(self):
        if self.state != "submitting" and not self.job_id:
            raise ValueError("a submitted job has an id")
        return self


def _key_of(llm: TransformersModel) -> str:
    """The name by which a server knows the model. Its id is asked of the Hub."""
    name = llm.config._name_or_path
    here = f"{name} is on this machine; load a model on the server: dl.load_model(hub_id, remote=True)"
    if llm.dispatched:
        raise NotReady(here)
    try:
        return llm.to_model_key()
    except Exception as error:  # noqa: BLE001 (the Hub's client raises its own errors, and those of two others)
        problem, unknown = one_line(error), isinstance(error, RepositoryNotFoundError | ValueError)
    if (Path(name) / "config.json").is_file():
        raise NotReady(here)
    if unknown:
        raise NotReady(f"{name} is not on the Hub ({constants.ENDPOINT}), or private; use a Hub id, or log in")
    raise ServerUnreachable(
        f"the Hub ({constants.ENDPOINT}) cannot be reached to find {name} ({problem}); check the network and run again",
        retry="send",
    )


class Job(RemoteBackend):
    """One job and its journal entry. As the backend of a session, it sends the session.

    remote: True (NDIF_HOST, or https://api.ndif.us) or a URL. asked: all that decides the result; its hash names
    the entry. state: "new", "submitting" (no answer yet), "submitted" (with a job_id) or "done". Raises NotReady
    without a key or host.
    """

    def __init__(self, llm: TransformersModel, remote: bool | str, folder: Path, probe: Callable, asked: dict):
        host, key = host_and_key(remote)
        super().__init__(_key_of(llm), host=host, api_key=key, env=llm._remoteable_get_env(), blocking=False)
        self.compress = True
        self.http = httpx.Client(timeout=QUIET)  # one for all requests: creating one reads the certificates
        self.deadline = 3600 * from_environment("DEPTH_LIB_DEADLINE", float, 12)
        settings = settings_hash(probe, args=asked, host=host, model=self.model_key, env=self.env)
        self.probe, self.state = probe.__qualname__.removeprefix("measure_"), "new"
        self.submitted = self.told = 0.0  # when it was sent, and when the server last gave a status
        self.checks = False  # whether it also checks the server's model
        self.runs = None  # the model that computed the result, in words
        self.file = folder / f"{settings}.json"
        self._result, self._next = self.file.with_suffix(".result"), self.file.with_suffix(".next")

    # The journal

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks and reads the entry; errors raised inside carry host and job_id."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as lock:
            with hold(self._next):
                lock.enter_context(hold(self.file.with_suffix(".lock")))
            try:
                vars(self).update(_Entry.model_validate_json(self.file.read_bytes()))
            except FileNotFoundError:
                pass
            except ValidationError:
                say(f"{move_aside(self.file, 'unreadable')} cannot be read; submitting a new job")
            try:
                yield
            except RemoteError as error:
                error.host, error.job_id = self.host, self.job_id
                error.args = (f"{error} [{self.host}{f', job {self.job_id}' if self.job_id else ''}]",)
                raise

    def keep(self, state: str) -> None:
        """Write the new state to disk, after the bytes of a finished result."""
        files = {self._result: self.content} if state == "done" else {}
        entry = {"state": state} | {name: getattr(self, name) for name in _KEPT}
        write_together(files | {self.file: json.dumps(entry, indent=1).encode()})
        self.state = state

    def drop(self) -> None:
        """Remove the entry, so the next equal call sends a new job."""
        self.state = "new"
        self.file.unlink(missing_ok=True)
        self._result.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the entry, unless an equal call is waiting for it. Lock files stay: some systems cannot remove open
        files.
        """
        if not holder(self._next):
            self.drop()

    # From request to result

    def result(self, send: Callable, accept: Callable) -> dict:
        """The job's saved values: from disk, from the running job, or from a new one.

        send: runs a session with this backend. accept: checks a result, and may raise ResultRefused. A job that the
        server has lost is sent again once. Raises RemoteError.
        """
        try:
            return self._result_once(send, accept)
        except Forgotten as error:
            say(f"{error}: sending it again, once")
            return self._result_once(send, accept)

    def _result_once(self, send, accept):
        result = None
        try:
            if self.state == "done":
                try:
                    result = plain(self._result.read_bytes())
                except (OSError, ResultRefused) as error:
                    say(f"{self._result} is damaged ({error}); downloading it again")
                    self.state = "submitted"
            elif self.state == "submitted":
                say(f"found job {self.job_id}, submitted {time.ctime(self.submitted)}; waiting for it")
            else:
                if self.state == "submitting":
                    say("an earlier submission was never confirmed, and may be running; submitting again")
                self.job_id = None
                self.keep("submitting")
                send()
            if result is None:
                result = Retrying(
                    retry=retry_if_result(lambda result: result is None),
                    wait=PAUSES,
                    stop=stop_before_delay(self.deadline),
                    retry_error_callback=lambda waited: None,
                )(self._patiently, self.poll)
                if result is None:
                    raise ServerUnreachable(
                        f"the job is unfinished after {self.deadline:.0f} s; run again to keep waiting for it "
                        "(DEPTH_LIB_DEADLINE sets the hours)",
                        retry="ask",
                    )
                self.keep("done")
            accept(result)
            return result
        except KeyboardInterrupt:
            if self.job_id:
                say(f"interrupted; job {self.job_id} keeps running at {self.host}; the same call finds it again")
            raise
        except Exception as error:
            running = "ask" if self.job_id else "send"  # the retry of errors of a job that may be running
            ended = self.state == "done" or not self.job_id or isinstance(error, JobFailed | ResultRefused)
            if ended and getattr(error, "retry", None) != running:
                self.drop()
            raise

    # Called by nnsight's client

    def _serialize(self, tracer):
        frame = tracer.info.frame
        block = reduce_block(tracer.node, frame.f_globals, dict(frame.f_locals))
        request, _ = pickled((tracer, block))  # as nnsight's RequestModel.serialize
        return zstandard.compress(request, 19)

    def _post(self, request, blob):
        response = self._patiently(partial(super()._post, request, blob), submitting=True)
        if not re.fullmatch(JOB_ID, response.id):
            raise ResultRefused(f"the server calls the job {response.id[:200]!r}, which is no id; check the host")
        self.job_id, self.submitted = response.id, time.time()
        self._check(response)
        self.keep("submitted")  # before the server is asked about the job
        return response

    def poll(self) -> dict | None:
        """The result, or None if there is none yet. nnsight's own waits ten minutes for a server that hangs."""
        answer = self.http.get(f"{self.host}/response/{self.job_id}", headers={"ndif-api-key": self.api_key})
        if answer.status_code == 404:
            if time.time() - max(self.submitted, self.told) > UNKNOWN:
                raise Forgotten(f"the server no longer knows the job; {AGAIN}", retry="send")
            return None
        response = ResponseModel.model_validate_json(answer.raise_for_status().text)
        self.told = time.time()
        self._check(response)
        return self.handle(response)

    def _check(self, response):
        response.description = self._without_key(response.description)
        if response.status == "ERROR":
            raise job_failed(response.description)

    def download_result(self, url: str) -> dict:
        """The result at this address. Redirects are not followed."""
        if not str(url).startswith(("http://", "https://")):
            raise ResultRefused(
                "the job has completed, but the server did not say where its result is; run again to send a new job, "
                "or report this to the server's operators"
            )
        answer = self.http.get(url, follow_redirects=True)
        if answer.is_client_error and answer.status_code != 429:
            expired = time.time() - self.submitted > RESULT_STAYS
            kind, retry = (Forgotten, "send") if expired else (ServerUnreachable, "ask")
            raise kind(
                f"the job has completed, but its result cannot be downloaded (HTTP {answer.status_code}); run again",
                retry=retry,
            )
        self.content = answer.raise_for_status().content
        result = plain(self.content)
        if not isinstance(result, dict) or not all(
            isinstance(part, dict) for part in ({"model": None, "result": None} | result).values()
        ):
            raise ResultRefused(
                "the job has completed, but its result lacks `model` or `result`, or has parts that are not dicts; run "
                "again to download it again, or report this to the server's operators",
                retry="ask",
            )
        return result

    # Patience

    def _patiently(self, ask, submitting=False):
        """ask(), repeated for SILENCE seconds if its errors may pass. submitting: only if the server certainly took no
        job.
        """
        patience = min(SILENCE, self.deadline)
        return Retrying(
            retry=retry_if_exception(lambda error: getattr(error, "retry", None) == "ask"),
            wait=PAUSES,
            stop=stop_before_delay(patience),
            before_sleep=lambda tried: (
                tried.attempt_number == 3 and say(f"retrying for up to {patience:.0f} s: {tried.outcome.exception()}")
            ),
            reraise=True,
        )(self._named, ask, submitting)

    def _named(self, ask, submitting):
        """ask(), with errors of errors.py."""
        try:
            return ask()
        except BackendError as error:
            cause = error.__cause__
        except (httpx.HTTPError, httpx.InvalidURL, ValidationError) as error:
            cause = error
        # outside of the handlers: the original error may quote the key
        raise self._failure(cause, submitting)

    def _failure(self, error, submitting):
        code, text, problem = 0, None, one_line(error)
        if isinstance(error, httpx.HTTPStatusError):
            code, text = error.response.status_code, self._without_key(error.response.text)
            problem = f"HTTP {code}: {textwrap.shorten(text, 400)}"
        # in each of NDIF's own errors, and in those of an unknown path of its kind of server
        own = '"detail"' in (text or "") and not re.search('"(Not Found|Method Not Allowed)"', text or "")
        if not own and code in (301, 302, 307, 308, 404, 405, 501):
            return NotReady(f"this address does not answer as NDIF does ({problem}); check it, then run again", text)
        if 400 <= code < 500 and code != 429:
            return NotReady(
                f"the server refused the request ({problem}); check what it names, and "
                "NDIF_API_KEY (keys: https://login.ndif.us), then run again",
                text,
            )
        # a proxy that answers 502 or 503 may have passed the request on
        not_taken = code == 429 or (code == 503 and own)
        if not submitting or not_taken or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            what, retry = "the server could not be reached ({}); check the host and the network, then run again", "ask"
            if isinstance(error, ValidationError):
                what = "this address does not answer as NDIF does ({}); check the host, then run again"
            if code == 429:
                what = "the server asks to wait ({}); run again later"
        else:
            what, retry = "the job was sent, but the server did not confirm it ({})", "send"
            if isinstance(error, ValidationError):
                what = "this address does not answer as NDIF does; check it"
            what += "; the job may be running, under an unknown id: run again to submit a new one"
        return ServerUnreachable(what.format(problem), text, retry)

    def _without_key(self, text):
        """The text without the key, which a server may quote. Shorter than 8 characters, it is a word, not a secret."""
        return text.replace(self.api_key, "<the key>") if len(self.api_key or "") > 7 else text
