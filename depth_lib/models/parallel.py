"""Tensor parallelism: one model on several GPUs, each with a slice of every layer, by torch.distributed.

`torchrun --nproc-per-node N` starts N processes, the ranks. transformers gives each its slices, nnsight shows each
the whole tensors, and every rank runs the same code, because collectives wait for all ranks. So everything that
decides what runs next must be the same on all ranks, or be decided by rank 0.
"""

import hashlib
import os

import nnsight
import torch.distributed as dist
import transformers
from nnsight import TransformersModel
from nnsight.modeling.tp import UnshardableCheckpoint, check_tp_request
from transformers import PreTrainedConfig

from ..residual.ranks import is_sharded
from .errors import ModelError

try:  # it moved between versions of transformers
    from transformers.distributed import tensor_parallel
except ImportError:
    tensor_parallel = None


def check_ranks(n_ranks: int) -> None:
    """Raise ModelError, with the command to run, unless this process is one of `n_ranks`."""
    if n_ranks < 1:
        raise ModelError(
            f"tensor_parallel must be the number of GPUs that share each layer, at least 1, got {n_ranks!r}"
        )
    started = int(os.environ.get("WORLD_SIZE", 1))
    if n_ranks in (1, started):
        return
    raise ModelError(
        f"tensor_parallel={n_ranks} needs {n_ranks} processes, got {started}; run: torchrun --nproc-per-node {n_ranks} "
        'script.py   (in a notebook, use device_map="auto" to spread the blocks over the GPUs)'
    )


def check_degree(name: str, config: PreTrainedConfig, n_ranks: int) -> None:
    """Raise ModelError if the model's heads or widths cannot be divided by `degree`, or these versions cannot load
    slices.
    """
    if n_ranks > 1 and not hasattr(tensor_parallel, "_get_parameter_plan"):  # nnsight reads it at the first trace
        raise ModelError(
            f"nnsight {nnsight.__version__} cannot read models split by transformers {transformers.__version__}; "
            "pip install transformers==5.22.2"
        )
    try:
        check_tp_request(config, n_ranks if n_ranks > 1 else None)
    except UnshardableCheckpoint as error:
        raise ModelError(f"{name} cannot be split over {n_ranks} GPUs: {error}") from error


def check_same(llm: TransformersModel, what: str, value: object) -> None:
    """Raise RuntimeError, on every rank, for a call on a sharded model that differs between ranks."""
    if not is_sharded(llm):
        return
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(repr(value).encode()).hexdigest())
    different = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise RuntimeError(
            f"{what}: rank {', '.join(different)} made a different call from rank 0's; every rank must make the same "
            "calls, with the same arguments"
        )
