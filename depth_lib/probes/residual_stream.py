"""Reading and steering the residual stream inside a trace."""

import torch


def bytes_of_a_token(llm, blocks_held=1):
    """Bytes that a token takes in a pass: about 16 vectors of the residual's width for each of the `blocks_held` blocks
    whose activations a gradient keeps. Logits are bounded on their own (see `rows_of_logits`)."""
    return 16 * llm.config.get_text_config().hidden_size * llm.dtype.itemsize * blocks_held


def token_budget(llm, budget, blocks_held=1):
    """Tokens in one forward pass: `budget`, or if that is None what takes 4 GiB (on a CPU 1 GiB, and no more than makes
    it faster).

    Free memory does not count: several processes that run one request would each see another number, and make batches
    of different sizes.
    """
    if budget is not None:
        return budget
    if llm.device.type != "cpu":
        return tokens_in(llm, 2**32, blocks_held)
    forward = 8192 if compares_in_batch(llm) else 3072  # more, to make up for each pass's own two rows
    most = forward if blocks_held == 1 else 512
    return max(1, min(most, 2**30 // bytes_of_a_token(llm, blocks_held)))


def tokens_in(llm, n_bytes, blocks_held=1):
    """Tokens of a pass on a GPU with so many bytes for it; at least some."""
    return max(1024 // blocks_held, min(2**17, n_bytes // bytes_of_a_token(llm, blocks_held)))


def rows_of_logits(llm, device):
    """How many rows of logits are computed at once: half a GB of them in the model's dtype; on a CPU 28 MB, which its
    allocator keeps, or what the rate of the product needs."""
    row = llm.config.get_text_config().vocab_size * llm.dtype.itemsize
    return max(256, 28 * 2**20 // row) if device.type == "cpu" else max(1, 2**29 // row)


def has_ranks():
    """Whether this process is one of several that torch.distributed connects."""
    ranks = torch.distributed
    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1


def is_sharded(llm):
    """Whether each layer of the model is shared by several processes, which all run this code."""
    return has_ranks() and getattr(llm.config, "distributed_config", None) is not None


def agreed(value, among=True):
    """Rank 0's value, on every rank, all of which have to come here; a process alone keeps its own.

    For whatever decides which modules run next: ranks that run different ones wait for each other for ever. among:
    whether ranks have to agree at all, for a probe `is_sharded(llm)`.
    """
    if not (among and has_ranks()):
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


def inputs(ids, batch=1):
    """Model inputs for one sequence of token ids [T], `batch` times."""
    return {"input_ids": torch.tensor(ids).expand(batch, -1)}


def with_first(output, h):
    """A module's output with other hidden states."""
    return type(output)([h, *output[1:]]) if isinstance(output, tuple | list) else h


def entering(block):
    """h [B, T, d] that enters a block; several streams [B, T, n, d'] are one of n d' features."""
    return block.input.flatten(2)


def leaving(block):
    """h [B, T, d] that leaves a block."""
    return first(block.output).flatten(2)


def enter(llm, arch, l, h):
    """Let block l read h [B, T, d]."""
    llm.blocks[l].input = h.unflatten(-1, arch["streams"])


def start_at(llm, arch, l, h):
    """Skip the blocks before l, whose input is then set by `enter` (l = L: skip all), h [B, T, d] standing in for them.

    They run all the same where later ones read more of them than the residual.
    """
    streams = h.unflatten(-1, arch["streams"])
    replacement = (streams, *[None] * arch["beside"]) if arch["beside"] else streams
    for k in range(l if arch["starts"] else 0):
        llm.blocks[k].skip(replacement)


def final_residual(llm, arch):
    """h_L [B, T, d], which leaves the last block."""
    return leaving(llm.blocks[arch["n_layers"] - 1])


def contributions(block, arch):
    """h, a and m [B, T, d] of a block, float32 on its device: what enters it, and what attention and MLP add to that.

    0 for a part that the block does not have. Where the two cannot be told apart a is all that the block adds.
    """
    h = entering(block).clone()
    if arch["parts"]:
        a, m = (total_output(modules, h.shape) for modules in parts(block, arch).values())
    else:
        a, m = _change(h, block), None
    device = h.device if a is None else a.device
    zero = torch.zeros(h.shape, dtype=torch.float32, device=device)
    return h.to(device).float(), zero if a is None else a, zero if m is None else m.to(device)


def _change(h, block):
    """h_{l+1} − h_l of a block that reads h, float32."""
    wide = torch.promote_types(h.dtype, torch.float32)
    return (leaving(block).to(wide) - h.to(wide)).float()


def parts(block, arch):
    """Of a and m each, the modules that make it, in the order in which they run: the part is the sum of their outputs
    times scale plus bias (None: none), as (module, scale, bias); an empty list for a part that the block does not have.
    """
    addends, modules = arch["parts"][int(block.path.rpartition(".")[2])], {}
    for part in addends:
        modules[part] = [(block.get(path), scale, bias and block.get(bias)) for path, scale, bias in addends[part]]
    return modules


def rescaling(total, after):
    """The number that makes h + a + m what leaves the block; 1 in most families."""
    with exact(total):
        return (total * after).sum() / total.square().sum()


def total_output(modules, shape, start=0, silenced=None, total=None):
    """The sum of scaled outputs at the places from `start` on, float32: a part [B, T − start, d]; None without modules.

    shape: that of the block's input. silenced: (rows, places) where the part is made 0. total: what the outputs are
    added to, in place. The first output is copied, as some families add in place right after a module returns.
    """
    for module, scale, bias in modules:
        output = module.output
        x = first(output)
        if silenced:
            x = x.clone()
            x.view(shape)[silenced] = 0 if bias is None else -bias / scale
            module.output = with_first(output, x)
        x = x.reshape(shape)[:, start:]
        x = x if scale == 1 else x.float() * scale
        x = x if bias is None else x.float() + bias
        total = x.to(torch.float32, copy=True) if total is None else total.add_(x.to(total.device))
    return total


def added(block, arch, start=0, part=None, silenced=None):
    """What a block adds at the places from `start` on: a + m [B, T − start, d], float32.

    part: "attention" or "mlp", which is made 0 where it is `silenced` (see `total_output`).
    """
    whole = not arch["parts"] or arch["rescales"]
    h = entering(block).clone() if whole else None
    shape, total = block.input.shape, None
    for name, modules in parts(block, arch).items() if arch["parts"] else ():
        total = total_output(modules, shape, start, silenced if name == part else None, total)
    return _change(h, block)[:, start:] if whole else total


def clean_run(llm, arch, ids, with_contributions=True, last=None):
    """h_0..h_L of a prompt, L + 1 tensors [T, d] in the model's dtype, each on its block's device, and the
    contributions c_l = a_l + m_l, L tensors [T, d], float32. No block after `last` runs, unless that is None."""
    n_layers = arch["n_layers"]
    last = n_layers if last is None else last
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            h, c = [], []
            for block in llm.blocks[: last + 1]:
                h.append(entering(block)[0].clone())  # some families add in place
                if with_contributions:
                    c.append(added(block, arch)[0])
            if last >= n_layers:
                h.append(final_residual(llm, arch)[0].clone())
            tracer.stop()
    return h, c


def residuals(llm, arch, ids, last=None):
    """h_0..h_L of a prompt, as in `clean_run`."""
    return clean_run(llm, arch, ids, False, last)[0]


def unembedded(llm, arch, h):
    """unembed(final_norm(h)) of residuals h [N, d], by the model's own modules: [N, V] in the model's dtype."""
    h = h.unflatten(-1, arch["streams"])
    if len(arch["streams"]) > 1:  # what merges them wants a batch
        h = h[None]
    for name in arch["tail"]:
        h = getattr(llm, name)(h)
    return h.flatten(0, -2)


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
