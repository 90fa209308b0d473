"""Remote runs: what is sent, one job and its journal, reading its result, and errors."""

# ruff: noqa: F401 (names for others)
from .errors import JobFailed, NotReady, RemoteError, ResultRefused, ServerUnreachable
from .journal import journalled
