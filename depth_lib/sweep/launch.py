"""A sweep executes the notebook of each unfinished run; JOBS and GPUS set how many run side by side."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from ..params import NAMED_SOURCES, ParamsError, find_model
from ..results.schemas import ARTIFACTS
from .defaults import as_cell, in_project
from .plan import Plan
from .processes import Executor, Notebook, say
from .spec import RunSpec
from .status import progress, status_of, write_parameters


def run_unfinished(plan: Plan) -> int:
    """Execute the unfinished runs, model by model, and print how each ended; the exit status.

    A failed run is not tried again before the next sweep. Raises ParamsError for what cannot work, before anything
    runs.
    """
    try:
        launch = shlex.split(plan.LAUNCH)
    except ValueError as error:
        raise ParamsError(f"LAUNCH is {plan.LAUNCH}, which is no command ({error}); close its quotes") from None
    runs = plan.runs()
    left = [run for run in runs if not status_of(run).finished]
    if plan.LIST:
        print(*(_command(plan, run) for run in left), sep="\n")
        return 0
    gpus = gpus_of_runs(plan, runs)
    _check(left, plan.KEEP_GOING)
    plan.begin(runs)
    for run in runs:
        with contextlib.suppress(OSError):  # which the run itself reports
            write_parameters(run)
    if left:
        shares = f": GPU {' | '.join(gpus)}" if gpus[0] else ""
        say(f"{len(left)} run{'s' * (len(left) > 1)} left, {len(gpus)} at a time{shares}")
    executor = Executor(_environments(plan, gpus), plan.KEEP_GOING)
    counts = executor.counts

    def finished() -> str:
        return f"{len(runs) - len(left) + counts['finished']} of {len(runs)}"

    status = executor.execute([_notebook(run, launch) for run in left], lambda: f" ({finished()})")
    counts["not started"] = len(left) - counts.total()
    others = "".join(f", {counts[how]} {how}" for how in ("failed", "stopped", "not started") if counts[how])
    say(f"{plan.folder}: {finished()} runs finished{others}")
    return status


def _check(runs: Sequence[RunSpec], keep_going: bool) -> None:
    """Raise ParamsError for quantised weights on a server or without bitsandbytes, NotReady without
    a key, and, unless the other runs are to go on, PromptError for a file of prompts that cannot be read."""
    for run in runs:
        if quantization := run.params["QUANTIZATION"]:
            install = f"bitsandbytes is not installed; {sys.executable} -m pip install bitsandbytes"
            why = "" if find_spec("bitsandbytes") else install
            if run.on_server:
                why = "REMOTE is given too, and the server has chosen its weights"
            if why:
                raise ParamsError(f"{run.name}: QUANTIZATION is {quantization}, and {why}, or give --quantization null")
        if not keep_going and run.source not in (*NAMED_SOURCES, "drawn"):
            probes = [ARTIFACTS[probe] for probe in run.params["PROBES"] if ARTIFACTS[probe].reads_prompts]
            for by_level in {probe.by_level for probe in probes}:
                _ = run.examples if by_level else run.prompts
    for host in {run.remote for run in runs if run.on_server}:
        from ..remote.server import host_and_key  # loads torch

        host_and_key(host)


def gpus_of_runs(plan: Plan, runs: Sequence[RunSpec]) -> list[str]:
    """For each of the runs at a time its GPUs, such as "0,1"; "" if it has none of its own.

    The GPUs in GPUS, or all there are, are shared evenly among JOBS runs; without JOBS, each run has as many as
    TENSOR_PARALLEL. Raises ParamsError if there are too few.
    """
    ranks = max(run.params["TENSOR_PARALLEL"] for run in runs)
    here = not plan.LAUNCH and any(run.remote in (False, "local") for run in runs)
    found = _gpus() if here else []
    if plan.GPUS and here and not found:
        raise ParamsError(f"GPUS is {' '.join(plan.GPUS)}, and nvidia-smi finds no GPU here; leave out GPUS")
    gpus = ",".join(plan.GPUS).split(",") if plan.GPUS else found
    if not gpus:
        return [""] * (plan.JOBS or 1)
    if len(gpus) < ranks:
        raise ParamsError(f"TENSOR_PARALLEL is {ranks}, and there are {len(gpus)} GPUs: {' '.join(gpus)}")
    n_runs = min(plan.JOBS or len(gpus), len(gpus) // ranks)
    size = len(gpus) // n_runs
    return [",".join(gpus[i * size : (i + 1) * size]) for i in range(n_runs)]


def _gpus() -> list[str]:
    """The GPUs that a run can see."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu]
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    return [] if done.returncode else done.stdout.split()


def _command(plan: Plan, run: RunSpec) -> str:
    """The command of a single run of the plan."""
    name = run.params["MODEL"]
    return plan.command("run", name if find_model(name) else run.params["MODEL_ID"], run.params["DATASET"])


def _notebook(run: RunSpec, launch: Sequence[str]) -> Notebook:
    """The notebook of a run. Its paths are absolute, so that it can be executed again from its own folder."""
    cell = as_cell(run.params) | {"OUT": os.path.abspath(run.out)}
    if run.checkpoint:
        cell["MODEL_ID"] = os.path.abspath(run.checkpoint)
    if cell["SOURCE"] not in NAMED_SOURCES:
        cell["SOURCE"] = os.path.abspath(in_project(cell["SOURCE"]))
    return Notebook(
        run.name,
        "probe",
        run.folder,
        cell,
        results=lambda: map(run.path, run.params["PROBES"]),
        is_finished=lambda: status_of(run).finished,
        progress=lambda: progress(run),
        ranks=run.params["TENSOR_PARALLEL"],
        launch=launch,
    )


def _environments(plan: Plan, gpus: Sequence[str]) -> list[dict]:
    """The environment variables for each of the runs side by side."""
    threads = {}
    if len(gpus) > 1 and not plan.LAUNCH:  # more threads than cores are far slower
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = {"OMP_NUM_THREADS": str(max(1, cores // len(gpus)))}
    return [threads | os.environ | ({"CUDA_VISIBLE_DEVICES": own} if own else {}) for own in gpus]
