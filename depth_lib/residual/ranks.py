"""Several processes that run one request together."""

import torch


def has_ranks():
    """Whether this process is one of several that torch.distributed connects."""
    ranks = torch.distributed
    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1


def is_sharded(llm):
    """Whether each layer of the model is shared by several processes, which all run this code."""
    return has_ranks() and getattr(llm.config, "distributed_config", None) is not None


def from_rank_0(value, among=True):
    """Rank 0's value, on every rank, all of which have to come here; a process alone keeps its own.

    Use it for whatever decides which modules run next: ranks that run different ones wait for each other for ever.

    among: whether ranks have to agree at all, for a probe `is_sharded(llm)`.
    """
    if not (among and has_ranks()):
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared)
    return shared[0]
