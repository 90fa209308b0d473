"""Real runs of which any process is killed at any moment: repeated, nothing is lost and every number is the same."""

import contextlib
import os
import random
import subprocess
import sys
import time

import psutil
import pytest
import torch

from tests.sweep.study import script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not os.environ.get("DEPTH_LIB_LONG_TESTS"), reason="takes long: DEPTH_LIB_LONG_TESTS=1"),
]
ASKED = ("--models", "toy-4l", "--datasets", "gsm8k", "--n-examples", "2")
PROBES = ("--probes", "relative_contribution", "logit_lens")
N_KILLS = 20
# the two ways to run, and which processes they have: what stands before a run's command, and two ranks of it
KINDS = {"one": ("launcher", "notebook", "kernel", "sweep", "table"), "two": ("torchrun", "rank", "sweep", "table")}


def demo(out, *words):
    """The process of a sweep that ends with a table."""
    command = [sys.executable, "-m", "depth_lib.sweep", "demo", "--out", str(out), *ASKED, *PROBES, *words]
    with open(out.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def finished(out, *words):
    """Run a sweep to its end; the seconds it takes."""
    start, process = time.monotonic(), demo(out, *words)
    assert process.wait(600) == 0, out.with_suffix(".log").read_text()
    return time.monotonic() - start


def files(out):
    return {path.relative_to(out): path.stat().st_mtime_ns for path in out.glob("*/*/*.pt")}


def assert_equal(out, truth):
    assert files(out).keys() == files(truth).keys()
    for path in files(out):
        one, two = torch.load(out / path), torch.load(truth / path)
        assert all(torch.equal(one[key], two[key]) for key in two if isinstance(two[key], torch.Tensor)), path


def kind(process):
    words = " ".join(process.cmdline())
    kinds = {"ipykernel": "kernel", "torch.distributed.run": "torchrun", "effective_depth": "table"}
    kinds |= {"forks": "launcher", "sweep.execute": "notebook", "depth_lib.sweep demo": "sweep"}
    found = next((name for word, name in kinds.items() if word in words), None)
    return "rank" if found == "notebook" and kind(process.parent()) == "torchrun" else found


def processes_of(sweep):
    """Of a sweep and all that it started, those whose kind is known."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [psutil.Process(sweep.pid), *psutil.Process(sweep.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[process] = kind(process)
    return found


def kill_one(sweep, victim, wait):
    """Kill a process of this kind, `wait` seconds after there is one, or one of another kind if there is none any more;
    what was killed, None if the sweep ended before."""
    while sweep.poll() is None and victim not in processes_of(sweep).values():
        time.sleep(0.05)
    time.sleep(wait)
    there = processes_of(sweep)
    killed = victim if victim in there.values() else next(filter(None, there.values()), None)
    if sweep.poll() is not None or killed is None:
        return None
    next(process for process in there if there[process] == killed).kill()
    sweep.wait(120)
    _, alive = psutil.wait_procs([process for process in there if process.pid != sweep.pid], timeout=60)
    assert not alive, f"{killed} was killed, and {[process.cmdline() for process in alive]} still run"
    return killed


def test_twenty_kills_at_random_moments_lose_nothing(tmp_path):
    forks = script(tmp_path / "forks", """#!/bin/sh\n"$@" &\nwait\n""")
    ways = {"one": ("--launch", str(forks)), "two": ("--tensor-parallel", "2", "--jobs", "1")}
    draw, killed = random.Random(0), []
    takes = {way: finished(tmp_path / way, *words) for way, words in ways.items()}
    start = time.monotonic()
    while len(killed) < N_KILLS:
        way = draw.choice([*ways])
        victim = min(KINDS[way], key=lambda name: (killed.count(name), draw.random()))
        out = tmp_path / f"{way}-killed"
        before = files(out)
        sweep = demo(out, *ways[way])
        dead = kill_one(sweep, victim, draw.uniform(0, 2 if victim == "table" else takes[way] / 2))
        now = files(out)
        assert {path: now[path] for path in before} == before, "what was finished is not computed again"
        print(f"{time.monotonic() - start:.0f} s, {way}: {dead or 'finished'}, {len(now)} results", flush=True)
        if dead:
            killed.append(dead)
        if len(now) == len(files(tmp_path / way)) and dead != "table":
            assert_equal(out, tmp_path / way)
            out.rename(tmp_path / f"done-{time.time()}")
    for way, words in ways.items():
        finished(tmp_path / f"{way}-killed", *words)
        assert_equal(tmp_path / f"{way}-killed", tmp_path / way)
        left = {path.name for path in (tmp_path / f"{way}-killed").glob("gsm8k/*/*") if path.suffix != ".pt"}
        assert left - {".running", ".computing"} <= {"probe.ipynb", "probe.json", "probe.log"}, os.listdir(tmp_path)
    assert {*killed} == {name for names in KINDS.values() for name in names}, killed
