"""A probe runs in one local nnsight session, or as journalled jobs on a server."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial

import torch
from nnsight import TransformersModel

from .models.check import SHORTCUTS, check_call, judge, name_of, running, undisturbed
from .models.errors import overflow
from .models.families import known
from .models.memory import DoesNotFit, is_full
from .models.parallel import check_same
from .progress import steps, ticked
from .remote.errors import ResultRefused
from .remote.job import Job
from .remote.journal import journal
from .remote.server import from_environment, host_of, tell_about
from .residual.budget import check_budget
from .residual.identities import GIVES, identities, verified
from .shapes import lacks, misfit, shapes_of

IDENTITIES, _OPTIONAL = shapes_of(GIVES), dict.fromkeys(SHORTCUTS, "L")
PROMPT_BLOCKS_PER_JOB = 1000  # prompts × blocks: 31 prompts of a 32-block model, 12 of an 80-block one


def run(
    probe: Callable,
    llm: TransformersModel,
    *args: object,
    remote: bool | str = False,
    over: str | None = None,
    gives: str = "",
    label: str = "",
    numbers: list[int] | None = None,
    **named: object,
) -> dict:
    """The dict of tensors that probe(llm, *args, **named) returns in one session, on the CPU.

    - remote: False, True (NDIF), "local" (serialised and run on this machine) or a URL
    - over: the name of a list among the arguments; results are stacked over its items. "layers" are sent to a server
      DEPTH_LIB_LAYERS_PER_JOB at a time (default: all). All others are prompts: one at a time locally, and
      DEPTH_LIB_PROMPTS_PER_JOB on a server (default: PROMPT_BLOCKS_PER_JOB / blocks)
    - gives: the keys of a result with their shapes, as in a `Schema`, which a server's result is checked against. P is
      the number of items, L that of blocks (or of the layers that are sent, R: and h_L after the last), T of `ids`;
      any other letter is one number; [P] is a list
    - numbers: the items' numbers in error messages
    - label: the text of the progress bar

    A probe with a parameter `tick` gets a function that moves the bar. Jobs are journalled: an interrupted run
    repeats at most one.

    Raises ValueError for results that are not finite, RemoteError, and ArchitectureError if the server's model
    fails its check.
    """
    arguments = dict(inspect.signature(partial(probe, llm)).bind(*args, **named).arguments)
    shapes = shapes_of(gives)
    label = label or _name(probe)
    check_budget(arguments.get("budget"))
    if remote and remote != "local":
        return _concatenated(_run_as_jobs(llm, probe, arguments, over, shapes, remote, label))
    if not llm.dispatched:
        raise ValueError(
            f"{name_of(llm)} was loaded for a server, without its weights; pass remote={known(llm).remote!r} to the "
            "probe too, and its result to dl.effective_depths or dl.paper; or load it with remote=False"
        )
    try:
        result = _concatenated(_run_locally(llm, probe, arguments, over, remote, label))
    except KeyboardInterrupt:  # without the frames of the model and the engine, which fill a notebook's screen
        raise KeyboardInterrupt(f"{label} was interrupted; call it again to compute it") from None
    except Exception as error:
        if is_full(error):
            raise DoesNotFit(
                f"{label}: out of memory; use shorter prompts or a smaller budget=, or load the model in "
                'dtype="bfloat16"'
            ) from error
        raise
    if over and (problem := _not_finite(result, arguments, over, shapes, numbers)):
        raise ValueError(f"{_name(probe)}: {problem}; weights are damaged{overflow(llm.dtype)}")
    return result


def _name(probe):
    """The public name of a function that travels."""
    return probe.__name__.removeprefix("measure_")


def _run_locally(llm, probe, arguments, over, remote, label):
    """The probe's local results: a list, for all items of `over` or for each prompt."""
    check_same(llm, _name(probe), [value for name, value in arguments.items() if name != "arch"])
    with undisturbed(), contextlib.ExitStack() as bar:
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


def _run_as_jobs(llm, probe, arguments, over, shapes, remote, label):
    """The probe's results on a server: a list, one journalled job for each part of the items."""
    host_of(remote)
    parts = [arguments]
    if over:
        kind, default = "LAYERS", len(arguments[over])
        if over != "layers":
            kind, default = "PROMPTS", PROMPT_BLOCKS_PER_JOB // arguments["arch"].n_layers or 1
        size = from_environment(f"DEPTH_LIB_{kind}_PER_JOB", int, default)
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
            accept = partial(_accept, llm, probe, part, over, shapes, job)
            done = job.result(partial(_send, llm, check, probe, part, job), accept)
            job.runs = done["model"]
            jobs.append(job)
            results.append(done["result"])
            if len(jobs) == len(parts):  # inside the lock, so that another process finds all of it or nothing
                book.finish(jobs)
    return results


def _send(llm, check, probe, arguments, job):
    """Submit the session."""
    job.checks = check is not None
    tell_about(job.host, job.api_key)
    with llm.session(backend=job):  # which only serialises it: the client knows the result by its name
        result = _where_the_model_is(llm, check, probe, arguments).save()  # noqa: F841


def _accept(llm, probe, arguments, over, shapes, job, done):
    """Raise ResultRefused for a result that is not what the probe gives or has numbers that are not finite, or
    ArchitectureError if the server's model fails its check."""
    sizes = {"L": arguments["arch"].n_layers} if "arch" in arguments else {}
    checked, of_check = done.get("check", {}), IDENTITIES if job.checks else {}
    problem = (
        lacks(["dtype"], done["model"]) or lacks(of_check, checked) or misfit(of_check | _OPTIONAL, checked, {**sizes})
    )
    if over == "layers":
        n_layers, last = len(arguments[over]), arguments[over][-1] == sizes.get("L", 0) - 1
        sizes |= {"L": n_layers, "R": n_layers + last}
    elif over:
        sizes["P"] = len(arguments[over])
    if "ids" in arguments:
        sizes["T"] = len(arguments["ids"])
    result = done["result"]
    problem = problem or lacks(shapes, result) or misfit(shapes, result, sizes)
    if not problem and "n_tokens" in shapes and (result["n_tokens"] < 1).any():
        problem = "n_tokens has values below 1"
    if problem:
        raise ResultRefused(
            f"{_name(probe)}: the server's result is not what was asked for: {problem}; tell those who run the server"
        )
    if over and (problem := _not_finite(result, arguments, over, shapes)):
        raise ResultRefused(
            f"{_name(probe)}: {problem} of the job, and is not kept; the server computes in "
            f"{done['model']['dtype']}: ask for a deployment in bfloat16 or float32"
        )
    known(llm).running = done["model"]
    if job.checks:
        judge(llm, done["check"])


def _where_the_model_is(llm, check, probe, arguments):
    """The probe's result and a description of the running model. Travels.

    check: None, or a function and its arguments to call first; shortcuts that it finds not to work are not taken.
    """
    done = {}
    if check:
        identities, of_sentence = check
        done["check"] = identities(llm, **of_sentence)
        if "arch" in arguments:
            arguments = arguments | {"arch": verified(arguments["arch"], done["check"])}
    done["result"] = probe(llm, **arguments)
    return done | {"model": running(llm)}


def _concatenated(results):
    """The results of all parts as one: tensors along their first axis, and lists."""
    if len(results) == 1:
        return results[0]
    parts = {key: [result[key] for result in results] for key in results[0]}
    return {key: torch.cat(values) if torch.is_tensor(values[0]) else sum(values, []) for key, values in parts.items()}


def _cut(arguments, over, size):
    """The arguments for each part, of `size` items of the argument `over`."""
    items = arguments[over]
    return [arguments | {over: items[start : start + size]} for start in range(0, len(items), size)]


def _not_finite(result, arguments, over, shapes, numbers=None):
    """The place of the first NaN or infinity; None if all numbers are finite."""
    for key, value in result.items():
        if torch.is_tensor(value) and not value.isfinite().all():
            first, *rest = (~value.isfinite()).nonzero()[0].tolist()
            if over == "layers":
                return f"{key} is not finite at layer {arguments['layers'][0] + first}"  # erasure has a row more
            layer = f", layer {rest[0]}" if shapes.get(key, "").startswith("P L") else ""
            return f"{key} is not finite at {over.removesuffix('s')} {numbers[first] if numbers else first}{layer}"


def check_model(llm: TransformersModel, remote: bool | str = False) -> dict:
    """Check on a short prompt that a model satisfies two identities, in its own dtype. The result is cached.

    >>> llm = dl.load_model("toy-4l")
    >>> dl.check_model(llm)["tolerance"]
    1e-05

    Identity 1: h_{l+1} = h_l + a_l + m_l for every block and token. Identity 2: lens(h_L) = the model's own logits.
    Errors are relative to what the block adds (identity 1) or to the largest logit (identity 2), minus the error
    that rounding alone can cause.

    - llm: from `load_model`
    - remote: True for NDIF, or the address of a server

    Returns a dict:

    - identity_1, identity_2: the largest errors
    - tolerance: the limit for identity 1: 1e-5, or a quarter of the dtype's machine epsilon if that is larger

    It also checks that a_l depends on earlier tokens and m_l does not, and warns if probes must take a slower path.

    Raises ArchitectureError, which says what failed, where and by how much.
    Cost: two forward passes over a small batch of 4-token sequences.
    """
    checked, elsewhere = known(llm).checked, remote not in (False, "local")
    if checked and not (llm.dispatched and elsewhere):  # whose weights are here is refused below
        return checked
    identities, arguments = check_call(llm)
    return judge(llm, run(identities, llm, **arguments, remote=remote, gives=GIVES))
