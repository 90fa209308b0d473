"""Real runs of which any process is killed at any moment: repeated, nothing is lost and every number is the same."""

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
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not os.environ.get("DEPTH_LIB_LONG_TESTS"), reason="takes half an hour: DEPTH_LIB_LONG_TESTS=1"),
]
ASKED = ("--models", "toy-4l", "--datasets", "gsm8k", "hellaswag", "--n-examples", "2")
PROBES = ("--probes", "relative_contribution", "logit_lens", "layer_effects")
N_KILLS = 20


def demo(out, *words):
    """The process of a sweep that ends with a table."""
    command = [sys.executable, "-m", "depth_lib.sweep", "demo", "--out", str(out), *ASKED, *PROBES, *words]
    with open(out.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def finished(out, *words):
    process = demo(out, *words)
    assert process.wait(900) == 0, out.with_suffix(".log").read_text()


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
    return next((name for word, name in kinds.items() if word in words), None)


def kill_one(sweep, draw):
    """Kill one process of a sweep, and wait until all have ended; what was killed."""
    try:
        processes = [psutil.Process(sweep.pid), *psutil.Process(sweep.pid).children(recursive=True)]
        kinds = {process: kind(process) for process in processes}
    except psutil.NoSuchProcess:
        return None
    victim = draw.choice(sorted({*kinds.values()} - {None}) or ["none"])
    chosen = [process for process in processes if kinds[process] == victim]
    if not chosen:
        return None
    draw.choice(chosen).kill()
    sweep.wait(120)
    _, alive = psutil.wait_procs([process for process in processes if process.pid != sweep.pid], timeout=60)
    assert not alive, f"{victim} was killed, and {[process.cmdline() for process in alive]} still run"
    return victim


def test_twenty_kills_at_random_moments_lose_nothing(tmp_path):
    forks = script(tmp_path / "forks", """#!/bin/sh\n"$@" &\nwait\n""")
    ways = {"one": ("--launch", str(forks)), "two": ("--tensor-parallel", "2", "--jobs", "1")}
    draw, killed = random.Random(0), []
    for way, words in ways.items():
        finished(tmp_path / way, *words)
    start = time.time()
    while len(killed) < N_KILLS:
        way = draw.choice([*ways])
        out = tmp_path / f"{way}-killed"
        before = files(out)
        sweep = demo(out, *ways[way])
        time.sleep(draw.uniform(1, 75))
        victim = kill_one(sweep, draw)
        now = files(out)
        assert {path: now[path] for path in before} == before, "what was finished is not computed again"
        if victim:
            killed.append(f"{way} {victim}")
        else:
            assert_equal(out, tmp_path / way)
            out.rename(tmp_path / f"done-{time.time()}")
        print(f"{time.time() - start:.0f} s: {killed[-1] if victim else 'finished'}, {len(now)} results", flush=True)
    for way, words in ways.items():
        finished(tmp_path / f"{way}-killed", *words)
        assert_equal(tmp_path / f"{way}-killed", tmp_path / way)
        left = {path.name for path in (tmp_path / f"{way}-killed").glob("*/*/*") if path.suffix != ".pt"}
        assert left - {".running", ".computing"} <= {"probe.ipynb", "probe.json", "probe.log"}, os.listdir(tmp_path)
    assert {line.split()[1] for line in killed} >= {"kernel", "launcher", "notebook", "sweep"}
