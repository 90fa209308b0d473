"""A sweep: each unfinished run is a notebook; JOBS or GPUS say how many run side by side."""

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from ..params import NAMED_SOURCES, ParamsError, as_texts, command, find_model
from .plan import Plan
from .processes import Notebook, Runner, say
from .spec import RunSpec, in_project
from .status import RUNNING, progress, status_of, write_parameters


def run_unfinished(plan: Plan) -> int:
    """Run what is missing or stale, model by model, and print how each run ended; the exit status.

    What failed stays failed until the next sweep. Raises ParamsError for a LAUNCH that is no command, before anything
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
    _check(left)
    plan.begin(runs)
    for run in runs:
        with contextlib.suppress(OSError):  # which the run itself reports
            write_parameters(run)
    if left:
        shares = f": GPU {' | '.join(gpus)}" if gpus[0] else ""
        say(f"{len(left)} run{'s' * (len(left) > 1)} left, {len(gpus)} at a time{shares}")
    n_before = len(runs) - len(left)
    runner = Runner(_environments(plan, gpus), plan.KEEP_GOING)
    runner.run([_notebook(run, launch) for run in left], lambda: f" ({n_before + runner.n_finished} of {len(runs)})")
    finished = n_before + runner.n_finished
    counts = {"failed": runner.n_failed, "stopped": runner.n_stopped}
    counts["not started"] = len(runs) - finished - sum(counts.values())
    others = "".join(f", {count} {how}" for how, count in counts.items() if count)
    say(f"{plan.folder}: {finished} of {len(runs)} runs finished{others}")
    return 128 + runner.signal if runner.signal else int(finished < len(runs))


def _check(runs: Sequence[RunSpec]) -> None:
    """Raise ParamsError or NotReady for what no kernel can do: quantised weights on a server, or without bitsandbytes,
    and a server without a key."""
    for run in runs:
        quantization = run.asked["QUANTIZATION"]
        if quantization and run.on_server:
            why = "REMOTE is given too, and the server has chosen its weights"
        elif quantization and not find_spec("bitsandbytes"):
            why = "bitsandbytes is not installed; pip install bitsandbytes"
        else:
            why = ""
        if why:
            raise ParamsError(f"{run.name}: QUANTIZATION is {quantization}, and {why}, or give --quantization null")
    for host in {run.remote for run in runs if run.on_server}:
        from ..remote.backend import host_and_key  # loads torch

        host_and_key(host)


def gpus_of_runs(plan: Plan, runs: Sequence[RunSpec]) -> list[str]:
    """The GPUs of each of the runs at a time ("0,1"); "" where a run has none of its own.

    GPUS="0,1 2,3" says it. Else the GPUs, those of GPUS or all there are, are shared out evenly among JOBS runs;
    without JOBS, each run has as many as TENSOR_PARALLEL. Raises ParamsError if there are too few.
    """
    ranks = max(run.asked["TENSOR_PARALLEL"] for run in runs)
    here = not plan.LAUNCH and any(run.remote in (False, "local") for run in runs)
    found = _gpus() if here else []
    if plan.GPUS and here and not found:
        raise ParamsError(f"GPUS is {' '.join(plan.GPUS)}, and nvidia-smi finds no GPU here; leave out GPUS")
    if len(plan.GPUS) > 1 and "," in "".join(plan.GPUS):
        return plan.GPUS[: plan.JOBS or None]
    gpus = " ".join(plan.GPUS).replace(",", " ").split() or found
    if not gpus:
        return [""] * (plan.JOBS or 1)
    if len(gpus) < ranks:
        raise ParamsError(f"TENSOR_PARALLEL is {ranks}, and there are {len(gpus)} GPUs: {' '.join(gpus)}")
    n_runs = min(plan.JOBS or len(gpus), len(gpus) // ranks)
    size = len(gpus) // n_runs
    return [",".join(gpus[i * size : (i + 1) * size]) for i in range(n_runs)]


def _gpus() -> list[str]:
    """The GPUs that are visible to a run."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu for gpu in visible.split(",") if gpu]
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    return [] if done.returncode else done.stdout.split()


def _command(plan: Plan, run: RunSpec) -> str:
    """The command that does one run of the plan alone."""
    name = run.asked["MODEL"]
    texts = {"OUT": plan.folder, "PROBES": " ".join(plan.PROBES), **as_texts(plan.model_extra)}
    return command("run", name if find_model(name) else run.asked["MODEL_ID"], run.asked["DATASET"], **texts)


def _notebook(run: RunSpec, launch: Sequence[str]) -> Notebook:
    """The notebook of a run."""

    def missing() -> list:
        results = (run.path(probe) for probe in run.asked["PROBES"])
        return [path for path in results if not path.is_file()]

    return Notebook(
        run.name,
        "probe",
        run.folder,
        _in_cell(run),
        lock=run.folder / RUNNING,
        is_finished=lambda: status_of(run).finished,
        missing=missing,
        progress=lambda: progress(run),
        ranks=run.asked["TENSOR_PARALLEL"],
        launch=launch,
    )


def _in_cell(run: RunSpec) -> dict:
    """The parameters as a notebook's cell has them: None is "null", and paths are absolute, as the notebook may be
    executed again from its own folder."""
    asked = run.asked | {"OUT": os.path.abspath(run.out)}
    if run.checkpoint:
        asked["MODEL_ID"] = os.path.abspath(run.checkpoint)
    if asked["SOURCE"] not in NAMED_SOURCES:
        asked["SOURCE"] = os.path.abspath(in_project(asked["SOURCE"]))
    return {name: "null" if value is None else value for name, value in asked.items()}


def _environments(plan: Plan, gpus: Sequence[str]) -> list[dict]:
    """The environment variables of each of the runs side by side."""
    threads = {}
    if len(gpus) > 1 and not plan.LAUNCH:  # more threads than cores are far slower
        threads = {"OMP_NUM_THREADS": str(max(1, _cores() // len(gpus)))}
    return [threads | os.environ | ({"CUDA_VISIBLE_DEVICES": own} if own else {}) for own in gpus]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
