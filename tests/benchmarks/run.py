"""One row of the table: both ways of a workload in turns, and how much their numbers differ."""

import gc
import time
from statistics import median

import torch

PATIENCE = 90  # seconds after which no further round starts


def measure(llm, workload, device, n_layers=None, rounds=3):
    """Medians of seconds, as a row of the table; of the literal way `n_layers` layers, scaled up, if that is given.

    The ways run as a, b, c, a, b, c, … so that what disturbs the machine for a while disturbs all of them.
    """
    some, scale = None, 1
    if n_layers and workload.n_layers and n_layers < workload.n_layers:
        some = spread(workload.n_layers, n_layers)
        scale = workload.n_layers / n_layers
    result = workload.ours()  # not timed: what is compiled and allocated once
    times, begin = [], time.perf_counter()
    while len(times) < rounds and time.perf_counter() - begin < PATIENCE:
        ours, result = timed(workload.ours, device)
        literal, truth = timed(lambda: workload.literal(some), device)
        times.append((ours, scale * literal, workload.floor(result).seconds(device, llm.dtype)))
    ours, literal, floor = map(median, zip(*times, strict=True))
    return {
        "seconds": ours,
        "literal, s": literal,
        "× literal": literal / ours,
        "ours / unavoidable": ours / floor,
        "difference to literal": largest_difference(result, truth, some),
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


def largest_difference(ours, literal, layers=None):
    """max |ours − literal| / max |literal|, the worst of the keys of the literal way."""
    rows = slice(None) if layers is None else layers
    off = [(ours[key][rows] - truth.cpu()).abs().max() / truth.abs().max().cpu() for key, truth in literal.items()]
    return torch.stack(off).max().item()  # NaN if any is
