"""Reading and steering the residual stream inside a trace."""

import torch


def bytes_of_a_token(llm, blocks_held=1):
    """A block holds about 16 vectors of the residual's width per token; a gradient holds those of `blocks_held` blocks.
    Logits are bounded on their own (see `rows_of_logits`)."""
    return 16 * llm.config.get_text_config().hidden_size * llm.dtype.itemsize * blocks_held


def token_budget(llm, budget, blocks_held=1):
    """Tokens in one forward pass: `budget`, or if that is None what takes 4 GiB (on a CPU 1 GiB, and no more than makes
    it faster).

    Free memory does not count: several processes that run one request would each see another number, and make batches
    of different sizes.
    """
    if budget is not None:
        return budget
    token = bytes_of_a_token(llm, blocks_held)
    if llm.device.type == "cpu":
        forward = 8192 if compares_in_batch(llm) else 3072  # the more, where every pass has unmodified rows of its own
        most = forward if blocks_held == 1 else 512
        return max(1, min(most, 2**30 // token))
    return max(1024 // blocks_held, min(2**17, 2**32 // token))


def rows_of_logits(llm, device):
    """How many rows of logits are computed at once: 28 MB on a CPU, half a GB elsewhere, in the model's dtype."""
    row = llm.config.get_text_config().vocab_size * llm.dtype.itemsize
    return max(1, (28 * 2**20 if device.type == "cpu" else 2**29) // row)


def is_sharded(llm):
    """Whether each layer of the model is shared by several processes, which all run this code."""
    ranks = torch.distributed
    started = ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
    return started and getattr(llm.config, "distributed_config", None) is not None


def agreed(llm, value):
    """Rank 0's value, on every rank of a sharded model. For whatever decides which modules run next: ranks that run
    different ones would wait for each other for ever."""
    if not is_sharded(llm):
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared)
    return shared[0]


def exact(x):
    """A context for float32 products of ours, on the device of x: a server may run requests under autocast, which would
    round them to bfloat16. For arithmetic on tensors only: the model runs in this thread too, and would run so."""
    return torch.autocast(x.device.type, enabled=False)


def compares_in_batch(llm):
    """Whether an intervention must be compared with an unmodified row of its own batch: products round differently in
    batches of another size, which shows in half precision and where weights are quantised."""
    return llm.dtype.itemsize < 4 or getattr(llm.config, "quantization_config", None) is not None


def first(output):
    """The hidden states of a module that returns them alone or before others."""
    return output[0] if isinstance(output, tuple | list) else output


def inputs(ids, positions=None, mask=None, batch=1):
    """Model inputs for one sequence of token ids [T], `batch` times."""
    encoding = {"input_ids": torch.tensor(ids).expand(batch, -1)}
    if mask is not None:
        encoding["attention_mask"] = mask.expand(batch, -1, -1, -1)
        encoding["position_ids"] = torch.tensor(positions).expand(batch, -1)
    return encoding


def start_at(llm, arch, l, h):
    """Begin the forward pass at block l with the residual stream h [B, T, d] (l = L: after the last).

    The blocks before do not run, unless later ones read more of them than the residual.
    """
    replacement = (h, *[None] * arch["beside"]) if arch["beside"] else h
    for k in range(l if arch["starts"] else 0):
        llm.blocks[k].skip(replacement)
    if l < arch["n_layers"]:
        llm.blocks[l].input = h


def last_block(llm, arch):
    return llm.blocks[arch["n_layers"] - 1]


def contributions(block, arch):
    """h, a and m [B, T, d] of a block, float32 on its device: what enters it, and what attention and MLP add to that.

    0 for a part that the block does not have. Where the two cannot be told apart a is all that the block adds. The
    product makes copies, which some families need: they add in place right after a module returns.
    """
    h = block.input
    if not arch["parts"]:
        before = h.clone()
        a = _change(before, block)
        return before.float(), a, torch.zeros_like(a)
    a, m = (
        first(part.output).reshape(h.shape).float() * arch["residual_scale"] if part else torch.zeros_like(h).float()
        for part in parts(block).values()
    )
    return h.to(a.device).float(), a, m.to(a.device)


def _change(h, block):
    """h_{l+1} − h_l of a block that reads h, float32."""
    wide = torch.promote_types(h.dtype, torch.float32)
    return (first(block.output).to(wide) - h.to(wide)).float()


def parts(block):
    """The modules whose outputs are a and m; None for one that the block does not have."""
    return {name: getattr(block, f"{name}_contribution", None) for name in ("attention", "mlp")}


def added(block, arch, start, change=None, part=None):
    """What a block adds at the places from `start` on: a + m [B, T − start, d], float32. `change(x)` changes in place
    x [B, T, d], what the block's `part` returns: "attention" or "mlp", where they are known."""
    if not arch["parts"]:
        return _change(block.input.clone(), block)[:, start:]
    shape = block.input.shape
    outputs = []
    for name, module in parts(block).items():
        if module is None:
            continue
        output = module.output
        x = first(output)
        if change and name == part:
            x = x.clone()
            change(x.view(shape))
            module.output = (x, *output[1:]) if isinstance(output, tuple) else x
        outputs.append(x.reshape(shape)[:, start:].float())
    a, *m = outputs
    return (a + m[0].to(a.device) if m else a) * arch["residual_scale"]


def residuals(llm, arch, ids):
    """h_0..h_L of a prompt: L + 1 tensors [T, d] in the model's dtype, each on its block's device."""
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            h = [block.input[0].clone() for block in llm.blocks]  # some families add in place
            h.append(first(last_block(llm, arch).output)[0].clone())
            tracer.stop()
    return h


def clean_run(llm, arch, ids):
    """h_0..h_L as `residuals`, and the contributions c_l = a_l + m_l: L tensors [T, d], float32."""
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            h, c = [], []
            for block in llm.blocks:
                h.append(block.input[0].clone())
                c.append(added(block, arch, 0)[0])
            h.append(first(last_block(llm, arch).output)[0].clone())
            tracer.stop()
    return h, c


def unembedded(llm, arch, h):
    """unembed(final_norm(h)) of residuals h [N, d], by the model's own modules: [N, V] in the model's dtype."""
    normed = llm.ln_final(h) if arch["ln_final"] else h
    if arch["project_out"]:
        normed = llm.project_out(normed)
    return llm.unembed(normed)


def finished(arch, logits):
    """Unembedded residuals as the model's logits, float32: scaled and capped where the family does."""
    logits = logits.float()
    if arch["logit_scale"] != 1.0:
        logits = logits * arch["logit_scale"]
    if arch["logit_softcap"] is not None:
        logits = torch.tanh(logits / arch["logit_softcap"]) * arch["logit_softcap"]
    return logits


def lens(llm, arch, h):
    """The logit lens: finish(unembed(final_norm(h))) of residuals h [N, d] as logits [N, V], float32."""
    return finished(arch, unembedded(llm, arch, h))


def probabilities(llm, arch, h):
    """softmax(lens(h)) [N, V] of residuals h [N, d]."""
    return lens(llm, arch, h).softmax(-1)
