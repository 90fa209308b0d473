"""A probe runs in one nnsight session here, or as journalled jobs on a server."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial

import torch
from nnsight import TransformersModel

from .models.check import ONE_AT_A_TIME, SHORTCUTS, check_call, judge, name_of, not_computed, running
from .models.errors import ArchitectureError
from .models.families import known
from .models.parallel import check_same
from .probes.identities import verified
from .progress import steps, ticked
from .remote.errors import JobFailed, RemoteError, ResultRefused
from .remote.job import Job
from .remote.journal import journal
from .remote.server import positive, tell_about

PROMPT_BLOCKS_PER_JOB = 1000  # prompts × blocks: 31 prompts of a 32-block model, 12 of an 80-block one


def run(
    probe: Callable,
    llm: TransformersModel,
    *args: object,
    remote: bool | str = False,
    over: str | None = None,
    label: str = "",
    per_job: int | None = None,
    numbers: list[int] | None = None,
    **named: object,
) -> dict:
    """probe(llm, *args, **named) in one session; returns its dict of tensors on the CPU.

    remote: False (this machine), True (NDIF), "local" (serialised and run here: a rehearsal of NDIF) or a host's URL.
    over: the name of the argument, a list, whose items the results are stacked over. If it is "layers", a server does
    DEPTH_LIB_LAYERS_PER_JOB of them in a job (default: all). If it is any other, they are prompts, of which this
    machine does one at a time, so that a progress bar can move, and a server `per_job` in a job (default:
    DEPTH_LIB_PROMPTS_PER_JOB, else PROMPT_BLOCKS_PER_JOB / blocks). numbers: what errors call the items (default: by
    their places). A probe with a parameter `tick` is given on this
    machine a function that moves the bar. Each job is journalled: an interrupted run, called again, repeats at most
    one. Raises ValueError for results that are not finite (if over is given), depth_lib.remote.RemoteError and its
    kinds, and ArchitectureError if the server's model does not satisfy the probes' identities (part of the first job).
    """
    arguments = dict(inspect.signature(partial(probe, llm)).bind(*args, **named).arguments)
    label = label or probe.__name__.replace("_", " ")
    on_server = bool(remote) and remote != "local"
    # on a server the probe may run in another process than the model (see `residual_stream._fetched`)
    if "arch" in arguments:
        arguments["arch"] = arguments["arch"].but(fetched={} if on_server else None)
    if on_server:
        return concatenated(run_as_jobs(llm, probe, _jobs(arguments, over, per_job), over, remote, label))
    if not llm.dispatched:
        raise ValueError(
            f"{name_of(llm)} was loaded for a server, without its weights; give remote=True to the probe too, or load "
            "it with remote=False"
        )
    result = concatenated(run_locally(llm, probe, arguments, over, remote, label))
    if over and (found := _not_finite(result, arguments, over, numbers)):
        raise ValueError(
            f"{probe.__name__}: {found}; numbers overflow in {llm.dtype}, or weights are damaged: load it with "
            'dtype="float32" or "bfloat16"'
        )
    return result


def run_locally(
    llm: TransformersModel, probe: Callable, arguments: dict, over: str | None, remote: bool | str, label: str
) -> list[dict]:
    """What the probe returns here, for all items of `over` or for each prompt."""
    check_same(llm, probe.__name__, [value for name, value in arguments.items() if name != "arch"])
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


def run_as_jobs(
    llm: TransformersModel, probe: Callable, parts: list[dict], over: str | None, remote: bool | str, label: str
) -> list[dict]:
    """What the probe returns on a server for each part, a journalled job each, one after the other."""
    book, jobs, results = journal(), [], []
    for number, arguments in enumerate(steps(parts, label), 1):
        part = f"{number} of {len(parts)}" if len(parts) > 1 else None
        job = Job(llm, remote, book.folder, probe, _asked(arguments), part)
        with job.held():
            try:
                done = job.result(
                    partial(_send, llm, probe, arguments, job), partial(_check_finite, probe, arguments, over)
                )
            except JobFailed as error:
                if known(llm).checked or "already ran past" not in str(error):
                    raise
                raise not_computed(llm, error) from error
            known(llm).running = job.runs = done["model"]
            if not known(llm).checked and "check" in done:
                try:
                    judge(llm, done["check"])
                except ArchitectureError as error:
                    job.keep("ended", problem=str(error))  # another deployment may be the model that was found
                    raise
            jobs.append(job)
            results.append(done["result"])
            if number == len(parts):  # inside the lock, so that another process finds all of it or nothing
                book.finish(jobs)
    return results


def _asked(arguments):
    """What a call asks for, without which shortcuts were found to work, as that is found by its first job."""
    if "arch" not in arguments:
        return arguments
    return arguments | {"arch": {name: x for name, x in vars(arguments["arch"]).items() if name not in SHORTCUTS}}


def _send(llm, probe, arguments, job):
    """Submit the session; the model's check goes along if nobody has made it yet."""
    tell_about(job.host, job.api_key)
    if "arch" in arguments:
        found, arch = known(llm).found, arguments["arch"]
        works = {name: getattr(arch, name) and getattr(found, name) for name in SHORTCUTS}
        arguments = arguments | {"arch": arch.but(**works)}
    check = check_call(llm)
    if known(llm).checked or probe is check[0]:
        check = None
    with llm.session(backend=job):  # which only serialises it: the client knows the result by its name
        result = _where_the_model_is(llm, check, probe, arguments).save()  # noqa: F841


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


def concatenated(results: list[dict]) -> dict:
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
        per_job = per_job or positive("DEPTH_LIB_LAYERS_PER_JOB", len(arguments[over]))
    else:
        default = max(1, PROMPT_BLOCKS_PER_JOB // arguments["arch"].n_layers)
        per_job = per_job or positive("DEPTH_LIB_PROMPTS_PER_JOB", default)
    return _cut(arguments, over, per_job)


def _check_finite(probe, arguments, over, found):
    """Raise ResultRefused, which names the probe, the prompt and the layer."""
    if over and (problem := _not_finite(found["result"], arguments, over)):
        raise ResultRefused(
            f"{probe.__name__}: {problem} of the job, and is not kept; the server computes in "
            f"{found['model']['dtype']} ({found['model']['weights']}): ask for a deployment in bfloat16 or float32, or "
            "run it where you choose the dtype"
        )


def _not_finite(result, arguments, over, numbers=None):
    """Where the first number is that is NaN or infinite; None if all are finite."""
    for key, value in result.items():
        if isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
            first, *rest = torch.nonzero(~torch.isfinite(value))[0].tolist()
            if over == "layers":
                where = f"layer {arguments['layers'][0] + first}"  # erasure has a row more, of what leaves the last
            else:
                where = f"prompt {numbers[first] if numbers else first}" + (f", layer {rest[0]}" if rest else "")
            return f"{key} is not finite at {where}"


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
