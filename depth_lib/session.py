"""The only place that opens an nnsight session: a probe runs here, or as journalled jobs on a server."""

import contextlib
import os
from functools import partial

import nnsight
import torch
import zstandard
from nnsight.schema.request import RequestModel
from nnsight.tracing.backend import Backend

from .architectures import describe
from .progress import steps
from .remote.errors import NotReady
from .remote.jobs import Request, obtain
from .remote.journal import Entry
from .remote.preflight import model_key
from .remote.server import Server
from .remote.status_line import StatusLine
from .remote.token_ids import laid_out, put_back, with_ids
from .remote.travel import fingerprint, settings_hash, travelling
from .remote.waiting import Patience

PROMPT_BLOCKS_PER_JOB = 1000  # prompts × blocks: 31 prompts of a 32-block model, 12 of an 80-block one


def run(probe, llm, *args, remote=False, layers=None):
    """probe(llm, *args) in one session; returns its dict of tensors on the CPU.

    remote: False (this machine), True (NDIF), "local" (serialised and run here: a rehearsal of NDIF) or a host's URL.
    On a server it is one journalled job: another call with the same probe, model and arguments, in this process or
    another one, waits for the same job. layers: the place in args of the list of layers that the results are stacked
    over; with DEPTH_LIB_LAYERS_PER_JOB a server does that many in a job. Raises depth_lib.remote.RemoteError and its
    kinds, and ArchitectureError if the server's model does not satisfy the probes' identities (part of the first job).
    """
    if not remote or remote == "local":
        return _in_session(llm, probe, args, remote=remote)
    calls = [args]
    if layers is not None and (size := _asked("DEPTH_LIB_LAYERS_PER_JOB")):
        calls = [(*args[:layers], part, *args[layers + 1 :]) for part in _parts(args[layers], size)]
    results = _on_server(probe, llm, calls, remote, probe.__name__.replace("_", " "))
    if len(results) == 1:
        return results[0]
    return {key: torch.cat([result[key] for result in results]) for key in results[0]}


def run_in_parts(probe, llm, arch, items, *args, remote=False, label="", per_job=None):
    """probe(llm, arch, part, *args) for parts of items, as a list of results in order.

    On this machine a part is one item, so that a progress bar can move. On a server it is one job of `per_job` items
    (default: DEPTH_LIB_PROMPTS_PER_JOB, else PROMPT_BLOCKS_PER_JOB / blocks); each part's result is kept as it
    arrives, so an interrupted run repeats at most one.
    """
    if not remote or remote == "local":
        parts = _parts(items, 1 if not remote else len(items))
        return [run(probe, llm, arch, part, *args, remote=remote) for part in steps(parts, label)]
    size = per_job or _asked("DEPTH_LIB_PROMPTS_PER_JOB") or max(1, PROMPT_BLOCKS_PER_JOB // arch["n_layers"])
    calls = [(arch, part, *args) for part in _parts(items, size)]
    return _on_server(probe, llm, calls, remote, label or probe.__name__.replace("_", " "))


def _in_session(llm, probe, args, **how):
    result = None  # stays so where the session is only written down
    with llm.session(**how):
        result = nnsight.save(probe(llm, *args))
    return result


def _with_ids(llm, probe, args, planes):
    return probe(llm, *with_ids(args, put_back(planes)))


def _with_check(llm, identities, check, probe, args):
    return {"check": identities(llm, *check), "result": probe(llm, *args)}


def _on_server(probe, llm, calls, remote, label):
    """probe(llm, *args) for each args of calls, one journalled job after the other."""
    server, patience = Server(remote), Patience.of_user()
    key, env = model_key(llm, server.host), llm._remoteable_get_env()
    copies = {}
    sent = travelling(probe, copies)
    deciding = {
        "host": server.host,
        "model": key,
        "env": env,
        "names": getattr(llm, "_rename", None),
        "sources": fingerprint(copies),
        "probe": probe.__qualname__,
    }
    with contextlib.ExitStack() as uses:
        entries = []
        for number, args in enumerate(calls, 1):
            part = f"{number} of {len(calls)}" if len(calls) > 1 else None
            entry = Entry.used(
                settings_hash(args=args, **deciding), probe=probe.__qualname__, host=server.host, model=key, part=part
            )
            entries.append(uses.enter_context(entry))
        results = []
        for entry, args in zip(entries, calls, strict=True):
            line = StatusLine(f"{label}, job {entry.part}" if entry.part else label)
            request = Request(key, env, partial(_payload, llm, probe, sent, args))
            with contextlib.ExitStack() as ending:
                ending.callback(line.end)
                saved = obtain(request, entry, server, patience, line)
                ending.pop_all()
            line.end(f"done at {server.host}" if entry.job_id else "")
            results.append(_judged(llm, saved))
        for entry in entries:
            entry.returned = True
    return results


class _WrittenDown(Backend):
    """Serialises what a session captured, and sends nothing."""

    def __call__(self, tracer):
        raw = RequestModel.serialize(tracer)
        self.blob = zstandard.ZstdCompressor(level=19 if len(raw) < 1e6 else 3).compress(raw)


def _payload(llm, probe, sent, args):
    """What travels for probe(llm, *args), compressed; the model's check goes along if nobody has made it yet."""
    from . import check  # which runs its own identities through this module

    if llm not in check.CHECKED and probe is not check.identities:
        arguments = (travelling(check.identities), (describe(llm), check.check_ids(llm)), sent, args)
        sent, args = travelling(_with_check), arguments
    backend = _WrittenDown()
    travelling(_in_session)(llm, travelling(_with_ids), (sent, *laid_out(args)), backend=backend)
    return backend.blob


def _judged(llm, result):
    """The probe's own result, after the check that came with it."""
    from . import check

    if not (isinstance(result, dict) and result.keys() == {"check", "result"}):
        return result
    if llm not in check.CHECKED:
        check.CHECKED[llm] = check.judge(llm, describe(llm), result["check"])
    return result["result"]


def _parts(items, size):
    return [items[start : start + size] for start in range(0, len(items), size)]


def _asked(variable):
    """The whole number in an environment variable; None if it is not set."""
    value = os.environ.get(variable)
    if value and not (value.isdigit() and int(value)):
        raise NotReady(f"{variable} is {value!r}; give a whole number of at least 1")
    return int(value) if value else None
