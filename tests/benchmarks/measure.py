"""Seconds of several ways taken in turns, and the peak memory of one of them."""

import ctypes
import gc
import resource
import sys
import time
from pathlib import Path

import torch


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run, device):
    """(seconds of run(), its result)."""
    gc.collect()
    synchronize(device)
    start = time.perf_counter()
    result = run()
    synchronize(device)
    return time.perf_counter() - start, result


def in_turns(ways, device, repeats, patience):
    """(seconds {name: [one a round]}, results {name: [one a round]}) of ways run as a, b, c, a, b, c, …

    What disturbs the machine for a while then disturbs all of them. After `patience` seconds no further round starts.
    """
    times, results = {name: [] for name in ways}, {name: [] for name in ways}
    begin = time.perf_counter()
    for _ in range(repeats):
        for name, run in ways.items():
            taken, result = seconds(run, device)
            times[name].append(taken)
            results[name].append(result)
        if time.perf_counter() - begin > patience:
            break
    return times, results


def peak_memory(run, device):
    """(peak, start) in bytes: what the process has resident (on CUDA: allocated) at most in run(), and before it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated(), before
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)  # else freed memory that the process still holds hides what run() takes
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is resident now
        run()
        return _resident("VmHWM"), before
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, before * unit


def _resident(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
