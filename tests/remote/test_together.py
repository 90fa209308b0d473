"""Two processes that ask for the same at the same time: one job each part, and neither takes the journal away."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from depth_lib.remote import sharing
from tests.remote.loopback.client import TEXTS
from tests.remote.loopback.fixture import hurried, loopback, same, user  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def truth(loopback):  # noqa: F811
    return dl.logit_lens(dl.load_model(loopback.models["loopback/llama"]), TEXTS)


class Pair:
    """Two runs of the same call, begun at once; journalled beside an artifact, or in the cache folder."""

    def __init__(self, user, place, folder):  # noqa: F811
        artifact = folder / "a.pt" if place == "beside an artifact" else None
        self.journal = folder / "a.pt.job" if artifact else folder / "cache" / "depth_lib" / "jobs"
        self.outs = [folder / "first.pt", folder / "second.pt"]
        self.ids = [
            user.fork(artifact, out, DEPTH_LIB_PROMPTS_PER_JOB="1", XDG_CACHE_HOME=str(folder / "cache"))
            for out in self.outs
        ]

    def both_wait(self, loopback):  # noqa: F811
        """Until each of them asks about a job while the other stands still."""
        loopback.until(lambda asked: any(job["status"] == "RUNNING" for job in asked["jobs"].values()))
        for other in self.ids:
            os.kill(other, signal.SIGSTOP)
            time.sleep(0.1)
            since = len(loopback.asked()["log"])
            loopback.until(lambda _, since=since: len(loopback.requests("GET", "/response/", since)) > 2)
            os.kill(other, signal.SIGCONT)

    def result(self, number):
        end = time.monotonic() + 30
        while not self.outs[number].exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        return torch.load(self.outs[number])

    def entries(self):
        return [json.loads(file.read_text()) for file in self.journal.glob("*.json")]

    def gone(self):
        """Nothing is left of the journal, once the last process has put it away."""
        end = time.monotonic() + 5
        while self.journal.exists() and list(self.journal.iterdir()) and time.monotonic() < end:
            time.sleep(0.02)
        return not self.journal.exists() or not list(self.journal.iterdir())


@pytest.fixture(params=["beside an artifact", "in the cache folder"])
def pair(request, loopback, user, tmp_path):  # noqa: F811
    """(two processes of which each waits for the first part, how many jobs were submitted)"""
    with loopback.faults(hold="RUNNING") as submitted:
        both = Pair(user, request.param, tmp_path)
        both.both_wait(loopback)
        yield both, submitted


def test_two_processes_share_every_job_and_the_last_one_puts_the_journal_away(loopback, pair, truth):  # noqa: F811
    both, submitted = pair
    assert submitted() == 1
    os.kill(both.ids[1], signal.SIGSTOP)
    loopback.switch()
    same(both.result(0), truth)
    time.sleep(0.2)
    assert [entry["state"] for entry in both.entries()] == ["done"] * len(TEXTS)  # the second may still need them
    os.kill(both.ids[1], signal.SIGCONT)
    same(both.result(1), truth)
    assert submitted() == len(TEXTS)
    assert both.gone()


def test_the_death_of_one_takes_nothing_from_the_other(loopback, pair, truth):  # noqa: F811
    both, submitted = pair
    os.kill(both.ids[0], signal.SIGKILL)
    loopback.switch()
    same(both.result(1), truth)
    assert submitted() == len(TEXTS)
    assert both.gone()


def test_a_journal_goes_with_its_last_user(tmp_path):
    went, lock = [], tmp_path / "folder" / "a.used"
    with sharing.used(lock, lambda: went.append("first")):
        with sharing.used(lock, lambda: went.append("second")):
            sharing.remove_unused(lock.parent)
            assert Path(lock).exists()
        assert went == [] and lock.exists()
    assert went == ["first"] and not lock.exists()
    sharing.remove_unused(lock.parent)
    assert not lock.parent.exists()
