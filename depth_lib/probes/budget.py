"""How much one forward pass of a probe holds, and how large it may be."""

import torch


def bytes_of_a_token(width, dtype, blocks_held=1, mlp=None):
    """Bytes that a token takes in a pass, for each of the `blocks_held` blocks whose activations a gradient keeps:
    three or four vectors of the residual's width and of the MLP's (four times as wide where that is not known).
    Scores and logits come on top (see `bytes_of_scores`, `bytes_of_logits`)."""
    return 7 * (width + (mlp or 4 * width)) * dtype.itemsize * blocks_held // 2


def mlp_width(llm):
    """The width of the model's MLPs, as its config has it; None where it does not, or blocks differ."""
    config = llm.config.get_text_config()
    widths = [getattr(config, name, None) for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")]
    return next((width for width in widths if isinstance(width, int)), None)


def bytes_of_scores(llm, n_places):
    """Bytes that a token of a sequence of n_places takes besides where attention is eager: its scores of each head,
    twice, in float32 or as many bytes. 0 where attention is fused."""
    config = llm.config.get_text_config()
    if config._attn_implementation != "eager":
        return 0
    heads = getattr(config, "num_attention_heads", 0)  # a list where blocks differ; some kinds have no attention
    return 8 * n_places * (heads if isinstance(heads, int) else max(heads))


def bytes_in_pass(llm, h, n_places, blocks_held=1, gradients=False):
    """Bytes that a token of a sequence of n_places takes in a pass: those of `bytes_of_a_token` with one of the two
    scores, or what attention takes before that, if that is more; all of it for each block that a gradient keeps."""
    n_bytes = bytes_of_a_token(h.shape[-1], h.dtype, blocks_held, mlp_width(llm))
    scores = bytes_of_scores(llm, n_places)
    if gradients:  # softmax keeps one of the two, and the tanh of capped scores the other
        capped = getattr(llm.config.get_text_config(), "attn_logit_softcapping", None)
        return n_bytes + blocks_held * scores // (1 if capped else 2)
    return max(n_bytes + scores // 2, 8 * h.shape[-1] * h.dtype.itemsize + scores) if scores else n_bytes


def bytes_of_logits(llm, h, n_rows):
    """Bytes that comparing the logits of n_rows residuals like h takes, as many at once as `rows_of_logits` says: with
    these residuals and their norms, or with float32 copies of those that are compared at once."""
    config, vector = llm.config.get_text_config(), h.shape[-1] * h.dtype.itemsize
    n_rows = min(n_rows, rows_of_logits(llm, h))
    copies = 3 if getattr(config, "final_logit_softcapping", None) else 2
    copied = 4 * copies * min(n_rows * config.vocab_size, logits_in_cache(h))
    return n_rows * config.vocab_size * h.dtype.itemsize + max(2 * n_rows * vector, copied)


def bytes_held(llm, h, n_layers, n_tokens, batch=None, updates="", finals=0, unembedded=0, gradients=False):
    """(lasting, peak): bytes that a probe keeps of a prompt of n_tokens, and holds at most while one pass runs.

    h: residuals [..., d] like the model's; batch: rows and places (N) of the pass (default: the prompt); updates:
    whether what blocks add is "read", or "kept" for all passes; finals: final residuals that are kept for later;
    unembedded: residuals whose logits are compared; gradients: whether activations are kept for them, and what lasts
    are the paths of all blocks, in place of the prompt's residuals.
    """
    vector, (rows, n_places) = h.shape[-1] * h.dtype.itemsize, batch or (1, n_tokens)
    in_pass = bytes_in_pass(llm, h, n_places, n_layers if gradients else 1, gradients) + 2 * vector * bool(updates)
    lasting = n_tokens * (n_layers * 8 * h.shape[-1] if gradients else (n_layers + 1) * vector)
    lasting += n_tokens * n_layers * 4 * h.shape[-1] * (updates == "kept")
    masked = n_places > n_tokens or bytes_of_scores(llm, 1) > 0
    peak = max(rows * n_places * in_pass, bytes_of_logits(llm, h, unembedded))
    return lasting, lasting + peak + finals * vector + masked * n_places**2 * h.dtype.itemsize


def token_budget(llm, h, budget, blocks_held=1):
    """Tokens in one forward pass: `budget`, or if that is None what takes 4 GiB (on a CPU 1 GiB, and no more than makes
    it faster), for residuals like h [..., d], which was read: on a server the model itself may have no weights.

    Free memory does not count: several processes that run one request would each see another number, and make batches
    of different sizes.
    """
    if budget is not None:
        return budget
    n_bytes = bytes_of_a_token(h.shape[-1], h.dtype, blocks_held, mlp_width(llm))
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
    """How many logits are compared at once, each in a few float32 copies: a CPU passes over them many times, and its
    cache holds 2^18 of them; on a GPU 256 MB a copy."""
    return 2**18 if logits.device.type == "cpu" else 2**26


def tokens_of_finals(budget):
    """Of how many tokens final residuals are kept until they are unembedded together: one vector each, where a token of
    a pass takes many."""
    return 8 * budget
