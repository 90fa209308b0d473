"""Sweeps side by side, and sweeps that a signal or a kill ends, go on where they were; runs are stand-ins."""

import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from depth_lib.files import hold
from depth_lib.sweep import processes
from depth_lib.sweep.processes import Notebook
from tests.sweep.study import DEMO, ENVIRONMENT, TOY_4L, calls_in, execute_here, needs_make, start_make

SWEEP = ("sweep", "SET=demo")
ONE = (*SWEEP, "MODELS=toy-4l", "OUT=outputs/demo", "DATASETS=gsm8k")
GO_ON = "what was finished is kept; repeat the command to go on"


def until(state):
    while not state():
        time.sleep(0.05)


def executions(study):
    """The processes that execute this study's notebooks."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "depth_lib.sweep.execute" in (process.info["cmdline"] or ()) and process.info["cwd"] == str(study):
            yield process


@pytest.mark.slow
@needs_make
def test_a_killed_sweep_ends_its_notebook_too_and_the_next_one_takes_over(make, study):
    first = start_make(study, *ONE, TAKES="600")
    until(lambda: calls_in(study))
    second = start_make(study, *ONE)
    lines = iter(second.stdout.readline, "")
    assert any("another process is at it (process" in line for line in lines)
    (notebook,) = executions(study)
    next(process for process in notebook.parents() if process.pid != first.pid).kill()
    assert first.wait() != 0
    notebook.wait(60)
    assert "waiting" not in (line := next(lines)), "it is said once"
    assert line.startswith("gsm8k × toy-4l: done in")
    os.killpg(second.pid, signal.SIGTERM)  # the table is another matter
    second.communicate()


@needs_make
def test_a_signal_ends_runs_side_by_side_with_a_sentence_each_and_their_notebooks_too(make, study, command):
    sweep = start_make(study, *SWEEP, "DATASETS=gsm8k", "JOBS=3", TAKES="600")
    until(lambda: len(calls_in(study)) == 3)
    os.killpg(sweep.pid, signal.SIGINT)
    time.sleep(0.03)
    os.killpg(sweep.pid, signal.SIGINT)  # as from somebody who is impatient
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode != 0 and f"gsm8k × toy-4l: stopped by SIGINT; {GO_ON}" in output
    assert output.count("stopped by SIGINT") == 3 and list(executions(study)) == []
    shown = command("status", *TOY_4L, "--datasets", "gsm8k").output
    assert "gsm8k × toy-4l: interrupted; repeat the command to go on" in shown


@pytest.mark.slow
@needs_make
def test_ranks_of_a_killed_sweep_end_though_torchrun_stands_between(make, study):
    sweep = start_make(study, *ONE, "TENSOR_PARALLEL=2", TAKES="600")
    until(lambda: len(calls_in(study)) == 2)
    *ranks, _ = sorted(executions(study), key=lambda process: process.pid, reverse=True)
    next(process for process in ranks[0].parents() if "sweep" in process.cmdline()).kill()
    sweep.wait()
    assert len(ranks) == 2 and psutil.wait_procs(ranks, 30)[1] == []


def test_a_run_that_another_process_holds_is_left_to_it_and_the_others_go_on(command, study):
    (folder := study / "outputs/demo/gsm8k/toy-4l").mkdir(parents=True)
    held = threading.Event()

    def other_process():
        with hold(folder / ".running"):
            held.set()
            until(lambda: calls_in(study))

    other = threading.Thread(target=other_process)
    other.start()
    held.wait()
    command("sweep", *DEMO, "--models", "toy-4l", "toy-8l", "--datasets", "gsm8k", "--probes", "logit_lens")
    other.join()
    assert [call["MODEL"] for call in command.calls if "MODEL" in call] == ["toy-8l", "toy-4l"]
    assert command.output.count("gsm8k × toy-4l: another process is at it (process") == 1
    assert "gsm8k × toy-4l: done in" in command.output


def test_a_notebook_that_somebody_ends_by_a_signal_is_interrupted_and_the_other_runs_go_on(command, study, monkeypatch):
    def start(notebook, environment):
        if "toy-4l" in notebook.title:
            return SimpleNamespace(returncode=-signal.SIGTERM, poll=lambda: -signal.SIGTERM)
        return execute_here(notebook, environment)

    monkeypatch.setattr(Notebook, "start", start)
    two = ("sweep", *DEMO, "--models", "toy-4l", "toy-8l", "--datasets", "gsm8k", "--probes", "logit_lens")
    output = command(*two).output
    line = f"gsm8k × toy-4l: stopped by SIGTERM; {GO_ON}\n"
    assert command.status == 1 and line in output and "FAILED" not in output
    assert "gsm8k × toy-8l: done in" in output and "1 of 2 runs finished, 1 stopped" in output
    assert (study / "outputs/demo/gsm8k/toy-4l/probe.log").read_text().endswith(line.partition(": ")[2])


@pytest.mark.parametrize("deaf", [False, True])
def test_a_signal_ends_a_notebook_that_has_just_begun_and_one_that_ignores_it(spawning, monkeypatch, deaf):
    command = ["sh", "-c", f"{'trap : TERM;' if deaf else ''} while :; do sleep 0.1; done"]
    monkeypatch.setattr(Notebook, "command", lambda notebook: command)
    monkeypatch.setattr(processes, "GRACE", 0.5)
    start = subprocess.Popen

    def start_after_a_signal(*args, **how):
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*args, **how)

    monkeypatch.setattr(subprocess, "Popen", start_after_a_signal)
    assert spawning("sweep", *TOY_4L, "--datasets", "gsm8k").status == 128 + signal.SIGTERM
    assert "gsm8k × toy-4l: stopped by SIGTERM" in spawning.output
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == command]


@pytest.mark.slow
def test_a_reader_who_leaves_early_ends_no_run(make, study):
    words = "sweep --set demo --datasets gsm8k --jobs 2 | head -n 1; exit ${PIPESTATUS[0]}"
    command = f"TAKES=1 .venv/bin/python -m depth_lib.sweep {words}"
    done = subprocess.run(["bash", "-c", command], cwd=study, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1
    assert all("truncated or damaged" in line for line in done.stderr.splitlines()), "of a stand-in's results"
    assert len(list(study.glob("outputs/demo/gsm8k/*/probe.ipynb"))) == 3
    assert not any("Broken pipe" in log.read_text() for log in study.glob("outputs/demo/*/*/probe.log"))
