"""Sweeps side by side, and sweeps that a signal or a kill ends, go on where they were; runs are stand-ins."""

import contextlib
import os
import random
import signal
import subprocess
import time

import pytest

from depth_lib.sweep.launch import Sweep
from depth_lib.sweep.plan import Plan
from tests.sweep.study import calls_in, left_over, needs_make, start_make

pytestmark = needs_make
SWEEP = ("sweep", "SET=demo")
ONE = (*SWEEP, "MODELS=toy-4l", "OUT=outputs/demo", "DATASETS=gsm8k")


def started(study, *words, **variables):
    """A sweep whose first notebook has begun."""
    sweep = start_make(study, *words, **variables)
    while not calls_in(study):
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.05)
    return sweep


def test_two_sweeps_on_one_folder_share_the_work(make, study):
    both = [start_make(study, *SWEEP, "DATASETS=aime24 gsm8k", "JOBS=2", TAKES="0.7") for _ in range(2)]
    said = [sweep.communicate()[0] for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], said
    runs = [(call["DATASET"], call["MODEL"]) for call in calls_in(study)]
    assert len(runs) == len(set(runs)) == 6, "each run once"
    assert any("another sweep is at it (process" in text for text in said)
    assert left_over(study / "outputs/demo") == []


def test_a_sweep_takes_over_when_the_other_one_is_killed(make, study):
    first = started(study, *ONE, TAKES="30")
    second = start_make(study, *ONE)
    while "waiting" not in (line := second.stdout.readline()):
        assert line, "it ended before it waited"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0 and "gsm8k × toy-4l: done" in said
    assert left_over(study / "outputs/demo") == []


@pytest.mark.parametrize("n_kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_sweep_repeats_nothing_that_was_finished(make, study, n_kills):
    draw, finished, folder = random.Random(n_kills), {}, study / "outputs/demo"
    for _ in range(n_kills):
        sweep = started(study, *SWEEP, "JOBS=2", TAKES="0.2")
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(draw.uniform(0.5, 5))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
        now = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/probe.ipynb")}
        assert {path: now[path] for path in finished} == finished
        finished = now
    assert make(*SWEEP, "JOBS=2").returncode == 0
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    assert left_over(folder) == [] and len(list(folder.glob("*/*/probe.ipynb"))) == 9


@pytest.mark.parametrize(
    ("number", "said", "failed"),
    [
        (
            signal.SIGTERM,
            "FAILED: stopped by SIGTERM (a scheduler's limit, or somebody); what was finished is kept",
            True,
        ),
        (signal.SIGINT, "stopped by Ctrl-C; what was finished is kept; go on with: make sweep MODELS=toy-4l", False),
    ],
)
def test_a_signal_ends_a_run_with_a_sentence_and_its_notebook_too(make, study, command, number, said, failed):
    sweep = started(study, *ONE, TAKES="60")
    os.killpg(sweep.pid, number)
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode != 0 and f"gsm8k × toy-4l: {said}" in output, output
    run = command.runs_of("--models", "toy-4l", "--out", "outputs/demo", "--datasets", "gsm8k")["gsm8k", "toy-4l"]
    assert run["running"] is None and bool(run["failed"]) == failed and run["interrupted"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_notebook_has_started_ends_the_run_too(study, command, monkeypatch, number):
    monkeypatch.setenv("TAKES", "60")
    sweep = Sweep(Plan(models=("toy-4l",), datasets=("aime24",), out=str(study / "outputs")))
    run = sweep.runs[0]
    run.spec.folder.mkdir(parents=True)
    sweep._stop(number, None)
    start = time.monotonic()
    why = sweep._execute(run)
    assert time.monotonic() - start < 15 and bool(why) == (number == signal.SIGTERM)
