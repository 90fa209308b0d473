"""The only place that opens an nnsight session: a probe runs here, or as journalled jobs on a server."""

import contextlib
import contextvars
import inspect
import os
import time
from collections.abc import Callable
from dataclasses import replace

import nnsight
import torch
import zstandard
from nnsight.schema.request import RequestModel
from nnsight.tracing.backend import Backend

from .models.check import CHECKED, RUNNING, check_call, judge, not_computed, running
from .models.parallel import check_same
from .progress import steps, ticked
from .remote.deployment import Call, Deployment
from .remote.errors import NotReady
from .remote.journal import Entry
from .remote.status_line import StatusLine
from .remote.travel import travelling

PROMPT_BLOCKS_PER_JOB = 1000  # prompts × blocks: 31 prompts of a 32-block model, 12 of an 80-block one
MINUTES_PER_JOB = 40  # after which a job of several calls begins no other; servers end one after an hour
_PLANNED = contextvars.ContextVar("planned", default=None)  # where calls are written down instead of being made


class _Planned(Exception):
    """The call was written down, not made."""


def planned(function: Callable) -> list[Call]:
    """What function() would run on a server, instead of that: one call for each job."""
    token = _PLANNED.set([])
    try:
        with contextlib.suppress(_Planned):
            function()
        return _PLANNED.get()
    finally:
        _PLANNED.reset(token)


def run(
    probe: Callable,
    llm: nnsight.TransformersModel,
    *args: object,
    remote: bool | str = False,
    over: str | None = None,
    label: str = "",
    per_job: int | None = None,
    **named: object,
) -> dict:
    """probe(llm, *args, **named) in one session; returns its dict of tensors on the CPU.

    remote: False (this machine), True (NDIF), "local" (serialised and run here: a rehearsal of NDIF) or a host's URL.
    over: the name of the argument, a list, whose items the results are stacked over. If it is "layers", a server does
    DEPTH_LIB_LAYERS_PER_JOB of them in a job (default: all); if it is any other, they are prompts, of which this
    machine does one at a time, so that a progress bar can move, and a server `per_job` in a job (default:
    DEPTH_LIB_PROMPTS_PER_JOB, else PROMPT_BLOCKS_PER_JOB / blocks). Each job is journalled: another call with the same
    probe, model and arguments, in this process or another one, waits for the same job, and an interrupted run repeats
    at most one. Raises depth_lib.remote.RemoteError and its kinds, and ArchitectureError if the server's model does not
    satisfy the probes' identities (part of the first job).
    """
    arguments = dict(inspect.signature(probe).bind(llm, *args, **named).arguments)
    arguments.pop(next(iter(inspect.signature(probe).parameters)))
    if not remote:
        check_same(llm, probe.__name__, [value for name, value in arguments.items() if name not in ("arch", "tick")])
    calls = cut(Call(probe, arguments, over), remote, per_job)
    label = label or probe.__name__.replace("_", " ")
    if (written := _PLANNED.get()) is not None:
        written.extend(calls)
        raise _Planned
    if not remote or remote == "local":
        calls = steps(calls, label) if over not in (None, "layers") else calls
        results = [_here(llm, call, remote) for call in calls]
    else:
        results = _there(Deployment(llm, remote), calls, label)
    return joined(results)


def run_ticking(probe: Callable, llm: nnsight.TransformersModel, arch: dict, *work: object, remote: bool | str) -> dict:
    """run(probe, …, over="layers"); on this machine the probe is given a tick, to say how far it is."""
    with contextlib.nullcontext() if remote else ticked(probe.__name__.replace("_", " ")) as tick:
        how = {"tick": tick} if tick else {}
        return run(probe, llm, arch, *work, remote=remote, over="layers", **how)


def joined(results: list[dict]) -> dict:
    """The results of a call's parts as one."""
    if len(results) == 1:
        return results[0]
    return {key: _one_after_the_other([result[key] for result in results]) for key in results[0]}


def _one_after_the_other(parts):
    return torch.cat(parts) if isinstance(parts[0], torch.Tensor) else [entry for part in parts for entry in part]


def cut(call: Call, remote: bool | str, per_job: int | None) -> list[Call]:
    """The call as one for each job, or here for each step of a progress bar."""
    if call.over is None:
        return [call]
    items = call.arguments[call.over]
    here, size = not remote or remote == "local", len(items)
    if call.over == "layers":
        size = not here and _whole_number("DEPTH_LIB_LAYERS_PER_JOB") or size
    elif not remote:
        size = 1
    elif not here:
        fitting = max(1, PROMPT_BLOCKS_PER_JOB // call.arguments["arch"]["n_layers"])
        size = per_job or _whole_number("DEPTH_LIB_PROMPTS_PER_JOB") or fitting
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    cut = [replace(call, arguments=call.arguments | {call.over: part}) for part in parts]
    return [replace(one, part=f"{k} of {len(cut)}") for k, one in enumerate(cut, 1)] if cut[1:] else cut


def _here(llm, call, remote):
    found = _in_session(llm, {"result": (call.probe, call.arguments)}, None, remote=remote)
    RUNNING[llm] = found["model"]
    return found["results"]["result"]


def _in_session(llm, calls, seconds, **how):
    result = None  # stays so where the session is only written down
    with llm.session(**how):
        result = _results(llm, calls, seconds).save()  # not by nnsight.save: servers import torch, not nnsight
    return result


def _results(llm, calls, seconds):
    """What each of the named calls (function, arguments) returns, in order.

    Those that would begin too late are left out, and those after one that fails: the next job begins with that one.
    """
    start, results = time.monotonic(), {}
    for name, (function, arguments) in calls.items():
        alone = not results.keys() - {"check"}
        if not alone and seconds is not None and time.monotonic() - start > seconds:
            break
        try:
            results[name] = function(llm, **arguments)
        except Exception:
            if alone:
                raise
            break
    return {"model": running(llm), "results": results}


def check_model(llm: nnsight.TransformersModel, remote: bool | str = False) -> dict:
    """Measure both identities on a short prompt, in the running model's own dtype; once per loaded model.

    Identity 1: h_{l+1} = h_l + a_l + m_l for every block and token (relative to ‖h_{l+1}‖). Identity 2: lens(h_L) =
    the model's own logits (relative to the largest). And whether the MLP reads what was found: changing
    attention's contribution must change m in sequential blocks and must not in parallel ones.

    Returns {"identity_1", "identity_2": the largest errors, "tolerance"}: 1e-5, or 2 rounding units of a narrower
    dtype. Raises ArchitectureError naming what failed, by how much and where.
    """
    if llm not in CHECKED:
        identities, arguments = check_call(llm)
        try:
            found = run(identities, llm, **arguments, remote=remote)
        except (RuntimeError, ValueError, IndexError) as error:
            raise not_computed(llm, error) from error
        CHECKED[llm] = judge(llm, found)
    return CHECKED[llm]


def _there(deployment, calls, label):
    """What each call returns, one journalled job after the other."""
    results, held = [], []
    for call in calls:
        line, settings = StatusLine(f"{label}, job {call.part}" if call.part else label), deployment.settings(call)
        with deployment.entry(settings, line, probe=call.probe.__qualname__, part=call.part) as entry:
            results.append(job(deployment, {settings: call}, entry, line)[settings])
            entry.used()
            held.append(entry)
    for entry in held:
        entry.hand_over()
    return results


def job(deployment: Deployment, calls: dict[str, Call], entry: Entry, line: StatusLine) -> dict[str, dict]:
    """What one job computed of these calls, by settings; the model's check goes along if nobody has made it yet."""
    llm = deployment.llm

    def payload():
        asked = {settings: (call.probe, call.arguments) for settings, call in calls.items()}
        check = check_call(llm)
        if llm not in CHECKED and not any(call.probe is check[0] for call in calls.values()):
            asked = {"check": check} | asked
        return written_down(llm, asked, 60 * minutes_per_job())

    found = deployment.found(calls, payload, entry, line)
    RUNNING[llm] = found["model"]
    if llm not in CHECKED and "check" in found["results"]:
        CHECKED[llm] = judge(llm, found["results"]["check"])
    return found["results"]


class _WrittenDown(Backend):
    """Serialises what a session captured, and sends nothing."""

    def __call__(self, tracer):
        raw = RequestModel.serialize(tracer)
        self.blob = zstandard.ZstdCompressor(level=19 if len(raw) < 1e6 else 3).compress(raw)


def written_down(llm: nnsight.TransformersModel, calls: dict, seconds: float | None = None) -> bytes:
    """The compressed request that makes a server return what the named calls, (function, arguments), return."""
    backend, copies = _WrittenDown(), {}
    sent = {name: (travelling(function, copies), arguments) for name, (function, arguments) in calls.items()}
    travelling(_in_session, copies)(llm, sent, seconds, backend=backend)
    return backend.blob


def minutes_per_job() -> int:
    return _whole_number("DEPTH_LIB_MINUTES_PER_JOB") or MINUTES_PER_JOB


def _whole_number(variable):
    """The whole number in an environment variable; None if it is not set."""
    value = os.environ.get(variable)
    if value and not (value.isdigit() and int(value)):
        raise NotReady(f"{variable} is {value!r}; give a whole number of at least 1")
    return int(value) if value else None
