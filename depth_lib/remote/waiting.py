"""Waiting for a server without ever hurrying it or waiting for ever: backoff, jitter, deadlines."""

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nnsight.schema.response import ResponseModel

from .errors import JobFailed, JobOverdue, JobUnknown, NotReady, ServerUnreachable, last_line
from .server import Server, Unsteady, cost_in_words
from .status_line import StatusLine


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds.

    deadline: for one job, queue included (DEPTH_LIB_DEADLINE, in hours, if set); silence: for a server that refuses
    connections or answers nonsense; unknown: for a job that the server has no status of; shortest, longest: between
    two questions.
    """

    deadline: float = 12 * 3600
    silence: float = 300
    unknown: float = 600
    shortest: float = 0.5
    longest: float = 15

    @classmethod
    def of_user(cls) -> "Patience":
        """The defaults, with the user's deadline."""
        hours = os.environ.get("DEPTH_LIB_DEADLINE")
        try:
            return cls(deadline=float(hours) * 3600) if hours else cls()
        except ValueError:
            raise NotReady(f"DEPTH_LIB_DEADLINE is {hours!r}; give the hours to wait for a job as a number") from None

    def pauses(self) -> Iterator[float]:
        """Growing pauses, each up to a quarter shorter or longer, so that clients do not march in step."""
        pause = self.shortest
        while True:
            yield pause * random.uniform(0.75, 1.25)
            pause = min(pause * 1.5, self.longest)


def patiently(ask: Callable, patience: Patience, line: StatusLine, host: str) -> object:
    """ask(), again and again while it raises Unsteady; ServerUnreachable after `patience.silence` seconds of that."""
    start = time.monotonic()
    for pause in patience.pauses():
        try:
            return ask()
        except Unsteady as error:
            if time.monotonic() - start + pause > patience.silence:
                raise ServerUnreachable(
                    f"the server could not be reached for {time.monotonic() - start:.0f} s ({error}); check the host "
                    "and the network, then run again",
                    host,
                    server_text=str(error),
                ) from error
            line.show(f"{host} cannot be reached ({error}), trying again")
        time.sleep(pause)


def completed(server: Server, job_id: str, patience: Patience, line: StatusLine) -> ResponseModel:
    """The status of a job that has completed, waited for.

    Raises JobFailed (an ERROR status, with the server's text), JobUnknown, JobOverdue, ServerUnreachable (journalled
    jobs outlive it) or RequestRefused.
    """
    start = known = time.monotonic()
    seen = None
    pauses = patience.pauses()
    while True:
        status = patiently(lambda: server.poll(job_id), patience, line, server.host)
        now = time.monotonic()
        if status is not None:
            known = now
            line.show(f"{status.state.lower()} {status.description}".strip())
            if status.state == "COMPLETED":
                return status
            if status.state == "ERROR":
                raise failure(status, server.host)
            if status.state != seen:  # any other, and one that this client does not know, means that it is at work
                seen, pauses = status.state, patience.pauses()
        elif now - known > patience.unknown:
            raise JobUnknown(
                f"the server has had no status of the job for {now - known:.0f} s: it was lost, or has expired; "
                "run again to submit it anew",
                server.host,
                job_id,
            )
        pause = next(pauses)
        if now - start + pause > patience.deadline:
            state = "unknown to the server" if status is None else status.state
            raise JobOverdue(
                f"the job is {state} after {now - start:.0f} s; run again to go on waiting for it (DEPTH_LIB_DEADLINE "
                "sets the hours)",
                server.host,
                job_id,
                status and status.description,
            )
        time.sleep(pause)


def failure(status: ResponseModel, host: str) -> JobFailed:
    """The JobFailed of an ERROR status, which says what the job cost, too: what it ran out of is worth reading."""
    cost = f" ({said})" if (said := cost_in_words(status.cost)) else ""
    return JobFailed(
        f"the server reports: {last_line(status.description)}{cost}; correct that, then run again "
        "(its whole text is in .server_text)",
        host,
        status.id,
        status.description,
    )
