"""A lock that the dead do not keep, and a run that is killed at any moment and goes on as if it had not been."""

import contextlib
import os
import random
import signal
import time

import pytest
import torch

from depth_lib.files import Busy, describe, hold, holder, remove_leftovers
from depth_lib.results.schemas import PROBES
from depth_lib.sweep.run import Run
from tests.forked import processes
from tests.sweep.cells import parameters


def keep(path, ready):
    with hold(path, doing="logit_lens"):
        ready.set()
        time.sleep(60)


def compute(cell, said=os.devnull):
    with open(said, "a", buffering=1) as file, contextlib.redirect_stdout(file):
        run = Run(cell)
        for probe in PROBES:
            run.result(probe)


@pytest.fixture
def other(tmp_path):
    """Another process that holds a lock."""
    ready = processes.Event()
    process = processes.Process(target=keep, args=(tmp_path / ".lock", ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_lock_is_held_once_and_says_by_whom(tmp_path, other):
    path = tmp_path / ".lock"
    about = holder(path)
    assert (about["pid"], about["doing"]) == (other.pid, "logit_lens")
    assert describe(about).startswith(f"process {other.pid}, for 00:0")
    with pytest.raises(Busy, match=f"process {other.pid}"), hold(path, wait=False):
        pass
    assert holder(path)["pid"] == other.pid


def test_a_killed_holder_keeps_nothing_and_who_waits_is_told_for_whom_once(tmp_path, other):
    path, said = tmp_path / ".lock", []

    def kill(text):
        said.append(text)
        os.kill(other.pid, signal.SIGKILL)

    with hold(path, say=kill):
        assert holder(path)["pid"] == os.getpid()
    assert len(said) == 1 and f"process {other.pid}" in said[0]
    assert holder(path) is None and not path.with_name(".lock.holder").exists()


def test_a_lock_that_nobody_ever_held_is_free_and_nothing_is_written_to_see_that(tmp_path):
    assert holder(tmp_path / ".lock") is None and list(tmp_path.iterdir()) == []


def test_only_half_written_results_are_left_over(tmp_path):
    for name in (".a.pt.0123abcd.part", "a.pt", "mine.part", ".running"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".running", "a.pt", "mine.part"]


@pytest.fixture
def cell(tmp_path):
    return parameters(tmp_path / "alone") | {"DATASET": "gsm8k", "PROBES": list(PROBES)}


def started(cell, *said):
    process = processes.Process(target=compute, args=(cell, *said))
    process.start()
    return process


def files(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*/*/*.pt")}


@pytest.mark.parametrize("n_kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_one_left_alone(cell, tmp_path, n_kills):
    start = time.monotonic()
    alone = started(cell)
    alone.join()
    takes = time.monotonic() - start
    assert alone.exitcode == 0
    draw, killed, seen = random.Random(5), tmp_path / "killed", {}
    for _ in range(n_kills):
        process = started(cell | {"OUT": str(killed)})
        process.join(draw.uniform(0, 0.6 * takes))
        process.kill()
        process.join()
        found = files(killed)
        assert {name: found[name] for name in seen} == seen, "what was finished is not computed again"
        seen = found
    compute(cell | {"OUT": str(killed)})
    assert {name: files(killed)[name] for name in seen} == seen
    assert files(killed).keys() == files(tmp_path / "alone").keys()
    for path in killed.glob("*/*/*.pt"):
        one, two = (torch.load(tmp_path / root / path.relative_to(killed)) for root in ("killed", "alone"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one if isinstance(one[key], torch.Tensor)), path.name
    left = {path.name for path in killed.glob("*/*/*") if path.suffix not in (".pt", ".txt")}
    assert left == {".computing"}, "a lock that nobody holds, and no temporary file"


def test_two_processes_on_one_run_share_the_work(cell, tmp_path):
    both = [started(cell, tmp_path / "said") for _ in range(2)]
    for process in both:
        process.join()
        assert process.exitcode == 0
    said = (tmp_path / "said").read_text()
    assert said.count(": computed in") == said.count("nothing to compute") == len(PROBES), said
