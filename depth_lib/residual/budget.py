"""How many tokens share a forward pass of a probe, how many logits are compared at once, and what rounding does."""

import torch


def tokens_in_pass(llm, h, memory=None, gradients=False):
    """How many tokens a forward pass over prompts with residuals like h [T, d] may have: what `memory` bytes hold.

    A token takes three or four vectors of the residual's width and of the MLP's, and eager attention's scores of T
    others, twice in float32; with gradients in each block. By default a CPU has 1 GiB, and no more tokens than are
    faster together, and a GPU 4 GiB, and at most half of what NDIF (0.1.2) lets a model's process take beside the
    weights: 15 % of them and 500 MiB, shared by as many GPUs of 40 GB as hold them. The other half is for what a probe
    keeps between passes. Free memory does not count, as it differs between processes that run one request together.
    """
    config, size = llm.config.get_text_config(), h.dtype.itemsize
    widths = (getattr(config, name, None) for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"))
    mlp = next((width for width in widths if isinstance(width, int)), 4 * h.shape[-1])
    n_bytes = 7 * (h.shape[-1] + mlp) * size // 2
    if config._attn_implementation == "eager":
        heads = getattr(config, "num_attention_heads", 0)  # a list where blocks differ; some kinds have no attention
        n_bytes += 8 * len(h) * (heads if isinstance(heads, int) else max(heads))
    n_bytes *= len(llm.blocks) if gradients else 1
    if memory is None and h.device.type == "cpu":
        most = 8192 if compares_in_batch(llm, h) else 3072  # more, to make up for each pass's own row
        return max(1, min(512 if gradients else most, 2**30 // n_bytes))
    if memory is None:
        weights = sum(weight.numel() for weight in llm._module.parameters()) * size
        memory = min(2**32, (15 * weights // 100 + 500 * 2**20) // (1 + int(1.15 * weights / 40e9)) // 2)
    return max(1, min(2**17, memory // n_bytes))


def check_budget(budget):
    """ValueError for a budget that is neither None nor a whole number of at least 1."""
    if budget is not None and (type(budget) is not int or budget < 1):  # True is an int too
        raise ValueError(f"budget {budget!r} is no number of tokens; give a whole number of at least 1, or None.")


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
    """Whether an intervention on residuals like h must be compared with an unmodified row of its own batch: products
    round differently in batches of another size, which shows in half precision, in TF32 and where weights are
    quantised."""
    return rounding_unit(h) > 1e-6 or getattr(llm.config, "quantization_config", None) is not None


def rows_of_logits(llm, h):
    """How many rows of logits are computed at once from residuals like h: 128 MiB; on a CPU 28, which its
    allocator reuses, but at least 256 rows, as products of fewer are slower."""
    row = llm.config.get_text_config().vocab_size * h.dtype.itemsize
    return max(256, 28 * 2**20 // row) if h.device.type == "cpu" else max(1, 2**27 // row)


def logits_in_cache(logits):
    """How many logits are compared at once, in a few float32 copies: on a CPU as many as fit its cache; on a GPU 64 MiB
    a copy."""
    return 2**18 if logits.device.type == "cpu" else 2**24
