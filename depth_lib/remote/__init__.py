"""A run on a server that loses nothing: what travels, the journal, nnsight's client, and what can go wrong."""

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
