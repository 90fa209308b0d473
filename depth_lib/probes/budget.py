"""How much one forward pass of a probe holds, and how large it may be."""

import torch


def bytes_of_a_token(width, dtype, blocks_held=1):
    """Bytes that a token takes in a pass: about 16 vectors of the residual's width for each of the `blocks_held` blocks
    whose activations a gradient keeps. Logits are bounded on their own (see `rows_of_logits`)."""
    return 16 * width * dtype.itemsize * blocks_held


def bytes_of_scores(llm, h, n_places):
    """Bytes that a token of a sequence of n_places takes besides where attention is eager: its scores of each head, in
    the model's dtype, with the mask added, and as softmax computes them, in float32. 0 where attention is fused."""
    config = llm.config.get_text_config()
    if config._attn_implementation != "eager":
        return 0
    heads = getattr(config, "num_attention_heads", 0)  # a list where blocks differ; some kinds have no attention
    heads = heads if isinstance(heads, int) else max(heads)
    return heads * n_places * (2 * h.dtype.itemsize + 4)


def token_budget(llm, h, budget, blocks_held=1):
    """Tokens in one forward pass: `budget`, or if that is None what takes 4 GiB (on a CPU 1 GiB, and no more than makes
    it faster), for residuals like h [..., d], which was read: on a server the model itself may have no weights.

    Free memory does not count: several processes that run one request would each see another number, and make batches
    of different sizes.
    """
    if budget is not None:
        return budget
    n_bytes = bytes_of_a_token(h.shape[-1], h.dtype, blocks_held)
    if h.device.type != "cpu":
        return tokens_in(2**32, n_bytes, blocks_held)
    forward = 8192 if compares_in_batch(llm, h) else 3072  # more, to make up for each pass's own row
    most = forward if blocks_held == 1 else 512
    return max(1, min(most, 2**30 // n_bytes))


def tokens_in(memory, n_bytes, blocks_held=1):
    """Tokens of n_bytes each in a pass on a GPU with so much memory for it; at least some."""
    return max(1024 // blocks_held, min(2**17, memory // n_bytes))


def compares_in_batch(llm, h):
    """Whether an intervention on residuals like h must be compared with an unmodified row of its own batch: products
    round differently in batches of another size, which shows in half precision, in TF32 and where weights are
    quantised."""
    coarse = h.dtype.itemsize < 4 or torch.get_float32_matmul_precision() != "highest"
    return coarse or getattr(llm.config, "quantization_config", None) is not None


def rows_of_logits(llm, h):
    """How many rows of logits are computed at once from residuals like h: half a GB of them in the model's dtype; on a
    CPU 28 MB, which its allocator keeps, or what the rate of the product needs."""
    row = llm.config.get_text_config().vocab_size * h.dtype.itemsize
    return max(256, 28 * 2**20 // row) if h.device.type == "cpu" else max(1, 2**29 // row)


def logits_in_cache(logits):
    """How many logits are compared at once: a CPU passes over them many times, and its cache holds 2^18 of them."""
    return 2**18 if logits.device.type == "cpu" else logits.numel()


def tokens_of_finals(budget):
    """Of how many tokens final residuals are kept until they are unembedded together: one vector each, where a token of
    a pass takes many."""
    return 8 * budget
