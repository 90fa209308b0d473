"""A demo sweep is killed again and again at random moments, then finished: is anything lost, changed or done twice?

Run from the project's root, it takes the better part of an hour: python -m tests.sweep.torture --kills 20
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch

ROOT = Path(__file__).parents[2]
TIMES = ("date", "seconds")  # of the metadata, what no two runs have in common


class Sweep:
    """`make -j2 sweep` into one folder; every result ever seen there, and how often one was seen to be replaced."""

    def __init__(self, out, *arguments):
        self.out, self.seen, self.replaced = Path(out), {}, []
        self.command = ["make", "-j2", "sweep", f"OUT={out}", "SOURCE=embedded", *arguments]

    def start(self):
        return subprocess.Popen(self.command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)

    def finish(self):
        start = time.monotonic()
        assert self.start().wait() == 0, f"the sweep failed; see the logs under {self.out}"
        self.look()
        return time.monotonic() - start

    def look(self):
        """Remember the results that are there; one that was there before and is another file was computed twice."""
        for path in self.out.glob("*/*/*.pt"):
            with contextlib.suppress(FileNotFoundError):
                there = path.stat()
                now = (there.st_ino, there.st_mtime_ns)
                if self.seen.setdefault(path, now) != now:
                    self.replaced.append(path)
                    self.seen[path] = now


def kill(process, everything):
    """kill -9 of make and its group; with `everything` of the kernels too, which otherwise live a second longer."""
    family = psutil.Process(process.pid).children(recursive=True) if everything else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def differing(folder, other):
    """The results of one folder that are not those of the other, bit for bit, times aside."""
    names = {path.relative_to(folder) for path in folder.glob("*/*/*.pt")}
    different = names ^ {path.relative_to(other) for path in other.glob("*/*/*.pt")}
    for name in names - different:
        one, two = (torch.load(where / name, weights_only=True) for where in (folder, other))
        for result in (one, two):
            result["meta"] = {key: value for key, value in result["meta"].items() if key not in TIMES}
        if one.keys() != two.keys() or not all(_same(one[key], two[key]) for key in one):
            different.add(name)
    return sorted(map(str, different))


def _same(one, two):
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and one.numpy().tobytes() == two.numpy().tobytes()
    return one == two


def leftovers(folder):
    """Files that no finished sweep leaves: locks, half-written files, notebooks that did not reach their end, jobs."""
    kept = {"probe.ipynb", "probe.log"}
    return sorted(
        str(path)
        for path in folder.glob("*/*/*")
        if path.name not in kept and (path.name.startswith(".") or path.suffix not in (".pt", ".txt"))
    )


def torture(kills, folder, *arguments, seed=0):
    """Kill a sweep this many times; returns how many sweeps that took, and asserts that each ended as if left alone."""
    draw, folder = random.Random(seed), Path(folder)
    alone = Sweep(folder / "alone", *arguments)
    takes = alone.finish()
    print(f"undisturbed: {takes:.0f} s, {len(alone.seen)} results", flush=True)
    rounds = 0
    while kills:
        rounds += 1
        sweep = Sweep(folder / f"killed-{rounds}", *arguments)
        while kills:
            wait, everything = draw.uniform(0, 0.35 * takes), draw.random() < 0.5
            process = sweep.start()
            try:
                assert process.wait(wait) == 0, f"the sweep failed; see the logs under {sweep.out}"
                break  # it was done sooner
            except subprocess.TimeoutExpired:
                kill(process, everything)
            kills -= 1
            sweep.look()
            print(
                f"killed after {wait:.1f} s{' with its kernels' if everything else ''}, {len(sweep.seen)} results",
                flush=True,
            )
        sweep.finish()
        found = differing(sweep.out, alone.out), leftovers(sweep.out), sweep.replaced
        print(f"sweep {rounds}: different {found[0]}, left over {found[1]}, computed twice {found[2]}", flush=True)
        assert found == ([], [], []), found
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", default="outputs/torture")
    parser.add_argument("--seed", type=int, default=0)
    asked, arguments = parser.parse_known_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    rounds = torture(asked.kills, asked.folder, *(arguments or ["SET=demo"]), seed=asked.seed)
    print(f"{asked.kills} kills in {rounds} sweeps: nothing lost, nothing changed, nothing computed twice")


if __name__ == "__main__":
    sys.exit(main())
