"""One row of the table: every way of a workload in turns, and how much their numbers differ."""

import gc
import time
from statistics import median

import torch

PATIENCE = 90  # seconds after which no further round starts


def measure(llm, workload, device, n_layers=None, rounds=3):
    """Medians of seconds, as a row of the table; of the rivals only `n_layers` layers, scaled up, if that is given.

    The ways run as a, b, c, a, b, c, … so that what disturbs the machine for a while disturbs all of them.
    """
    some, scale = None, 1
    if n_layers and workload.n_layers and n_layers < workload.n_layers:
        some = spread(workload.n_layers, n_layers)
        scale = workload.n_layers / n_layers

    def by_hand():
        with torch.device(device):  # where it makes its tensors
            return workload.by_hand(some)

    ways = {"ours": workload.ours, "by hand": by_hand, "literal": lambda: workload.literal(some)}
    results, times = {"ours": workload.ours()}, {name: [] for name in (*ways, "floor")}  # untimed: it allocates
    begin = time.perf_counter()
    for _ in range(rounds):
        for name, way in ways.items():
            seconds, results[name] = timed(way, device)
            times[name].append(seconds)
        times["floor"].append(workload.floor(results["ours"]).seconds(device, llm.dtype))
        if time.perf_counter() - begin > PATIENCE:
            break
    seconds = {
        name: median(of_way) * (scale if name in ("by hand", "literal") else 1) for name, of_way in times.items()
    }
    return {
        "seconds": seconds["ours"],
        "by hand, s": seconds["by hand"],
        "× by hand": seconds["by hand"] / seconds["ours"],
        "× literal": seconds["literal"] / seconds["ours"],
        "ours / unavoidable": seconds["ours"] / seconds["floor"],
        "difference from by hand": largest_difference(results["ours"], results["by hand"], some),
        "difference from literal": largest_difference(results["ours"], results["literal"], some),
    }


def spread(n, wanted):
    """`wanted` of 0..n−1 in the middle of equal stretches, so that what falls or rises along them averages out."""
    return [int((2 * k + 1) * n / (2 * wanted)) for k in range(wanted)]


def timed(run, device):
    """(seconds of run(), its result)."""
    gc.collect()
    start = time.perf_counter()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def largest_difference(ours, rival, layers=None):
    """max |ours − rival| / max |rival|, the worst of the rival's keys."""
    rows = slice(None) if layers is None else layers
    off = [(ours[key][rows] - truth.cpu()).abs().max() / truth.abs().max().cpu() for key, truth in rival.items()]
    return torch.stack(off).max().item()  # NaN if any is
