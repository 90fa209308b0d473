"""A run on a server that loses nothing: what travels, the journal, the waiting, and what can go wrong."""

# ruff: noqa: F401 (names for others)
from .errors import (
    JobFailed,
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
from .waiting import Patience
