"""Whether this machine multiplies bfloat16 faster than float32: some CPUs do by ten times, others convert first."""

import time

import torch


def bfloat16_gain(repeats: int = 5) -> float:
    """How many times as fast the CPU multiplies matrices, of a small model's size, in bfloat16 as in float32."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.ones(512, 1024, dtype=dtype), torch.ones(2048, 1024, dtype=dtype)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            x @ weight.T
            times.append(time.perf_counter() - start)
        seconds[dtype] = min(times)
    return seconds[torch.float32] / seconds[torch.bfloat16]
