"""One row of the table: every way of a workload in turns, and how much their numbers differ."""

import gc
import time
from statistics import median

import torch

from tests.benchmarks.floor import Rates, synchronize


def measure(llm, workload, device, repeats, patience, n_layers=None):
    """Medians of seconds, as a row of the table; of the rivals only `n_layers` layers, scaled up, if that is given.

    The ways run as a, b, c, a, b, c, … so that what disturbs the machine for a while disturbs all of them. After
    `patience` seconds no further round starts.
    """
    some = None
    if n_layers and workload.n_layers and n_layers < workload.n_layers:
        some = spread(workload.n_layers, n_layers)
    scale = workload.n_layers / len(some) if some else 1
    result = workload.ours()  # not timed: what is compiled and allocated once
    ways = {"ours": workload.ours, "by hand": lambda: workload.by_hand(some), "literal": lambda: workload.literal(some)}
    times, numbers, floors = {name: [] for name in ways}, {}, []
    begin = time.perf_counter()
    for _ in range(repeats):
        for name, way in ways.items():
            seconds, numbers[name] = timed(way, device)
            times[name].append(seconds)
        floors.append(workload.floor(result).seconds(Rates(device, llm.dtype)))
        if time.perf_counter() - begin > patience:
            break
    ours, least = median(times["ours"]), median(floors)
    row = {"ours, s": ours}
    for rival in ("by hand", "literal"):
        seconds = median(times[rival]) * scale
        row |= {f"{rival}, s": seconds, f"× {rival}": seconds / ours}
        row[f"difference to {rival}"] = largest_difference(workload.compared(result), numbers[rival], some)
    return {
        **row,
        "floor, s": least,
        "ours / floor": ours / least,
        "rounds": len(floors),
        "layers": len(some or []) or "all",
    }


def spread(n, wanted):
    """`wanted` of 0..n−1 in the middle of equal stretches, so that what falls or rises along them averages out."""
    return [int((2 * k + 1) * n / (2 * wanted)) for k in range(wanted)]


def timed(run, device):
    """(seconds of run(), its result)."""
    gc.collect()
    synchronize(device)
    start = time.perf_counter()
    result = run()
    synchronize(device)
    return time.perf_counter() - start, result


def largest_difference(ours, rival, layers=None):
    """max |ours − rival| / max |rival|, the worst of all keys."""
    rows = slice(None) if layers is None else layers
    off = [(ours[key][rows] - truth.cpu()).abs().max() / truth.abs().max().cpu() for key, truth in rival.items()]
    return torch.stack(off).max().item()  # NaN if any is
