"""A probe runs in one nnsight session here, or as journalled jobs on a server."""

import contextlib
import inspect
import os
from collections.abc import Callable
from functools import partial

import torch
from nnsight import TransformersModel

from .models.check import ONE_AT_A_TIME, SHORTCUTS, check_call, judge, name_of, running
from .models.families import known
from .models.parallel import check_same
from .progress import steps, ticked
from .remote.errors import ResultRefused
from .remote.job import Job
from .remote.journal import journal
from .remote.server import tell_about
from .residual.budget import check_budget
from .residual.identities import identities, verified

PROMPT_BLOCKS_PER_JOB = 1000  # prompts × blocks: 31 prompts of a 32-block model, 12 of an 80-block one


def run(
    probe: Callable,
    llm: TransformersModel,
    *args: object,
    remote: bool | str = False,
    over: str | None = None,
    label: str = "",
    numbers: list[int] | None = None,
    **named: object,
) -> dict:
    """probe(llm, *args, **named) in one session; returns its dict of tensors on the CPU.

    remote: False (this machine), True (NDIF), "local" (serialised and run here, to try a remote run) or a host's URL.
    over: the name of the argument, a list, whose items the results are stacked over. If it is "layers", a server does
    DEPTH_LIB_LAYERS_PER_JOB of them in a job (default: all). If it is any other, they are prompts, of which this
    machine does one at a time, so that a progress bar can move, and a server DEPTH_LIB_PROMPTS_PER_JOB in a job
    (default: PROMPT_BLOCKS_PER_JOB / blocks). numbers: what errors call the items (default: by their places). A probe
    with a parameter `tick` is given on this machine a function that moves the bar. Each job is journalled: an
    interrupted run, called again, repeats at most one. Raises ValueError for results that are not finite (if over is
    given), depth_lib.remote.RemoteError and its kinds, and ArchitectureError if the server's model does not satisfy the
    probes' identities (part of the first job).
    """
    arguments = dict(inspect.signature(partial(probe, llm)).bind(*args, **named).arguments)
    label = label or _name(probe)
    check_budget(arguments.get("budget"))
    if remote and remote != "local":
        return _concatenated(_run_as_jobs(llm, probe, arguments, over, remote, label))
    if not llm.dispatched:
        raise ValueError(
            f"{name_of(llm)} was loaded for a server, without its weights; give remote=True to the probe too, and "
            "its result to dl.effective_depths or dl.paper; or load it with remote=False"
        )
    try:
        result = _concatenated(_run_locally(llm, probe, arguments, over, remote, label))
    except KeyboardInterrupt:  # without the frames of the model and the engine, which fill a notebook's screen
        raise KeyboardInterrupt(f"{label} was interrupted; call it again to compute it") from None
    if over and (problem := _not_finite(result, arguments, over, numbers)):
        raise ValueError(
            f"{_name(probe)}: {problem}; weights are damaged, or numbers overflow in {llm.dtype}: load it with "
            'dtype="float32" or "bfloat16"'
        )
    return result


def _name(probe):
    """The public name of a function that travels."""
    return probe.__name__.removeprefix("measure_")


def _run_locally(llm, probe, arguments, over, remote, label):
    """What the probe returns here: a list, of all items of `over` together or of each prompt."""
    check_same(llm, _name(probe), [value for name, value in arguments.items() if name != "arch"])
    with ONE_AT_A_TIME, torch.inference_mode(False), contextlib.ExitStack() as bar:
        parts = [arguments]
        if "tick" in inspect.signature(probe).parameters and not remote:
            parts = [arguments | {"tick": bar.enter_context(ticked(label))}]
        elif over not in (None, "layers"):
            parts = steps(_cut(arguments, over, 1), label)
        results = []
        for part in parts:
            with llm.session(remote=remote):
                # not by nnsight.save: requests may not name the module nnsight
                result = _where_the_model_is(llm, None, probe, part).save()
            known(llm).running = result["model"]
            results.append(result["result"])
        return results


def _run_as_jobs(llm, probe, arguments, over, remote, label):
    """What the probe returns on a server: a list, of each part of the items, a journalled job each."""
    parts = [arguments]
    if over:
        kind, default = "LAYERS", len(arguments[over])
        if over != "layers":
            kind, default = "PROMPTS", PROMPT_BLOCKS_PER_JOB // arguments["arch"].n_layers
        size = int(os.environ.get(f"DEPTH_LIB_{kind}_PER_JOB") or default)
        if size < 1:
            raise ValueError(f"DEPTH_LIB_{kind}_PER_JOB is {size}; set it to 1 or more, or unset it")
        parts = _cut(arguments, over, size)
    # the model's check goes along if nobody has made it yet
    check = None if known(llm).checked or probe is identities else check_call(llm)
    book, jobs, results = journal(), [], []
    for part in steps(parts, label):
        asked = part
        if "arch" in part:
            # the probe may run in another process than the model (see `residual_stream._fetched`)
            arch = part["arch"].but(fetched={})
            part, asked = part | {"arch": arch}, part | {"arch": vars(arch.but(**dict.fromkeys(SHORTCUTS)))}
        job = Job(llm, remote, book.folder, probe, asked)
        with job.held():
            done = job.result(partial(_send, llm, check, probe, part, job), partial(_accept, llm, probe, part, over))
            job.runs = done["model"]
            jobs.append(job)
            results.append(done["result"])
            if len(jobs) == len(parts):  # inside the lock, so that another process finds all of it or nothing
                book.finish(jobs)
    return results


def _send(llm, check, probe, arguments, job):
    """Submit the session."""
    tell_about(job.host, job.api_key)
    with llm.session(backend=job):  # which only serialises it: the client knows the result by its name
        result = _where_the_model_is(llm, check, probe, arguments).save()  # noqa: F841


def _accept(llm, probe, arguments, over, done):
    """Raise ResultRefused for numbers that are not finite, or ArchitectureError if the server's model fails its
    check."""
    if over and (problem := _not_finite(done["result"], arguments, over)):
        raise ResultRefused(
            f"{_name(probe)}: {problem} of the job, and is not kept; the server computes in "
            f"{done['model']['dtype']}: ask for a deployment in bfloat16 or float32"
        )
    known(llm).running = done["model"]
    if "check" in done:
        judge(llm, done["check"])


def _where_the_model_is(llm, check, probe, arguments):
    """What travels: the probe's result and a description of the model that computed it. check: None, or a function and
    its arguments that is called first: the probe takes no shortcut that it finds not to work."""
    done = {}
    if check:
        identities, of_sentence = check
        done["check"] = identities(llm, **of_sentence)
        if "arch" in arguments:
            arguments = arguments | {"arch": verified(arguments["arch"], done["check"])}
    done["result"] = probe(llm, **arguments)
    return done | {"model": running(llm)}


def _concatenated(results):
    """The results of a call's parts as one: tensors along their first axis, and lists."""
    if len(results) == 1:
        return results[0]
    parts = {key: [result[key] for result in results] for key in results[0]}
    return {key: torch.cat(values) if torch.is_tensor(values[0]) else sum(values, []) for key, values in parts.items()}


def _cut(arguments, over, size):
    """The arguments as one dict for each part, of `size` items of the argument `over`."""
    items = arguments[over]
    return [arguments | {over: items[start : start + size]} for start in range(0, len(items), size)]


def _not_finite(result, arguments, over, numbers=None):
    """Where the first number is that is NaN or infinite; None if all are finite."""
    for key, value in result.items():
        if torch.is_tensor(value) and not value.isfinite().all():
            first, *rest = (~value.isfinite()).nonzero()[0].tolist()
            if over == "layers":
                return f"{key} is not finite at layer {arguments['layers'][0] + first}"  # erasure has a row more
            of_layers = rest and value.shape[1] - arguments["arch"].n_layers in (0, 1)
            layer = f", layer {rest[0]}" if of_layers else ""
            return f"{key} is not finite at {over.removesuffix('s')} {numbers[first] if numbers else first}{layer}"


def check_model(llm: TransformersModel, remote: bool | str = False) -> dict:
    """Measure both identities on a short prompt, in the running model's own dtype; once per loaded model.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.check_model(llm)["tolerance"]
    1e-05

    Identity 1: h_{l+1} = h_l + a_l + m_l for every block and token (relative to what the block adds, without what
    rounding explains). Identity 2: lens(h_L) = the model's own logits (relative to the largest). Further that a depends
    on earlier tokens and m does not, but through a in sequential blocks; and of the ways to compute less (a pass that
    starts at a block, rows that join) those that work: a warning names the others.

    Returns {"identity_1", "identity_2": the largest errors, "tolerance": of identity 1}: 1e-5, or a quarter of the
    rounding unit of a narrower dtype. Raises ArchitectureError naming what failed, by how much and where, and on a
    server RemoteError and its kinds.
    Cost: two forward passes of a few rows of 4 tokens, once per model.
    """
    if checked := known(llm).checked:
        return checked
    identities, arguments = check_call(llm)
    return judge(llm, run(identities, llm, **arguments, remote=remote))
