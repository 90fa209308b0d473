"""NDIF's protocol as one client needs it: send a request, ask how it is, fetch the result. One attempt a call.

nnsight's own client waits for ever, tells a refused connection and a failed job apart by their text only, and cannot
come back to an expired result; this one says which of these it was. Everything on the wire is nnsight's.
"""

import base64
import functools
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

import httpx
from nnsight import CONFIG
from nnsight.schema.request import RequestModel

from .errors import NotReady, RequestRefused, ResultLost, SubmissionUnconfirmed
from .reading import NotPlain, load

_TIMEOUT = httpx.Timeout(10, read=60, write=300)
# No connection is kept: one that died while we slept would make the next request fail half-way, perhaps taken.
_FRESH = httpx.Limits(max_keepalive_connections=0)
_SENT_NOTHING = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TRY_AGAIN = (429, 502, 503)
# nnsight's own name for the key, and two that published notebooks use
_KEY_NAMES = ("NDIF_API_KEY", "NDIF_API", "NDIF_TOKEN")


@functools.cache
def _certificates():
    return httpx.create_ssl_context()  # reads all of the system's: once is enough


class Unsteady(Exception):
    """The server cannot be asked right now; asking again later does no harm."""


@dataclass
class Status:
    """What a server says of a job. state: one of nnsight's statuses, or a newer one; data: on COMPLETED the result, its
    address or bytes; cost: what the job cost the server, such as its run time and peak memory."""

    id: str
    state: str
    description: str = ""
    data: str | bytes | None = None
    cost: dict | None = None


class Server:
    """An NDIF server: remote=True is the configured one (NDIF_HOST, or https://api.ndif.us), else `remote` is its URL.

    The key is NDIF_API_KEY from the environment (or NDIF_API, NDIF_TOKEN), nnsight's configuration or Colab's secret of
    that name. NotReady if there is none for the configured server, or `remote` is no URL.
    """

    def __init__(self, remote):
        configured = os.environ.get("NDIF_HOST") or CONFIG.API.HOST
        host = configured if remote is True else remote
        if not (isinstance(host, str) and re.match(r"https?://[^/\s]+", host)):
            raise NotReady(f'remote={host!r} is no host; use True, False, "local" or a URL (https://…)')
        self.host = host.rstrip("/")
        self._client = httpx.Client(timeout=_TIMEOUT, limits=_FRESH, verify=_certificates())
        self._key = _key()
        if not re.fullmatch("[!-~]*", self._key):
            raise NotReady(
                "NDIF_API_KEY has characters that no key has (a space, a line break, an accent …); copy it again",
                self.host,
            )
        if not self._key and self.host == configured.rstrip("/"):
            raise NotReady(
                "there is no NDIF key; get one at https://login.ndif.us and put it into the environment variable "
                "(or Colab secret) NDIF_API_KEY, never into the notebook",
                self.host,
            )

    def submit(self, model_key: str, env: dict, blob: bytes) -> Status:
        """Send a compressed payload; the first status, with the job's id.

        Raises Unsteady (nothing was taken), RequestRefused or SubmissionUnconfirmed.
        """
        envelope = RequestModel(model_key=model_key, compress=True, env=env).metadata()
        headers = {
            "ndif-timestamp": repr(time.time()),
            "nnsight-version": version("nnsight"),
            "python-version": sys.version,
        }
        try:
            answer = self._ask(
                "POST",
                "/request",
                data={"data": envelope},
                headers=headers,
                files={"blob": ("request", blob, "application/octet-stream")},
            )
            if answer.status_code < 500:
                return self._status(answer)
            problem, text = f"HTTP {answer.status_code}", self._text(answer)
        except _SENT_NOTHING as error:
            raise Unsteady(reason(error)) from error
        except (httpx.HTTPError, ValueError) as error:
            problem, text = reason(error), None
        raise SubmissionUnconfirmed(
            f"the job was sent, but the server did not say that it took it ({problem}); it may be running, under an id "
            "nobody knows: run again to submit another one",
            self.host,
            server_text=text,
        )

    def poll(self, job_id: str) -> Status | None:
        """The job's newest status; None if the server has none. Raises Unsteady or RequestRefused."""
        return self._got(f"/response/{job_id}", lambda answer: self._status(answer, job_id))

    def fetch(self, data: bytes | str | None) -> bytes:
        """The bytes of a completed job's result, from what its status carries; ResultLost if they are not there."""
        if isinstance(data, bytes):
            return data
        try:
            if not re.match(r"https?://|/", data or ""):
                return base64.b64decode((data or "no data").rpartition("base64,")[2], validate=True)
            address = httpx.URL(self.host).join(data)
            answer = self._client.get(address)  # presigned, and not always the server's own: no key goes there
            answer.raise_for_status()
            return answer.content
        except httpx.HTTPStatusError as error:
            raise ResultLost(f"HTTP {error.response.status_code}", self.host) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ResultLost(reason(error), self.host) from error

    def about(self, path: str) -> dict | None:
        """The JSON of /status or /env; None if the server has no such page. Raises Unsteady or RequestRefused."""

        def read(answer):
            if not isinstance(body := answer.json(), dict):
                raise ValueError(f"{path} is a {type(body).__name__}, not an object")
            return body

        return self._got(path, read)

    def _got(self, path, read):
        """read(answer) of a page; None if the server has no such page."""
        try:
            answer = self._ask("GET", path)
            if answer.status_code >= 500:
                raise Unsteady(f"HTTP {answer.status_code}")
            return None if answer.status_code == 404 else read(answer)
        except (httpx.HTTPError, ValueError) as error:
            raise Unsteady(reason(error)) from error

    def _ask(self, method, path, headers=None, **request):
        headers = dict(headers or {}) | ({"ndif-api-key": self._key} if self._key else {})
        answer = self._client.request(method, self.host + path, headers=headers, **request)
        if answer.status_code in _TRY_AGAIN:
            raise Unsteady(f"HTTP {answer.status_code}: {self._text(answer)}")
        if 300 <= answer.status_code < 500 and not (method == "GET" and answer.status_code == 404):
            advice = "check NDIF_API_KEY" if answer.status_code in (401, 403) else "change what it says, then run again"
            raise RequestRefused(
                f"the server refused the request (HTTP {answer.status_code}: {self._text(answer)}); {advice}",
                self.host,
                server_text=self._text(answer),
            )
        return answer

    def _status(self, answer, job_id=None):
        """A status as JSON, or as the bytes of torch.save."""
        try:
            said = answer.json()
        except ValueError:
            try:
                said = load(answer.content)
            except (MemoryError, KeyboardInterrupt):
                raise
            except (Exception, NotPlain) as error:  # noqa: BLE001 (what is no pickle breaks in many ways)
                raise ValueError(f"no status, but {answer.text[:40]!r}") from error
        if not (isinstance(said, dict) and isinstance(said.get("id"), str) and isinstance(said.get("status"), str)):
            raise ValueError(f"no status, but {str(said)[:40]!r}")
        if job_id is not None and said["id"] != job_id:
            raise ValueError(f"a status of another job, {said['id']}")
        description = self._without_key(str(said.get("description") or ""))
        cost = said.get("meta") or said.get("meta_data")
        cost = json.loads(json.dumps(cost, default=str)) if isinstance(cost, dict) else None
        return Status(said["id"], said["status"], description, said.get("data"), cost)

    def _text(self, answer):
        try:
            body = answer.json()
        except ValueError:
            body = answer.text
        text = str(body.get("detail", body) if isinstance(body, dict) else body).strip()
        return self._without_key(text) or "no reason given"

    def _without_key(self, text):
        """A server may quote the key it was sent; it must not come into a notebook's output that way."""
        for key in {self._key, repr(self._key)[1:-1], json.dumps(self._key)[1:-1]} - {""}:
            text = text.replace(key, "<the key>")
        return text


def _key():
    if not (any(map(os.environ.get, _KEY_NAMES)) or CONFIG.API.APIKEY):
        CONFIG._from_env()  # a Colab secret may have been granted after nnsight was imported
    name = next((name for name in _KEY_NAMES if os.environ.get(name)), None)
    if name and name != _KEY_NAMES[0]:
        _say_once(f"the NDIF key is the one in {name}; nnsight itself reads {_KEY_NAMES[0]} only")
    return (os.environ[name] if name else CONFIG.API.APIKEY or "").strip()


@functools.cache
def _say_once(sentence):
    print(sentence, file=sys.stderr, flush=True)


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__


def cost_in_words(cost: dict) -> str:
    """The numbers of a server's word on what a job cost: "run time 12.3 s, peak memory 4.2 GB"."""
    said = []
    for name, value in (cost or {}).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            amount = f"{value / 1e9:.1f} GB" if "mem" in name and value > 1e6 else f"{value:.1f}"
            unit = " s" if any(word in name for word in ("time", "second", "duration")) else ""
            said.append(f"{name.replace('_', ' ')} {amount}{unit}")
    return ", ".join(said)
