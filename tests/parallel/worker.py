"""What each of two ranks runs: all public probes on a sharded model."""

import datetime
import os
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

import depth_lib as dl
from tests.calls import EVERY, PAIRWISE
from tests.forked import processes
from tests.test_linear_maps import texts as words

SECONDS = 30  # that a rank waits for the other: they run the same code, or never meet


def run_ranks(out: Path, folder: Path, rank_local: bool = False):
    """OUT/<rank>.pt or OUT/<rank>.error, written by two processes; what this one measures on the whole model, too.

    rank_local: a mutation, each rank decides on its own how many tokens a pass has.
    """
    ranks = [processes.Process(target=_run_rank, args=(rank, out, folder, rank_local)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    whole = None if rank_local else _measure(dl.load_model(folder))
    for process in ranks:
        process.join(170)
    return whole


def _run_rank(rank, out, folder, rank_local):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    try:
        torch.set_num_threads(1)
        how = {"init_method": f"file://{out}/meeting", "timeout": datetime.timedelta(seconds=SECONDS)}
        dist.init_process_group("gloo", rank=rank, world_size=2, **how)
        llm = dl.load_model(folder, tensor_parallel=2)
        if rank_local:
            EVERY["block_removal"](llm, budget=64 * (1 + rank))
        torch.save(_measure(llm), out / f"{rank}.pt")
        dist.barrier()
    except Exception:
        (out / f"{rank}.error").write_text(traceback.format_exc())
    os._exit(0)  # gloo's threads are waited for otherwise


def _measure(llm):
    """The tensors of each probe, mode and part at least once."""
    results = {name: EVERY[name](llm) for name in PAIRWISE if name != "depth_by_difficulty"}  # effects at other places
    results["linear_maps"] = dl.linear_maps(llm, llm, words(12))
    return {name: {k: v for k, v in r.items() if isinstance(v, torch.Tensor)} for name, r in results.items()}
