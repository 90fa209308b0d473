"""Two processes that ask for the same at the same time: one job each part, and both have the result."""

import json
import os
import signal
import time

import pytest
import torch

import depth_lib as dl
from depth_lib.files import holder
from tests.remote.loopback.client import TEXTS
from tests.remote.loopback.fixture import hurried, loopback, same, user  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def truth(loopback):  # noqa: F811
    return dl.logit_lens(loopback.here("loopback/llama"), TEXTS)


class Pair:
    """Two runs of the same call, begun at once, one at the job and one waiting for it; beside an artifact, or not."""

    def __init__(self, user, place, folder):  # noqa: F811
        artifact, self.cache = (
            (folder / "a.pt" if place == "beside an artifact" else None),
            folder / "cache/depth_lib/jobs",
        )
        self.journal = folder / "a.pt.job" if artifact else self.cache
        outs = [folder / "first.pt", folder / "second.pt"]
        settings = {"DEPTH_LIB_PROMPTS_PER_JOB": "1", "XDG_CACHE_HOME": str(folder / "cache")}
        self.outs = {user.fork(artifact, out, **settings): out for out in outs}
        self.until(lambda: all(out.with_name(f"{out.name}.asked").exists() for out in outs))
        time.sleep(0.3)
        (lock,) = self.journal.glob("*.lock")
        self.first = holder(lock)["pid"]
        (self.second,) = self.outs.keys() - {self.first}

    @staticmethod
    def until(condition):
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)

    def result(self, process):
        self.until(self.outs[process].exists)
        return torch.load(self.outs[process])

    def gone(self):
        """Whether nothing is left but what was returned a moment ago."""
        entries = [json.loads(file.read_text()) for file in self.cache.glob("*.json")]
        return (self.journal == self.cache or not self.journal.exists()) and all(e["returned"] for e in entries)


@pytest.fixture(params=["beside an artifact", "in the cache folder"])
def pair(request, loopback, user, tmp_path):  # noqa: F811
    """(two processes of which one waits for the first part and the other for it, how many jobs were submitted)"""
    with loopback.faults(hold="RUNNING") as submitted:
        both = Pair(user, request.param, tmp_path)
        loopback.until(lambda asked: any(job["status"] == "RUNNING" for job in asked["jobs"].values()))
        yield both, submitted


def test_two_processes_share_every_job(loopback, pair, truth):  # noqa: F811
    both, submitted = pair
    assert submitted() == 1
    os.kill(both.second, signal.SIGSTOP)  # and it finds all that it asked for when it goes on
    loopback.switch()
    same(both.result(both.first), truth)
    time.sleep(0.2)
    os.kill(both.second, signal.SIGCONT)
    same(both.result(both.second), truth)
    assert submitted() == len(TEXTS)
    both.until(both.gone)


def test_the_death_of_one_takes_nothing_from_the_other(loopback, pair, truth):  # noqa: F811
    both, submitted = pair
    os.kill(both.first, signal.SIGKILL)
    loopback.switch()
    same(both.result(both.second), truth)
    assert submitted() == len(TEXTS)
    both.until(both.gone)
