"""Remote runs: what is sent, the journal of jobs, nnsight's client for one job, and errors."""

# ruff: noqa: F401 (names for others)
from .errors import (
    JobFailed,
    JobInterrupted,
    JobOverdue,
    JobUnknown,
    NotReady,
    RemoteError,
    RequestRefused,
    ResultLost,
    ResultNotFinite,
    ResultRefused,
    ServerUnreachable,
    SubmissionUnconfirmed,
)
from .journal import journalled
