"""What every rank runs: all public probes on sharded models; rank 0 computes them on whole ones too.

torchrun --nproc-per-node 2 -m tests.parallel.worker OUT FAMILY… writes OUT/<family>-<rank>.pt and, of the whole models,
OUT/<family>-whole.pt. A last word "rank-local" makes each rank decide on its own how many
tokens a pass holds.
"""

import datetime
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

import depth_lib as dl
from depth_lib import api
from depth_lib.model_maps import maps
from depth_lib.models.parallel import is_first
from tests.calls import EVERY, PAIRWISE
from tests.model_maps.models import words

SECONDS = 30  # that a rank waits for the others: they run the same code, or never meet


def measure(llm):
    """The tensors of each probe, mode and part at least once."""
    results = {name: EVERY[name](llm) for name in PAIRWISE}
    results["linear_maps"] = dl.linear_maps(llm, llm, words(30))
    return {name: {k: v for k, v in r.items() if isinstance(v, torch.Tensor)} for name, r in results.items()}


def main(out, *folders):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=SECONDS))
    free = [2_000_000, 2_000_000_000][dist.get_rank()]  # bytes: maps to two layers at once, and to all
    maps.psutil = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=free))
    if folders[-1] == "rank-local":  # a mutation: what decides is taken from the rank
        *folders, _ = folders
        api.tokens_per_pass = lambda *_, **__: 64 * (1 + dist.get_rank())
    for folder in map(Path, folders):
        sharded = measure(dl.load_model(folder, tensor_parallel=dist.get_world_size()))
        torch.save(sharded, Path(out) / f"{folder.name}-{dist.get_rank()}.pt")
        if is_first():
            torch.save(measure(dl.load_model(folder)), Path(out) / f"{folder.name}-whole.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # gloo's threads are waited for otherwise
