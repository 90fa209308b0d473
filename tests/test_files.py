"""A lock that the dead do not keep, and a run that is killed at any moment and goes on as if it had not been."""

import contextlib
import errno
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
import warnings

import pytest
import torch

from depth_lib.files import Held, hold, holder
from depth_lib.params import FIVE_PROBES
from depth_lib.run import Run
from tests.forked import processes
from tests.sweep.cells import parameters

KEEP = """
import sys, time
from depth_lib.files import hold
with hold(sys.argv[1]):
    print(flush=True)
    time.sleep(600)
"""


def compute(cell, printed=os.devnull):
    with open(printed, "a", buffering=1) as file, contextlib.redirect_stdout(file):
        run = Run(cell)
        for probe in FIVE_PROBES:
            run.result(probe)


@pytest.fixture
def other(tmp_path):
    """Another process that holds a lock."""
    process = subprocess.Popen([sys.executable, "-c", KEEP, tmp_path / ".lock"], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_lock_is_held_once_and_names_its_holder_until_that_is_killed(tmp_path, other, monkeypatch):
    path, messages = tmp_path / ".lock", []
    assert holder(path).startswith(f"process {other.pid} on ")
    with pytest.raises(Held, match=f"process {other.pid} on .* holds .*.lock"), hold(path, wait=False):
        pass

    def kill(message, **_):
        messages.append(message)
        os.kill(other.pid, signal.SIGKILL)

    monkeypatch.setattr("builtins.print", kill)
    with hold(path):
        assert holder(path).startswith(f"process {os.getpid()} on ")
    assert len(messages) == 1 and messages[0].startswith(f"waiting: process {other.pid} on ")
    assert holder(path) is None and not path.with_name(".lock.holder").exists()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_a_file_is_the_lock_and_one_that_is_left_is_named(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    warnings.simplefilter("ignore")  # the lock library's, about ENOSYS
    lock = tmp_path / ".lock"
    for _ in range(2):
        with hold(lock, wait=False):
            assert holder(lock) == f"process {os.getpid()} on {socket.gethostname()}"
            with pytest.raises(Held, match="if that process is gone, delete .*lock"), hold(lock, wait=False):
                pass
        assert holder(lock) is None


@pytest.fixture
def cell(tmp_path):
    return parameters(tmp_path / "alone") | {"DATASET": "gsm8k", "PROBES": list(FIVE_PROBES)}


def started(cell, *printed):
    process = processes.Process(target=compute, args=(cell, *printed))
    process.start()
    return process


def finished(cell):
    process = started(cell)
    process.join()
    assert process.exitcode == 0


def files(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*/*/*.pt")}


@pytest.mark.slow
def test_a_killed_run_ends_as_one_left_alone(cell, tmp_path):
    """To the bit, as all processes are forked from one."""
    finished(cell)
    draw, killed, before = random.Random(5), tmp_path / "killed", {}
    for _ in range(10):
        process = started(cell | {"OUT": str(killed)})
        wanted = min(len(before) + draw.randrange(2), len(FIVE_PROBES) - 1)
        while process.is_alive() and (len(files(killed)) < wanted or not list(killed.rglob(".toy-4l.lock.holder"))):
            time.sleep(0.01)
        process.join(draw.uniform(0, 0.5))  # a moment of any probe's
        process.kill()
        process.join()
        now = files(killed)
        assert {name: now[name] for name in before} == before, "what was finished is not computed again"
        before = now
    finished(cell | {"OUT": str(killed)})
    assert {name: files(killed)[name] for name in before} == before
    assert files(killed).keys() == files(tmp_path / "alone").keys()
    for path in killed.glob("*/*/*.pt"):
        one, two = (torch.load(tmp_path / root / path.relative_to(killed)) for root in ("killed", "alone"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one if isinstance(one[key], torch.Tensor)), path.name
    left = {path.name for path in killed.glob("*/*/*") if path.suffix not in (".pt", ".txt", ".part")}
    assert left == {"run.json"}


@pytest.mark.slow
def test_two_processes_on_one_run_share_the_work(cell, tmp_path):
    both = [started(cell, tmp_path / "printed") for _ in range(2)]
    for process in both:
        process.join()
        assert process.exitcode == 0
    printed = (tmp_path / "printed").read_text()
    assert printed.count(": computed in") == printed.count("nothing to compute") == len(FIVE_PROBES), printed


def test_a_lock_that_nobody_ever_held_is_free_and_nothing_is_written_to_see_that(tmp_path):
    assert holder(tmp_path / ".lock") is None and list(tmp_path.iterdir()) == []
