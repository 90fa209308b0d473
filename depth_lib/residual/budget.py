"""How many tokens share a forward pass of a probe, how many logits are compared at once, and what rounding does."""

import torch

from .ranks import from_rank_0, is_sharded


def tokens_in_pass(llm, arch, h, gradients=False):
    """How many tokens one call of a block may have, of prompts with residuals like h [T, d].

    On a CPU a constant: more are not faster, unless each call has an unmodified row too. On a GPU what fits its memory.
    """
    if h.device.type == "cpu":
        return 512 if gradients else 8192 if compares_in_batch(llm, h) else 2048
    memory = _half_of_a_server(llm, h.dtype.itemsize) if arch.fetched is not None else _half_of_what_is_free(llm)
    return max(1, min(2**17, memory // bytes_of_a_token(llm, h, gradients)))


def bytes_of_a_token(llm, h, gradients):
    """The bytes that one token of a call takes.

    Three or four vectors of the residual's width and of the MLP's, and eager attention's scores, twice in float32;
    with gradients in each block.
    """
    config = llm.config.get_text_config()
    widths = (getattr(config, name, None) for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"))
    mlp = next((width for width in widths if isinstance(width, int)), 4 * h.shape[-1])
    n_bytes = 7 * (h.shape[-1] + mlp) * h.dtype.itemsize // 2
    if config._attn_implementation == "eager":
        heads = getattr(config, "num_attention_heads", 0)  # a list where blocks differ; some kinds have no attention
        n_bytes += 8 * len(h) * (heads if isinstance(heads, int) else max(heads))
    return n_bytes * (len(llm.blocks) if gradients else 1)


def _half_of_a_server(llm, size):
    """Half of the bytes that NDIF (0.1.2) lets a model's process take beside the weights: 15% of them and 500 MiB,
    shared by as many GPUs of 40 GB as hold them. The other half is for what a probe keeps.

    Free memory does not count, as it differs between processes that run one request together.
    """
    weights = sum(weight.numel() for weight in llm._module.parameters()) * size
    return (15 * weights // 100 + 500 * 2**20) // (1 + int(1.15 * weights / 40e9)) // 2


def _half_of_what_is_free(llm):
    """Half of the free bytes of the fullest GPU that holds weights; what torch keeps for reuse is free too."""
    gpus = {weight.device for weight in llm._module.parameters() if weight.device.type == "cuda"}
    cuda = torch.cuda
    free = [cuda.mem_get_info(gpu)[0] + cuda.memory_reserved(gpu) - cuda.memory_allocated(gpu) for gpu in gpus]
    return from_rank_0(min(free, default=2**33), is_sharded(llm)) // 2


def check_budget(budget):
    """ValueError for a budget below 1."""
    if budget is not None and budget < 1:
        raise ValueError(f"budget must be a number of tokens (at least 1) or None, got {budget!r}")


def rounding_unit(h):
    """The machine epsilon of products of residuals like h: of float32 what torch's settings allow on h's device."""
    if h.dtype != torch.float32:
        return torch.finfo(h.dtype).eps
    products = torch.backends.mkldnn if h.device.type == "cpu" else torch.backends.cuda
    setting = products.matmul.fp32_precision
    if setting == "none":  # what all of torch is set to
        setting = torch.backends.fp32_precision
    return {"tf32": 2.0**-10, "bf16": 2.0**-7}.get(setting, torch.finfo(torch.float32).eps)


def compares_in_batch(llm, h):
    """Whether an intervention must be compared with an unmodified row of its own batch.

    Batches of a different size round differently in half precision, in TF32 and with quantised weights.
    """
    return rounding_unit(h) > 1e-6 or getattr(llm.config, "quantization_config", None) is not None


def rows_of_logits(llm, h):
    """How many rows of logits are computed at once from residuals like h: 128 MiB.

    On a CPU 28 MiB, which its allocator reuses, but at least 256 rows, because smaller products are slower.
    """
    row = llm.config.get_text_config().vocab_size * h.dtype.itemsize
    return max(256, 28 * 2**20 // row) if h.device.type == "cpu" else max(1, 2**27 // row)


def logits_in_cache(logits):
    """How many logits are compared at once, in a few float32 copies: on a CPU as many as fit its cache; on a GPU 64 MiB
    a copy."""
    return 2**18 if logits.device.type == "cpu" else 2**24
