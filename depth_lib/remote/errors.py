"""What can go wrong in a remote run: four kinds of RemoteError."""

import re


class RemoteError(Exception):
    """A remote run ended without a result; the message is one line and ends with the next step.

    host: the server's URL; job_id: None if no job is known; server_text: the server's own words, whole, or None. retry:
    what the same call does if it is made again: "ask" goes on with the job that runs (or, before there is one, asks the
    server again), "send" sends the job anew; None: it would fail again, change what the message names first.
    """

    job_id = None  # filled in where the job is journalled, as is the host of what fails there

    def __init__(self, message: str, server_text: str | None = None, retry: str | None = None, host: str | None = None):
        super().__init__(message)
        self.server_text, self.retry, self.host = server_text, retry, host

    def __str__(self) -> str:
        job = self.job_id and f"job {self.job_id}"
        where = ", ".join(filter(None, [self.host, job]))
        return f"{self.args[0]} [{where}]" if where else self.args[0]


class NotReady(RemoteError):
    """Something is missing for a job (a key, the model's name, a source that is up to date, a disk for the journal), or
    the server read the request and refused it (400, 401, 403 …)."""


class ServerUnreachable(RemoteError):
    """The server refused connections, answered 5xx or nonsense for too long, did not say whether it took the job, or
    had not finished it at the deadline."""


class JobFailed(RemoteError, RuntimeError):
    """The server ran the job, or tried to, and reports an error (`server_text` has its traceback), or has lost it."""

    forgotten = False  # whether the server says that it does not know the job, or has no result of it, any more


class ResultRefused(RemoteError, ValueError):
    """The result has something that could run code here or cannot be read, or numbers that are not finite; it is not
    kept."""


# Words of an ERROR status of NDIF's older and newer servers, whether the same job may succeed, and the next step.
_ENDS = [
    (
        ("cancelled or preempted", "process died", "try again later", "Re-sending it"),
        "send",
        "run again to submit the job anew",
    ),
    (
        ("took longer than timeout", "exceeded the execution timeout", "out of memory"),
        None,
        "make smaller jobs (set DEPTH_LIB_PROMPTS_PER_JOB or DEPTH_LIB_LAYERS_PER_JOB, or use shorter texts), then run "
        "again",
    ),
    (
        ("model architecture on this server",),
        None,
        "print(nnsight.ndif.compare()) names the packages to align with the server's (most often transformers); "
        "then run again",
    ),
    (
        ("",),
        None,
        "correct that, then run again (the whole text is in .server_text; nnsight.ndif.status() lists the models that "
        "run)",
    ),
]


def job_failed(text: str) -> JobFailed:
    """The exception for an ERROR status with this text."""
    lines = text.strip().splitlines() or ["no reason given"]
    line = lines[-1 if "Traceback" in text else 0].strip()  # a traceback ends with its error
    retry, advice = next((retry, advice) for words, retry, advice in _ENDS if any(word in text for word in words))
    return JobFailed(f"the server reports: {line}; {advice}", "\n".join(lines), retry)


def forgotten(what: str) -> JobFailed:
    """The exception for a job that the server does not know any more, or whose result it has not any more."""
    error = JobFailed(f"{what}; run again to submit it anew", retry="send")
    error.forgotten = True
    return error


def refused(status_code: int, text: str) -> NotReady:
    """The exception for a request that the server answered with a 4xx status and this text."""
    python = re.search(
        r"python version \S+ (?:does not match server version:|is below the minimum supported) (\d+\.\d+)", text
    )
    nnsight = re.search(r"minimum supported (?:version is )?(\d[\w.]*\w)", text)
    if status_code in (401, 403) or "API key" in text:
        advice = "check NDIF_API_KEY (keys are at https://login.ndif.us)"
    elif python:
        advice = f"make an environment with that Python: conda create -n depth-lib python={python[1]}"
    elif nnsight:
        advice = f"pip install 'nnsight>={nnsight[1]}'"
    else:
        advice = "change what it says, then run again"
    return NotReady(f"the server refused the request (HTTP {status_code}: {one_line(text)}); {advice}", text)


def one_line(error: object) -> str:
    """The first line of a text, or the kind and the first line of an exception."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if isinstance(error, Exception) else line
