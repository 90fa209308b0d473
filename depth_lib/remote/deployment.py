"""A model as a server has it: what decides a result there, and the job that brings one."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .errors import ResultNotFinite
from .jobs import Request, complete
from .journal import Entry
from .preflight import model_key
from .server import Server, cost_in_words
from .status_line import StatusLine
from .travel import fingerprint, settings_hash, travelling
from .waiting import Patience


@dataclass(frozen=True)
class Call:
    """One run of a probe: its arguments by name, and which of them the results are stacked over, if any.

    part: "2 of 3" of a call that was cut; artifact: whose journal keeps the result, where several share a job.
    """

    probe: Callable
    arguments: dict
    over: str | None = None
    part: str | None = None
    artifact: Path | None = None


class Deployment:
    """A model on a server, for the calls that began when this was made. Raises NotReady."""

    def __init__(self, llm, remote):
        self.llm, self.server, self.patience = llm, Server(remote), Patience.of_user()
        self.key, self.env = model_key(llm, self.server.host), llm._remoteable_get_env()
        self.began = time.time()

    def settings(self, call: Call) -> str:
        """The hash of all that decides the result of a call."""
        copies = {}
        travelling(call.probe, copies)
        return settings_hash(
            args=call.arguments,
            host=self.server.host,
            model=self.key,
            env=self.env,
            names=getattr(self.llm, "_rename", None),
            sources=fingerprint(copies),
            probe=call.probe.__qualname__,
        )

    def entry(self, settings: str, line: StatusLine, **facts: object) -> contextlib.AbstractContextManager[Entry]:
        """The journal's entry of a job, held while the block runs."""

        def say(who):
            line.show(f"waiting for {who}, which is at the same job")

        return Entry.held(settings, self.began, say, host=self.server.host, model=self.key, **facts)

    def found(self, calls: dict[str, Call], payload: Callable[[], bytes], entry: Entry, line: StatusLine) -> dict:
        """What a job saved that computes these calls (settings -> call), whatever it takes; see jobs.complete."""

        def accept(found):
            for settings, call in calls.items():
                self._check_finite(call, found["results"].get(settings, {}), found["model"])

        request = Request(self.key, self.env, payload, accept, self.server, self.patience, line)
        with contextlib.ExitStack() as ending:
            ending.callback(line.end)
            found = complete(request, entry)
            ending.pop_all()
        done = ", ".join(filter(None, [f"done at {self.server.host}", cost_in_words(entry.cost)]))
        line.end(done if entry.job_id else "")
        return found

    def _check_finite(self, call, result, model):
        """ResultNotFinite names the probe, the layer and the number."""
        for key, value in result.items():
            if call.over is None or not isinstance(value, torch.Tensor) or bool(torch.isfinite(value).all()):
                continue
            first = torch.nonzero(~torch.isfinite(value))[0].tolist()
            if call.over == "layers":
                where = f"layer {call.arguments['layers'][0] + first[0]}"
            else:
                where = f"prompt {first[0]} of the job" + (f", layer {first[1]}" if first[1:] else "")
            raise ResultNotFinite(
                f"{call.probe.__name__}: {key} is {value[tuple(first)].item()} at {where}, and is not kept; the server "
                f"computes in {model['dtype']} ({model['weights']}): ask for a deployment in bfloat16 or float32, or "
                "run it where you choose the dtype",
                self.server.host,
            )
