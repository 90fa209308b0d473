"""Sweeps side by side, and sweeps that a signal or a kill ends, go on where they were; runs are stand-ins."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from depth_lib.sweep.launch import Launch
from depth_lib.sweep.plan import Plan
from tests.sweep.study import SWEEP, TOY_4L, calls_in, left_over, needs_make, start_make, status

pytestmark = needs_make


def test_two_sweeps_on_one_folder_share_the_work(make, study):
    both = [start_make(study, "-j2", *SWEEP, TAKES="0.7") for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    runs = [(call["DATASET"], call["MODEL"]) for call in calls_in(study)]
    assert len(runs) == len(set(runs)) == 9, "each run once"
    assert any("another sweep is at it (process" in text for text in said)
    assert left_over(study / "outputs/demo") == []


def test_a_sweep_takes_over_when_the_other_one_is_killed(make, study):
    first = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", TAKES="30")
    while not calls_in(study):
        time.sleep(0.05)
    second = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k")
    while "waiting" not in (line := second.stdout.readline()):
        assert line, "it ended before it waited"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    said, _ = second.communicate(timeout=30)
    assert second.returncode == 0 and "gsm8k × toy-4l: done" in said
    assert left_over(study / "outputs/demo") == []


def test_a_sweep_killed_at_random_moments_repeats_nothing_that_was_finished(make, study):
    draw, finished, folder = random.Random(3), set(), study / "outputs/demo"
    for _ in range(3):
        sweep = start_make(study, "-j2", *SWEEP, TAKES="0.2")
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(draw.uniform(0.3, 2.5))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
        before = finished
        finished = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/probe.ipynb")}
        assert all(finished[path] == time for path, time in dict(before).items())
    assert make("-j2", *SWEEP).returncode == 0
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    assert left_over(folder) == [] and len(list(folder.glob("*/*/probe.ipynb"))) == 9
    assert make(*SWEEP).calls == []


def test_a_term_signal_ends_a_run_with_a_sentence_and_its_notebook_too(make, study):
    sweep = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", TAKES="60")
    while not calls_in(study):
        time.sleep(0.05)
    sweep.terminate()
    said, _ = sweep.communicate(timeout=30)
    assert sweep.returncode != 0
    assert "gsm8k × toy-4l: FAILED: stopped by SIGTERM (a scheduler's limit, or somebody); what was finished" in said
    run = status(make, *TOY_4L, "DATASETS=gsm8k")["gsm8k", "toy-4l"]
    assert run["running"] is None and run["failed"].startswith("stopped by SIGTERM")


def test_a_run_that_ctrl_c_stops_is_stopped_and_has_not_failed(make, study):
    sweep = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", TAKES="60")
    while not calls_in(study):
        time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGINT)
    said, _ = sweep.communicate(timeout=30)
    again = "make sweep MODELS=toy-4l DATASETS=gsm8k OUT=outputs/demo"
    assert sweep.returncode != 0 and "FAILED" not in said
    assert f"gsm8k × toy-4l: stopped by Ctrl-C; what was finished is kept; go on with: {again}\n" in said
    run = status(make, *TOY_4L, "DATASETS=gsm8k")["gsm8k", "toy-4l"]
    assert run["running"] is None and run["failed"] is None and run["interrupted"]
    assert run["cells"]["relative_contribution"]["state"] == "missing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_notebook_has_started_ends_the_run_too(study, tmp_path, monkeypatch, number):
    monkeypatch.chdir(study)
    run = Plan(models=("toy-4l",), datasets=("aime24",), out=str(tmp_path)).runs()[0]
    launch = Launch(run, [sys.executable, "-c", "import time; time.sleep(60)"], environment=os.environ)
    launch.stop(number)
    start = time.monotonic()
    assert launch.run() == 128 + number
    assert time.monotonic() - start < 10


@pytest.mark.skipif(not os.environ.get("DEPTH_LIB_TORTURE"), reason="an hour: DEPTH_LIB_TORTURE=20")
def test_a_demo_killed_again_and_again_ends_as_one_left_alone(tmp_path):
    from tests.sweep.torture import torture

    torture(int(os.environ["DEPTH_LIB_TORTURE"]), tmp_path, "SET=demo")
