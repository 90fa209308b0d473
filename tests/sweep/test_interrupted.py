"""Sweeps side by side, and sweeps that a signal or a kill ends, go on where they were; runs are stand-ins."""

import os
import signal
import subprocess
import threading
import time

import psutil
import pytest

from depth_lib.sweep import processes
from tests.sweep.study import ENVIRONMENT, TOY_4L, calls_in, left_over, needs_make, start_make

pytestmark = needs_make
SWEEP = ("sweep", "SET=demo")
ONE = (*SWEEP, "MODELS=toy-4l", "OUT=outputs/demo", "DATASETS=gsm8k")


def until(state, sweep):
    """Wait for a state, as long as the sweep runs."""
    while not state():
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.05)


def until_called(study):
    while not calls_in(study):
        time.sleep(0.05)


def started(study, *words, **variables):
    """A sweep whose first notebook has begun."""
    sweep = start_make(study, *words, **variables)
    until(lambda: calls_in(study), sweep)
    return sweep


def executions(study):
    """The processes that execute this study's notebooks."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "depth_lib.sweep.execute" in (process.info["cmdline"] or ()) and process.info["cwd"] == str(study):
            yield process


def test_two_sweeps_on_one_folder_share_the_work(make, study):
    gate = study / "gate"
    gate.touch()
    both = [started(study, *SWEEP, "DATASETS=aime24"), start_make(study, *SWEEP, "DATASETS=aime24")]
    assert both[1].stdout.readline() == "3 runs left, 1 at a time\n"
    assert "another process is at it (process" in both[1].stdout.readline()
    until(lambda: len(calls_in(study)) == 2, both[1])
    gate.unlink()
    outputs = [sweep.communicate()[0] for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], outputs
    runs = [(call.get("DATASET"), call.get("MODEL")) for call in calls_in(study)]
    assert len(runs) == len(set(runs)) == 4, "each run once, and the table"
    assert left_over(study / "outputs/demo") == []


def test_a_killed_sweep_ends_its_notebook_too_and_the_next_one_takes_over(make, study):
    first = started(study, *ONE, TAKES="600")
    second = start_make(study, *ONE)
    while "waiting" not in (line := second.stdout.readline()):
        assert line, "it ended before it waited"
    time.sleep(1)  # in which it tries again
    (notebook,) = executions(study)
    sweep = next(process for process in notebook.parents() if process.pid != first.pid)
    sweep.kill()
    assert first.wait() != 0
    notebook.wait(60)
    output, _ = second.communicate()
    assert second.returncode == 0 and "gsm8k × toy-4l: done in" in output
    assert "waiting" not in output, "it is said once"
    assert left_over(study / "outputs/demo") == []


@pytest.mark.slow
def test_a_killed_sweep_repeats_nothing_that_was_finished(make, study):
    folder = study / "outputs/demo"
    sweep = started(study, *SWEEP, "DATASETS=gsm8k", "JOBS=2", TAKES="0.2")
    until(lambda: list(folder.glob("*/*/probe.ipynb")), sweep)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/probe.ipynb")}
    again = make(*SWEEP, "DATASETS=gsm8k")
    first, *done, last, table = again.stdout.splitlines()
    assert table.startswith("table and figures: done in")
    assert again.returncode == 0 and first.startswith(f"{3 - len(before)} run")
    assert [line.partition("(")[2] for line in done] == [f"{n} of 3)" for n in range(len(before) + 1, 4)]
    assert last == "outputs/demo: 3 of 3 runs finished"
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert left_over(folder) == [] and len(list(folder.glob("*/*/probe.ipynb"))) == 3


def test_a_signal_before_the_notebook_has_started_ends_the_run_too(study, spawning, monkeypatch):
    monkeypatch.setenv("TAKES", "600")
    start = subprocess.Popen

    def start_after_a_signal(*args, **how):
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*args, **how)

    monkeypatch.setattr(subprocess, "Popen", start_after_a_signal)
    assert spawning("sweep", "--models", "toy-4l", "--datasets", "aime24").status == 128 + signal.SIGTERM
    assert "aime24 × toy-4l: stopped by SIGTERM" in spawning.output
    assert list(executions(study)) == []


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_signal_ends_runs_side_by_side_with_a_sentence_each_and_their_notebooks_too(make, study, command, name):
    sweep = started(study, *SWEEP, "DATASETS=gsm8k", "JOBS=3", TAKES="600")
    until(lambda: len(calls_in(study)) == 3, sweep)
    os.killpg(sweep.pid, signal.Signals[name])
    time.sleep(0.03)
    os.killpg(sweep.pid, signal.Signals[name])  # as from somebody who is impatient
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode != 0
    assert f"gsm8k × toy-4l: stopped by {name}; what was finished is kept; repeat the command to go on" in output
    assert output.count(f"stopped by {name}") == 3 and list(executions(study)) == []
    shown = command("status", "--models", "toy-4l", "--out", "outputs/demo", "--datasets", "gsm8k").output
    assert "gsm8k × toy-4l: interrupted; repeat the command to go on" in shown


@pytest.mark.slow
def test_a_notebook_that_somebody_ends_by_a_signal_is_interrupted_and_the_other_runs_go_on(make, study):
    (study / "gate").touch()
    sweep = started(study, *SWEEP, "MODELS=toy-4l toy-8l", "OUT=outputs/demo", "DATASETS=gsm8k")
    (notebook,) = executions(study)
    notebook.terminate()
    (study / "gate").unlink()
    output, _ = sweep.communicate(timeout=60)
    line = "gsm8k × toy-4l: stopped by SIGTERM; what was finished is kept; repeat the command to go on\n"
    assert sweep.returncode != 0 and line in output and "FAILED" not in output
    assert "gsm8k × toy-8l: done in" in output and "1 of 2 runs finished, 1 stopped" in output
    assert (study / "outputs/demo/gsm8k/toy-4l/probe.log").read_text().endswith(line.partition(": ")[2])


@pytest.mark.slow
def test_a_reader_who_leaves_early_ends_no_run(make, study):
    words = "sweep --set demo --datasets gsm8k --jobs 2 | head -n 1; exit ${PIPESTATUS[0]}"
    command = f"TAKES=1 .venv/bin/python -m depth_lib.sweep {words}"
    done = subprocess.run(["bash", "-c", command], cwd=study, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1
    assert all("truncated or damaged" in line for line in done.stderr.splitlines()), "of a stand-in's results"
    assert len(list(study.glob("outputs/demo/gsm8k/*/probe.ipynb"))) == 3
    assert not any("Broken pipe" in log.read_text() for log in study.glob("outputs/demo/*/*/probe.log"))


def test_a_notebook_that_ignores_sigterm_is_killed(study, spawning, monkeypatch):
    deaf = ["sh", "-c", "trap '' TERM; echo > deaf; while :; do sleep 0.1; done"]
    monkeypatch.setattr(processes.Notebook, "command", lambda notebook: deaf)
    monkeypatch.setattr(processes, "GRACE", 0.5)

    def end_soon():
        while not (study / "deaf").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_soon).start()
    assert spawning("sweep", *TOY_4L, "--datasets", "gsm8k").status == 128 + signal.SIGTERM
    (study / "deaf").unlink()
    assert "gsm8k × toy-4l: stopped by SIGTERM" in spawning.output
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == deaf]


@pytest.mark.slow
def test_ranks_of_a_killed_sweep_end_though_torchrun_stands_between(make, study):
    sweep = started(study, *ONE, "TENSOR_PARALLEL=2", TAKES="600")
    until(lambda: len(calls_in(study)) == 2, sweep)
    *ranks, _ = sorted(executions(study), key=lambda process: process.pid, reverse=True)
    next(process for process in ranks[0].parents() if "sweep" in process.cmdline()).kill()
    sweep.wait()
    assert len(ranks) == 2 and psutil.wait_procs(ranks, 30)[1] == []
