"""A probe runs in one nnsight session here, or as journalled jobs on a server."""

import inspect
import os
from collections.abc import Callable
from functools import partial

import torch
from nnsight import TransformersModel

from .models.check import SHORTCUTS, check_call, judge, name_of, not_computed, running
from .models.errors import ArchitectureError
from .models.families import known
from .models.parallel import check_same
from .probes.identities import verified
from .progress import steps, ticked
from .remote.backend import JobBackend, complete, say
from .remote.crossing import FLOPS, PER_SECOND, TOO_LONG, crossing, seconds
from .remote.errors import JobFailed, NotReady, RemoteError, ResultNotFinite
from .remote.journal import Entry, finish
from .remote.travel import settings_hash

PROMPT_BLOCKS_PER_JOB = 1000  # prompts × blocks: 31 prompts of a 32-block model, 12 of an 80-block one


def run(
    probe: Callable,
    llm: TransformersModel,
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
    DEPTH_LIB_LAYERS_PER_JOB of them in a job (default: all). If it is any other, they are prompts, of which this
    machine does one at a time, so that a progress bar can move, and a server `per_job` in a job (default:
    DEPTH_LIB_PROMPTS_PER_JOB, else PROMPT_BLOCKS_PER_JOB / blocks). A probe with a parameter `tick` is given on this
    machine a function that moves the bar. Each job is journalled: an interrupted run, called again, repeats at most
    one. Raises ValueError for results that are not finite (if over is given), depth_lib.remote.RemoteError and its
    kinds, and ArchitectureError if the server's model does not satisfy the probes' identities (part of the first job).
    """
    signature = inspect.signature(partial(probe, llm))
    arguments = dict(signature.bind(*args, **named).arguments)
    label = label or probe.__name__.replace("_", " ")
    # on a server the probe may run in another process than the model (see `residual_stream._fetched`)
    if "arch" in arguments:
        arguments["arch"] = arguments["arch"] | {"fetched": {} if remote and remote != "local" else None}
    if remote and remote != "local":
        jobs = _jobs(arguments, over, per_job)
        by_variable = over is not None and per_job is None
        return joined(_on_server(llm, probe, jobs, over, remote, label, by_variable))
    if not llm.dispatched:
        raise ValueError(
            f"{name_of(llm)} was loaded for a server, without its weights; give remote=True to the probe too, or load "
            "it with remote=False"
        )
    result = _all_here(llm, probe, arguments, over, remote, label)
    if over and (found := _not_finite(result, arguments, over)):
        raise ValueError(
            f"{probe.__name__}: {found}; numbers overflow in {llm.dtype}, or weights are damaged: load it with "
            'dtype="float32" or "bfloat16"'
        )
    return result


def _all_here(llm, probe, arguments, over, remote, label):
    """What the probe returns on this machine."""
    if remote == "local":
        return _here(llm, probe, arguments, remote)
    check_same(llm, probe.__name__, [value for name, value in arguments.items() if name != "arch"])
    if "tick" in inspect.signature(probe).parameters:
        with ticked(label) as tick:
            return _here(llm, probe, arguments | {"tick": tick}, remote)
    parts = [arguments] if over in (None, "layers") else _cut(arguments, over, 1)
    return joined([_here(llm, probe, part, remote) for part in steps(parts, label)])


def joined(results: list[dict]) -> dict:
    """The results of a call's parts as one: tensors along their first axis, and lists."""
    if len(results) == 1:
        return results[0]
    parts = {key: [result[key] for result in results] for key in results[0]}
    return {key: torch.cat(values) if torch.is_tensor(values[0]) else sum(values, []) for key, values in parts.items()}


def _cut(arguments, over, size):
    """The arguments as one dict for each part, of `size` items of the argument `over`."""
    items = arguments[over]
    return [arguments | {over: items[start : start + size]} for start in range(0, len(items), size)]


def _jobs(arguments, over, per_job):
    """The arguments of each job on a server."""
    if over is None:
        return [arguments]
    if over == "layers":
        default = len(arguments[over])
    else:
        default = max(1, PROMPT_BLOCKS_PER_JOB // arguments["arch"]["n_layers"])
    return _cut(arguments, over, per_job or _whole_number(_size_variable(over)) or default)


def _size_variable(over):
    return "DEPTH_LIB_LAYERS_PER_JOB" if over == "layers" else "DEPTH_LIB_PROMPTS_PER_JOB"


def _whole_number(variable):
    """The whole number in an environment variable; None if it is not set."""
    value = os.environ.get(variable)
    if value and not (value.isdecimal() and int(value)):
        raise NotReady(f"{variable} is {value!r}; give a whole number of at least 1")
    return int(value) if value else None


def _here(llm, probe, arguments, remote):
    measured = _in_session(llm, {"result": (probe, arguments)}, remote=remote)
    known(llm).running = measured["model"]
    return measured["results"]["result"]


def _in_session(llm, calls, **how):
    """What each of the named calls (function, arguments) returns, and what the model there is."""
    result = None  # stays so where the session is only serialised; the client knows it by this name
    with llm.session(**how):
        results = _called(llm, calls)
        # not by nnsight.save: requests may not name the module nnsight
        result = {"model": running(llm), "results": results}.save()
    return result


def _called(llm, calls):
    """What each call returns; a probe takes no shortcut that the check before it found not to work."""
    results = {}
    for name, (function, arguments) in calls.items():
        if "check" in results and "arch" in arguments:
            arguments = arguments | {"arch": verified(arguments["arch"], results["check"])}
        results[name] = function(llm, **arguments)
    return results


def _on_server(llm, probe, jobs, over, remote, label, by_variable):
    """What the probe returns for each job, journalled and one after the other.

    by_variable: whether an environment variable decides how many items of `over` a job has.
    """
    results, entries = [], []
    for number, arguments in enumerate(steps(jobs, label), 1):
        smaller, n_items = "use shorter texts", len(arguments[over]) if by_variable else 1
        if n_items > 1:
            smaller = f"set {_size_variable(over)} to less than {n_items}"
        backend = JobBackend(llm, remote, smaller)
        entry = Entry(
            settings_hash(
                probe,
                args=arguments,
                host=backend.host,
                model=backend.model_key,
                env=backend.env,
                names=getattr(llm, "_rename", None),
            ),
            probe=probe.__qualname__,
            host=backend.host,
            model=backend.model_key,
            part=f"{number} of {len(jobs)}" if len(jobs) > 1 else None,
        )
        with entry.locked():
            send = partial(_send, llm, probe, arguments, backend)
            accept = partial(_check_finite, probe, arguments, over)
            try:
                measured = complete(backend, entry, send, accept)
            except JobFailed as error:
                if known(llm).checked or "already ran past" not in str(error):
                    raise
                raise not_computed(llm, error) from error
            known(llm).running = entry.runs = measured["model"]
            if not known(llm).checked and "check" in measured["results"]:
                try:
                    judge(llm, measured["results"]["check"])
                except ArchitectureError as error:
                    entry.note("ended", problem=str(error))  # another deployment may be the model that was found
                    raise
            results.append(measured["results"]["result"])
            entries.append(entry)
            if number == len(jobs):  # inside the lock, whose next holder finds what is left, and not half of it
                finish(entries)
    return results


def _send(llm, probe, arguments, backend):
    """Submit the session; the model's check goes along if nobody has made it yet."""
    n_bytes, _, n_tokens = crossing(probe.__name__, arguments, llm.config.get_text_config().vocab_size)
    takes = seconds(n_bytes, n_tokens, sum(weight.numel() for weight in llm.blocks[0].parameters()))
    if takes > TOO_LONG:
        say(
            f"{probe.__name__}: about {takes / 3600:.1f} hours in NDIF's sandbox, where a job of an ordinary key runs, "
            f"if {n_bytes / 1e9:,.0f} GB cross its socket at {PER_SECOND / 1e9:.0f} GB/s and its GPU does "
            f"{FLOPS / 1e12:.0f} TFLOP/s, which are guesses; give fewer or shorter prompts"
        )
    if "arch" in arguments:
        found, arch = known(llm).found, arguments["arch"]
        arguments = arguments | {"arch": arch | {name: arch[name] and getattr(found, name) for name in SHORTCUTS}}
    calls = {"result": (probe, arguments)}
    identities, of_sentence = check_call(llm)
    if not known(llm).checked and probe is not identities:
        calls = {"check": (identities, of_sentence)} | calls
    _in_session(llm, calls, backend=backend)


def _check_finite(probe, arguments, over, found):
    """ResultNotFinite names the probe, the layer and the number."""
    if over and (problem := _not_finite(found["results"]["result"], arguments, over)):
        raise ResultNotFinite(
            f"{probe.__name__}: {problem} of the job, and is not kept; the server computes in "
            f"{found['model']['dtype']} ({found['model']['weights']}): ask for a deployment in bfloat16 or float32, or "
            "run it where you choose the dtype"
        )


def _not_finite(result, arguments, over):
    """The first number that is NaN or infinite, and where it is; None if all are finite."""
    for key, value in result.items():
        if isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
            first = torch.nonzero(~torch.isfinite(value))[0].tolist()
            where = f"prompt {first[0]}" + (f", layer {first[1]}" if len(first) > 1 else "")
            if over == "layers":
                where = f"layer {arguments['layers'][0] + first[0]}"
            return f"{key} is {value[tuple(first)].item()} at {where}"


def check_model(llm: TransformersModel, remote: bool | str = False) -> dict:
    """Measure both identities on a short prompt, in the running model's own dtype; once per loaded model.

    Identity 1: h_{l+1} = h_l + a_l + m_l for every block and token (relative to what the block adds, without what
    rounding explains). Identity 2: lens(h_L) = the model's own logits (relative to the largest). Further that a depends
    on earlier tokens and m does not, but through a in sequential blocks; and of the ways to compute less (a pass that
    starts at a block, rows that join, suffixes that share a sequence) those that work: a warning names the others.

    Returns {"identity_1", "identity_2": the largest errors, "tolerance": of identity 1}: 1e-5, or a quarter of the
    rounding unit of a narrower dtype. Raises ArchitectureError naming what failed, by how much and where, and on a
    server RemoteError and its kinds.
    """
    if not known(llm).checked:
        identities, arguments = check_call(llm)
        try:
            found = run(identities, llm, **arguments, remote=remote)
        except RemoteError:
            raise
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            raise not_computed(llm, error) from error
        judge(llm, found)
    return known(llm).checked
