"""Errors of remote runs: four kinds of RemoteError."""

import re


class RemoteError(Exception):
    """A remote call ended without a result; the message says what to do next.

    - host: the server's URL
    - job_id: the job's id, or None
    - server_text: the server's message, or None
    - retry: what rerunning the call would do: "ask" asks the server again for the running job's result, and "send"
      submits a new job; None: the call would fail again
    """

    host: str | None = None  # this and the next are set by the journal
    job_id: str | None = None

    def __init__(self, message: str, server_text: str | None = None, retry: str | None = None):
        super().__init__(message)
        self.server_text, self.retry = server_text, retry


class NotReady(RemoteError):
    """No job was sent: something is missing, such as a key, or the server rejected the request (400, 401, 403 …)."""


class ServerUnreachable(RemoteError):
    """The server could not be reached, kept answering 5xx or something invalid, or missed the deadline for the job."""


class JobFailed(RemoteError, RuntimeError):
    """The server reports that the job failed (`server_text` has the traceback), or has lost it."""


class Forgotten(JobFailed):
    """The server no longer has the job or its result."""


class ResultRefused(RemoteError, ValueError):
    """The result was discarded: it could run code on this machine, is unreadable, is not what was asked for, or has
    values that are not finite."""


AGAIN = "run again to submit a new job"
# Words of an ERROR status of NDIF's older and newer servers.
_INTERRUPTED = "cancelled or preempted|process died|try again later|Re-sending it"
_TOO_LARGE = "took longer than timeout|exceeded the execution timeout|out of memory"
_SMALLER = (
    "make smaller jobs (set DEPTH_LIB_PROMPTS_PER_JOB or DEPTH_LIB_LAYERS_PER_JOB, or use shorter texts), then run "
    "again"
)
_CORRECT = (
    "correct that, then run again (the whole text is in .server_text; nnsight.ndif.status() lists the models that run, "
    "nnsight.ndif.compare() the packages to align with the server's)"
)


def job_failed(text: str) -> JobFailed:
    """The exception for an ERROR status with this text."""
    lines = (text.strip() or "no reason given").splitlines()
    line = lines[-1 if "Traceback" in text else 0].strip()[:400]  # a traceback ends with its error
    passes = re.search(_INTERRUPTED, text)
    advice = AGAIN if passes else _SMALLER if re.search(_TOO_LARGE, text) else _CORRECT
    return JobFailed(f"the server reports: {line}; {advice}", text, "send" if passes else None)


def one_line(error: Exception) -> str:
    """The kind of an error and its first line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
