"""RemoteError and its kinds: what can go wrong in a remote run."""

import re


class RemoteError(Exception):
    """A remote run ended without a result; the message is one line and ends with the next step.

    host: the server's URL; job_id: None if no job is known; server_text: the server's own words, whole, or None.
    """

    job_id = None  # filled in where the job is journalled, as is the host of what fails there

    def __init__(self, message: str, server_text: str | None = None, host: str | None = None):
        super().__init__(message)
        self.server_text, self.host = server_text, host

    def __str__(self) -> str:
        job = self.job_id and f"job {self.job_id}"
        where = ", ".join(filter(None, [self.host, job]))
        return f"{self.args[0]} [{where}]" if where else self.args[0]


class NotReady(RemoteError):
    """Something is missing for a job: a key, the model's name, a source that is up to date, a disk for the journal."""


class ServerUnreachable(RemoteError):
    """The server refused connections, answered 502 or 503 or sent nonsense, for longer than SILENCE seconds."""


class RequestRefused(RemoteError):
    """The server read the request and refused it (400, 401, 403 …): the same request would be refused again."""


class SubmissionUnconfirmed(RemoteError):
    """The request was sent, but no answer came: a job may run or not, and its id is not known."""


class JobFailed(RemoteError, RuntimeError):
    """The server ran the job, or tried to, and reports an error; `server_text` has its traceback."""


class JobInterrupted(JobFailed):
    """The server ended the job for reasons of its own: cancelled, preempted, or the model's process died."""


class JobOverdue(RemoteError):
    """The deadline passed before the job ended."""


class JobUnknown(RemoteError):
    """The server has no status of the job, and has had none for longer than a new job takes to get one."""


class ResultLost(RemoteError):
    """The job has completed, but its result is gone or damaged: an expired address, a broken download."""


class ResultRefused(RemoteError):
    """The result has something that could run code here; it was not loaded."""


class ResultNotFinite(RemoteError, ValueError):
    """The result has NaN or infinite numbers where a probe's are finite; it is not kept."""


# Words of an ERROR status of NDIF's older and newer servers, the exception, and the next step.
_ENDS = [
    (
        ("cancelled or preempted", "process died", "try again later", "Re-sending it"),
        JobInterrupted,
        "run again to submit the job anew",
    ),
    (
        ("took longer than timeout", "exceeded the execution timeout", "out of memory"),
        JobFailed,
        "make smaller jobs (set DEPTH_LIB_PROMPTS_PER_JOB or DEPTH_LIB_LAYERS_PER_JOB, or use shorter texts), then run "
        "again",
    ),
    (
        ("model architecture on this server",),
        JobFailed,
        "print(nnsight.ndif.compare()) names the packages to align with the server's (most often transformers); "
        "then run again",
    ),
    (
        ("",),
        JobFailed,
        "correct that, then run again (the whole text is in .server_text; nnsight.ndif.status() lists the models that "
        "run)",
    ),
]


def job_failed(text: str) -> JobFailed:
    """The exception for an ERROR status with this text."""
    lines = text.strip().splitlines() or ["no reason given"]
    line = lines[-1 if "Traceback" in text else 0].strip()  # a traceback ends with its error
    kind, advice = next((kind, advice) for words, kind, advice in _ENDS if any(word in text for word in words))
    return kind(f"the server reports: {line}; {advice}", "\n".join(lines))


def refused(status_code: int, text: str) -> RequestRefused:
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
    return RequestRefused(f"the server refused the request (HTTP {status_code}: {one_line(text)}); {advice}", text)


def one_line(error: object) -> str:
    """The first line of a text, or the kind and the first line of an exception."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if isinstance(error, Exception) else line
