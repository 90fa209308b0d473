"""A lock that the dead do not keep, and a run that is killed at any moment and goes on as if it had not been."""

import contextlib
import os
import random
import signal
import time

import pytest

from depth_lib.lock import Busy, describe, elapsed, hold, holder, remove_leftovers
from depth_lib.results.schemas import PROBES
from depth_lib.sweep.run import Run
from tests.forked import processes
from tests.sweep.torture import differing


def keep(path, ready):
    with hold(path) as held:
        held.note(probe="logit_lens")
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


def test_a_lock_is_taken_once_told_about_and_gone_afterwards(tmp_path, other):
    path = tmp_path / ".lock"
    about = holder(path)
    assert (about["pid"], about["probe"]) == (other.pid, "logit_lens")
    assert describe(about).startswith(f"process {other.pid}, for 0:0")
    with pytest.raises(Busy, match=f"process {other.pid}"), hold(path, wait=False):
        pass
    assert holder(path)["pid"] == other.pid


def test_a_killed_holder_keeps_nothing_and_who_waits_says_for_whom_once(tmp_path, other):
    path, said = tmp_path / ".lock", []
    start = time.monotonic()

    def kill(text):
        said.append(text)
        os.kill(other.pid, signal.SIGKILL)

    with hold(path, say=kill) as held:
        assert holder(path)["pid"] == os.getpid() and held.path == path
    assert len(said) == 1 and f"process {other.pid}" in said[0]
    assert time.monotonic() - start < 5
    assert not path.exists(), "a lock leaves no file"


def test_a_file_that_a_dead_process_left_is_free(tmp_path):
    path = tmp_path / ".lock"
    path.write_text('{"pid": 1, "host": "h", "since": 0}')
    assert holder(path) is None
    with hold(path, wait=False):
        pass
    assert not path.exists()


def test_a_lock_that_cannot_be_made_is_an_error_of_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError), hold(tmp_path / "none" / ".lock"):
        pass


def test_leftovers_are_half_written_files_and_nothing_else(tmp_path):
    for name in (".a.pt.0123abcd.part", "a.pt", "mine.part", ".running"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".running", "a.pt", "mine.part"]


@pytest.mark.parametrize(("seconds", "said"), [(5, "0:05"), (725, "12:05"), (7500, "2 h 05 min"), (-1, "0:00")])
def test_elapsed_times_as_people_say_them(seconds, said):
    assert elapsed(seconds) == said


@pytest.fixture
def cell(tmp_path):
    return {
        "MODEL": "toy-4l",
        "MODEL_ID": "toy-4l",
        "REVISION": None,
        "DTYPE": "float32",
        "QUANTIZATION": None,
        "DEVICE_MAP": None,
        "REMOTE": False,
        "DATASET": "gsm8k",
        "N_EXAMPLES": 2,
        "SOURCE": "embedded",
        "PROBES": list(PROBES),
        "SEED": 1,
        "OUT": str(tmp_path / "alone"),
    }


def started(cell, *said):
    process = processes.Process(target=compute, args=(cell, *said))
    process.start()
    return process


def files(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*/*/*.pt")}


def test_a_run_killed_at_random_moments_ends_as_one_left_alone(cell, tmp_path):
    start = time.monotonic()
    alone = started(cell)
    alone.join()
    takes = time.monotonic() - start
    assert alone.exitcode == 0
    draw, killed, seen, kills = random.Random(5), tmp_path / "killed", {}, 0
    while kills < 6:
        process = started(cell | {"OUT": str(killed)})
        process.join(draw.uniform(0, 0.4 * takes))
        kills += process.exitcode is None
        process.kill()
        process.join()
        found = files(killed)
        assert {name: found[name] for name in seen} == seen, "what was finished is not computed again"
        seen = found
        if len(seen) == len(PROBES):
            break
    compute(cell | {"OUT": str(killed)})
    assert {name: files(killed)[name] for name in seen} == seen
    assert differing(killed, tmp_path / "alone") == []
    left = {path.name for path in killed.glob("*/*/*") if path.suffix not in (".pt", ".txt")}
    assert left == set(), "no temporary file"


def test_two_processes_on_one_run_share_the_work(cell, tmp_path):
    both = [started(cell, tmp_path / "said"), started(cell, tmp_path / "said")]
    for process in both:
        process.join()
        assert process.exitcode == 0
    said = (tmp_path / "said").read_text()
    assert said.count(": computed in") == len(PROBES), said
    assert said.count("nothing to compute") == len(PROBES)
    assert all(path.suffix in (".pt", ".txt") for path in (tmp_path / "alone").glob("*/*/*"))
