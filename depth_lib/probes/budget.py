"""How much memory a forward pass of a probe takes, and how many tokens it may have."""

import torch


def bytes_of_a_token(width, dtype, blocks_held=1, mlp=None):
    """Bytes per token of a pass, without attention scores and logits: three or four vectors of the residual's width and
    of the MLP's (default: four times that), for each of the blocks whose activations are kept for gradients."""
    return 7 * (width + (mlp or 4 * width)) * dtype.itemsize * blocks_held // 2


def mlp_width(llm):
    """The width of the model's MLPs from its config; None if it is not there or differs between blocks."""
    config = llm.config.get_text_config()
    widths = [getattr(config, name, None) for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")]
    return next((width for width in widths if isinstance(width, int)), None)


def bytes_of_scores(llm, n_places):
    """Bytes per token of eager attention's scores in a sequence of n_places, twice, in float32; 0 if it is fused."""
    config = llm.config.get_text_config()
    if config._attn_implementation != "eager":
        return 0
    heads = getattr(config, "num_attention_heads", 0)  # a list where blocks differ; some kinds have no attention
    return 8 * n_places * (heads if isinstance(heads, int) else max(heads))


def bytes_in_pass(llm, h, n_places, blocks_held=1, gradients=False):
    """Bytes per token of a pass over sequences of n_places: `bytes_of_a_token` with one copy of the scores, or if it is
    more, two copies and eight vectors, as attention takes; for gradients, of each block."""
    n_bytes = bytes_of_a_token(h.shape[-1], h.dtype, blocks_held, mlp_width(llm))
    scores = bytes_of_scores(llm, n_places)
    if gradients:  # softmax keeps one of the two, and the tanh of capped scores the other
        capped = getattr(llm.config.get_text_config(), "attn_logit_softcapping", None)
        return n_bytes + blocks_held * scores // (1 if capped else 2)
    return max(n_bytes + scores // 2, 8 * h.shape[-1] * h.dtype.itemsize + scores) if scores else n_bytes


def bytes_of_logits(llm, h, n_rows):
    """Bytes for comparing the logits of n_rows residuals like h, `rows_of_logits` at a time: the logits, with the
    residuals and their norms or with float32 copies of the logits compared at once."""
    config, vector = llm.config.get_text_config(), h.shape[-1] * h.dtype.itemsize
    n_rows = min(n_rows, rows_of_logits(llm, h))
    copies = 3 if getattr(config, "final_logit_softcapping", None) else 2
    copied = 4 * copies * min(n_rows * config.vocab_size, logits_in_cache(h))
    return n_rows * config.vocab_size * h.dtype.itemsize + max(2 * n_rows * vector, copied)


def bytes_held(llm, h, n_layers, n_tokens, batch=None, updates="", finals=0, unembedded=0, gradients=False):
    """(lasting, peak): bytes a probe keeps for a prompt of n_tokens between passes, and at most while one pass runs.

    h: residuals [..., d] like the model's; batch: (rows, places) of the pass (default: the prompt); updates: "read" if
    the blocks' updates are read, "kept" if they last; finals: how many final residuals of earlier passes a growing
    batch keeps; unembedded: how many residuals' logits are compared; gradients: whether the pass keeps activations for
    gradients; then the paths of all blocks last, in place of the prompt's residuals.
    """
    vector, (rows, n_places) = h.shape[-1] * h.dtype.itemsize, batch or (1, n_tokens)
    in_pass = bytes_in_pass(llm, h, n_places, n_layers if gradients else 1, gradients) + 2 * vector * bool(updates)
    lasting = n_tokens * (n_layers * 8 * h.shape[-1] if gradients else (n_layers + 1) * vector)
    lasting += n_tokens * n_layers * 4 * h.shape[-1] * (updates == "kept")
    masked = bytes_of_scores(llm, 1) > 0
    first_row = n_places * 2 * vector * bool(finals)  # of a growing batch: its embeddings, and a copy of it to change
    peak = max(rows * n_places * in_pass + first_row, bytes_of_logits(llm, h, unembedded))
    return lasting, lasting + peak + finals * vector + masked * n_places**2 * h.dtype.itemsize


def token_budget(llm, h, budget, blocks_held=1):
    """Tokens in one forward pass: `budget`, or by default as many as take `memory_of_a_pass` (on a CPU 1 GiB, and no
    more than are faster together). h: residuals [..., d] that were read, as a model on a server may have no weights.

    It does not depend on free memory, which differs between processes that run one request together.
    """
    if budget is not None:
        return budget
    n_bytes = bytes_of_a_token(h.shape[-1], h.dtype, blocks_held, mlp_width(llm))
    if h.device.type != "cpu":
        return tokens_in(memory_of_a_pass(llm, h), n_bytes, blocks_held)
    forward = 8192 if compares_in_batch(llm, h) else 3072  # more, to make up for each pass's own row
    most = forward if blocks_held == 1 else 512
    return max(1, min(most, 2**30 // n_bytes))


def memory_of_a_pass(llm, h):
    """Bytes: 4 GiB, and at most half of what NDIF (0.1.2) lets a model's process take on each GPU beside the weights,
    15 % of them and 500 MiB, shared by as many GPUs of 40 GB as hold them. The other half is for what a probe keeps
    between passes."""
    weights = sum(weight.numel() for weight in llm._module.parameters()) * h.dtype.itemsize
    n_gpus = 1 + int(1.15 * weights / 40e9)
    return min(2**32, (15 * weights // 100 + 500 * 2**20) // n_gpus // 2)


def tokens_in(memory, n_bytes, blocks_held=1):
    """Tokens of n_bytes each for a pass in this much memory of a GPU; at least 1024 / blocks_held."""
    return max(1024 // blocks_held, min(2**17, memory // n_bytes))


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


def tokens_of_finals(budget):
    """How many final residuals are kept until they are unembedded together."""
    return 8 * budget
