"""What can go wrong on the way to a server and back: RemoteError and its kinds."""


class RemoteError(Exception):
    """A remote run ended without a result; the message is one line and ends with the next step.

    host: the server's URL; job_id: None if no job is known; server_text: the server's own words, whole, or None.
    """

    def __init__(self, message, host=None, job_id=None, server_text=None):
        where = ", ".join(part for part in (host, job_id and f"job {job_id}") if part)
        super().__init__(f"{message} [{where}]" if where else message)
        self.host, self.job_id, self.server_text = host, job_id, server_text


class NotReady(RemoteError):
    """Something is missing before a job can be sent: a key, the model on the server, a version that fits."""


class ServerUnreachable(RemoteError):
    """The server refused connections, answered 502 or 503 or made no sense, for longer than we wait for that."""


class RequestRefused(RemoteError):
    """The server read the request and refused it (400, 401, 403 …): the same request would be refused again."""


class SubmissionUnconfirmed(RemoteError):
    """The request was sent, but no answer came: a job may run or not, and its id is not known."""


class JobFailed(RemoteError, RuntimeError):
    """The server ran the job, or tried to, and reports an error; `server_text` holds its traceback."""


class JobOverdue(RemoteError):
    """The deadline passed before the job ended."""


class JobUnknown(RemoteError):
    """The server has no status of the job, and has had none for longer than a new job takes to get one."""


class ResultLost(RemoteError):
    """The job has completed, but its result is gone or damaged: an expired address, a broken download."""


class ResultRefused(RemoteError):
    """The result holds something that could run code here; its bytes are kept, unread."""


class ResultNotFinite(RemoteError, ValueError):
    """The result holds NaN or infinite numbers where a probe's are finite; it is not kept."""


def last_line(text: str) -> str:
    """The line of a server's text that says what happened: the last one of a traceback."""
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
