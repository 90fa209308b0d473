"""A sweep: the notebook of each unfinished run is executed, one at a time or one per GPU. Does not import torch.

Which runs there are says `plan`, which of them are unfinished `status`; `processes` executes their notebooks.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from ..models.gguf import WHEELS, fetched
from ..params import ParamsError, command, find_model
from ..results.asked import RunSpec
from ..results.defaults import as_cell
from ..results.provenance import State, superseded
from .plan import Plan
from .processes import Executor, Notebook, say
from .status import RunStatus, progress, status_of

_PIP = f"{sys.executable} -m pip install bitsandbytes"


def run_unfinished(plan: Plan) -> int:
    """Execute the unfinished runs, model by model, and print how each ended; the exit status.

    A run is unfinished if one of its results is missing or stale, or if its executed notebook is not there.
    A failed run is not tried again before the next sweep. Raises ParamsError for what cannot work, before anything
    runs.
    """
    runs = plan.runs()
    unfinished = [status for status in map(status_of, runs) if not status.finished]
    left = [status.run for status in unfinished]
    if plan.LIST:
        print(*(_command(plan, run) for run in left), sep="\n")
        return 0
    for one in unfinished:
        _refuse(plan, one)
    for name in WHEELS.keys() & {run.params["MODEL_ID"] for run in left}:
        fetched(name)  # here, where one line says what is needed, and not in each notebook
    gpus = gpus_of_runs(plan, left)
    for run in runs:
        with contextlib.suppress(OSError):  # which the run itself reports
            run.write_parameters()
    if left:
        shares = f": GPU {' | '.join(gpus)}" if gpus[0] else ""
        say(f"{len(left)} run{'s' * (len(left) > 1)} left, {len(gpus)} at a time{shares}")
    executor = Executor(_environments(gpus), plan.KEEP_GOING)
    counts = executor.counts

    def finished() -> str:
        return f"{len(runs) - len(left) + counts['finished']} of {len(runs)}"

    status = executor.execute([_notebook(run) for run in left], lambda: f" ({finished()})")
    counts["not started"] = len(left) - counts.total()
    others = "".join(f", {counts[how]} {how}" for how in ("failed", "stopped", "not started") if counts[how])
    say(f"{plan.folder}: {finished()} runs finished{others}")
    return status


def _refuse(plan: Plan, status: RunStatus) -> None:
    """Raise what keeps this run from being executed.

    ParamsError for quantised weights on a server or without bitsandbytes, and, unless KEEP_GOING, for prompts or
    weights that cannot be read; NotReady without a key; Superseded for a result that was made with other settings,
    unless REPLACE is set, with the commands that go on with these settings and that replace it.
    """
    run = status.run
    if quantization := run.params["QUANTIZATION"]:
        why = "" if find_spec("bitsandbytes") else f"bitsandbytes is not installed; {_PIP}"
        if run.on_server:
            why = "REMOTE is given too, and the server has chosen its weights"
        if why:
            raise ParamsError(f"{run.name}: QUANTIZATION is {quantization}, and {why}; or give --quantization null")
    if run.on_server:
        from ..remote.server import host_and_key  # loads torch

        host_and_key(run.remote)
    for name, state in status.states.items():
        if state.needs_replace and not run.params["REPLACE"]:
            stored = _stored(run, name, state)
            same = command("sweep", **plan.as_options | stored)
            anew = command("sweep", **plan.as_options | {"REPLACE": True})
            raise superseded(state, f": {anew}", f"\nto go on with its settings: {same}\n" if stored else "\n")
        if state.word == "missing" and state.reasons and not plan.KEEP_GOING:
            raise ParamsError(state.reasons[0])


def _stored(run: RunSpec, result: str, state: State) -> dict:
    """The options with which this stale result would be the one asked for; {} if there are none."""
    names = ("REVISION", "DTYPE", "QUANTIZATION", "N_EXAMPLES", "SOURCE", "SEED")
    stored = {name: state.meta[name.lower()] for name in names if name.lower() in state.meta}
    stored = {
        name: value for name, value in stored.items() if value not in (run.params[name], "drawn", "list")
    }  # no SOURCE to give
    with contextlib.suppress(ParamsError):
        if RunSpec(run.cell() | as_cell(stored)).states()[result].word == "done":
            return stored
    return {}


def _command(plan: Plan, run: RunSpec) -> str:
    """The command of a single run."""
    model = run.params["MODEL"]
    dataset = run.params["DATASET"]
    of_model = {} if find_model(model) else {"MODEL_ID": run.cell()["MODEL_ID"]}
    how = {"OUT": str(run.out), "PROBES": run.params["PROBES"]} | plan.given_for_runs
    return command("run", model, dataset, **of_model | how)


def gpus_of_runs(plan: Plan, runs: Sequence[RunSpec]) -> list[str]:
    """One entry per run at a time: its GPUs, such as "0,1", or "" if it has none of its own.

    There is one run at a time for each visible GPU, or for each TENSOR_PARALLEL of them. With fewer JOBS
    each has more GPUs; more JOBS than that are ignored. Raises ParamsError if there are too few GPUs.
    """
    ranks = max((run.params["TENSOR_PARALLEL"] for run in runs), default=1)
    gpus = visible_gpus() if any(not run.on_server for run in runs) else []
    if not gpus:
        return [""] * (plan.JOBS or 1)
    if len(gpus) < ranks:
        raise ParamsError(f"TENSOR_PARALLEL is {ranks}, and there are {len(gpus)} GPUs: {' '.join(gpus)}")
    n_runs = min(plan.JOBS or len(gpus), len(gpus) // ranks)
    size = len(gpus) // n_runs
    return [",".join(gpus[i * size : (i + 1) * size]) for i in range(n_runs)]


def visible_gpus() -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES, or all there are."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]
    if not shutil.which("nvidia-smi"):
        return []
    words = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True)
    return [] if done.returncode else done.stdout.split()


def _notebook(run: RunSpec) -> Notebook:
    """The notebook of a run."""
    return Notebook(
        run.name,
        "probe",
        run.folder,
        run.cell(),
        lacking=lambda: status_of(run).lacking,
        is_finished=lambda: status_of(run).finished,
        progress=lambda: progress(run),
        ranks=run.params["TENSOR_PARALLEL"],
    )


def _environments(gpus: Sequence[str]) -> list[dict]:
    """The environment variables for each of the runs side by side."""
    threads = {}
    if len(gpus) > 1:  # more threads than cores are far slower
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = {"OMP_NUM_THREADS": str(max(1, cores // len(gpus)))}
    return [threads | os.environ | ({"CUDA_VISIBLE_DEVICES": own} if own else {}) for own in gpus]
