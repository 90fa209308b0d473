"""Reading and steering the residual stream inside a trace."""

import torch


def bytes_of_a_token(width, dtype, blocks_held=1):
    """Bytes that a token takes in a pass: about 16 vectors of the residual's width for each of the `blocks_held` blocks
    whose activations a gradient keeps. Logits are bounded on their own (see `rows_of_logits`)."""
    return 16 * width * dtype.itemsize * blocks_held


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
    forward = 8192 if compares_in_batch(llm, h) else 3072  # more, to make up for each pass's own two rows
    most = forward if blocks_held == 1 else 512
    return max(1, min(most, 2**30 // n_bytes))


def tokens_in(memory, n_bytes, blocks_held=1):
    """Tokens of n_bytes each in a pass on a GPU with so much memory for it; at least some."""
    return max(1024 // blocks_held, min(2**17, memory // n_bytes))


def rows_of_logits(llm, h):
    """How many rows of logits are computed at once from residuals like h: half a GB of them in the model's dtype; on a
    CPU 28 MB, which its allocator keeps, or what the rate of the product needs."""
    row = llm.config.get_text_config().vocab_size * h.dtype.itemsize
    return max(256, 28 * 2**20 // row) if h.device.type == "cpu" else max(1, 2**29 // row)


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


def compares_in_batch(llm, h):
    """Whether an intervention on residuals like h must be compared with an unmodified row of its own batch: products
    round differently in batches of another size, which shows in half precision, in TF32 and where weights are
    quantised."""
    coarse = h.dtype.itemsize < 4 or torch.get_float32_matmul_precision() != "highest"
    return coarse or getattr(llm.config, "quantization_config", None) is not None


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
    """Let block l read h [B, T, d]. Not for use after `leaving` was read of block l (see `leave`)."""
    llm.blocks[l].input = h.unflatten(-1, arch["streams"])


def leave(llm, arch, l, h):
    """Let block l return h [B, T, d], without reading what it returns: nothing is sent back by the model's process."""
    llm.blocks[l].output = _as_output(arch, h)


def start_at(llm, arch, l, h):
    """Let block l read h [B, T, d] and skip the blocks before it.

    They run all the same where later ones read more of them than the residual.
    """
    if l == 0 or not arch["starts"]:
        return enter(llm, arch, l, h)
    _skip(llm, arch, 0, l, h)


def finish(llm, arch, l, h):
    """Let no block run from l on, nor the head: what a trace returns is sent back, and logits are large. (After
    `tracer.stop()` a server would run no further trace of the session.) h [B, T, d]: any residuals of this trace."""
    if l < arch["n_layers"] and arch["starts"]:
        rows = h[:1] if arch["grows"] else h  # gpt_bigcode reshapes what leaves its final norm to the batch
        _skip(llm, arch, l, arch["n_layers"], rows.clone())  # cloned, as a view is sent with all it is a view of
    if not is_sharded(llm):  # ranks gather the slices of the head's own output
        getattr(llm, arch["tail"][-1]).skip(h[:1, :1, :1].clone())


def _skip(llm, arch, first, end, h):
    """Skip the blocks from `first` on, and let that before `end` return h."""
    for l in range(first, end):
        llm.blocks[l].skip(_as_output(arch, h if l == end - 1 else h[:1, :1].clone()))


def _as_output(arch, h):
    """What a block returns to make h [B, T, d] the residual stream."""
    streams = h.unflatten(-1, arch["streams"])
    return streams if arch["beside"] is None else (streams, *[None] * arch["beside"])


def final_residual(llm, arch):
    """h_L [B, T, d], which leaves the last block."""
    return leaving(llm.blocks[arch["n_layers"] - 1])


def contributions(block, arch):
    """h, a and m [B, T, d] of a block, float32 on its device: what enters it, and what attention and MLP add to that.

    0 for a part that the block does not have. Where the two cannot be told apart a is all that the block adds.
    """
    h = entering(block).clone()
    a, m = a_and_m(block, arch, h)
    return h.to(a.device).float(), a, m


def a_and_m(block, arch, h, after=None, read=None):
    """a and m of a block that h enters, as in `contributions`. after: what leaves it, if that was read; read: as for
    `total_output`."""
    if arch["parts"]:
        a, m = (total_output(modules, h.shape, read=read) for modules in parts(block, arch).values())
    else:
        a, m = _change(h, leaving(block) if after is None else after), None
    device = h.device if a is None else a.device
    zero = torch.zeros(h.shape, dtype=torch.float32, device=device)
    return zero if a is None else a, zero if m is None else m.to(device)


def _change(before, after):
    """after − before, float32."""
    wide = torch.promote_types(before.dtype, torch.float32)
    return (after.to(wide) - before.to(wide)).float()


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


def total_output(modules, shape, start=0, total=None, read=None):
    """The sum of scaled outputs at the places from `start` on, float32: a part [B, T − start, d]; None without modules.

    shape: that of the block's input. total: what the outputs are added to, in place. read: what gives a module's output
    (default: waits for it). The first output is copied, as some families add in place right after a module returns.
    """
    for module, scale, bias in modules:
        x = first(read(module) if read else module.output)
        x = x.reshape(shape)[:, start:]
        x = x if scale == 1 else x.float() * scale
        x = x if bias is None else x.float() + bias
        total = x.to(torch.float32, copy=True) if total is None else total.add_(x.to(total.device))
    return total


def read_whole(arch):
    """Whether what a block adds is the difference of what leaves and what enters it."""
    return not arch["parts"] or arch["rescales"]


def watched(tracer, llm, arch, layers):
    """A cache of what the modules of a and m return in these blocks, made before anything is read: in another process
    it gets each output once, while what is read goes there and back. None where blocks are read as a whole."""
    if read_whole(arch):
        return None
    return tracer.cache(modules=[module for l in layers for module in modules_of(llm.blocks[l], arch)], device=None)


def silence(block, arch, h, part, rows, places):
    """Make a part ("attention", "mlp") of a block, which h [B, T, d] enters, 0 in these rows and places."""
    for module, scale, bias in parts(block, arch)[part]:
        first(module.output).view(h.shape)[rows, places] = 0 if bias is None else -bias / scale


def changed_in_place(llm, arch, ids):
    """h_0 [2, d] of the first two tokens, and the paths of those modules of a and m whose outputs are changed in place
    once they are there, so that a cache would have them changed."""
    outputs = []
    with torch.no_grad():
        with llm.trace(inputs(ids[:2]), use_cache=False):
            h = entering(llm.blocks[0]).clone()
            for block in () if read_whole(arch) else llm.blocks:
                for module in modules_of(block, arch):
                    outputs.append((module.path, output := first(module.output), output._version))
            finish(llm, arch, 0 if read_whole(arch) else arch["n_layers"], h)
    return h[0], {path for path, output, version in outputs if output._version != version}


def modules_of(block, arch):
    """The modules that make a and m of a block, in the order in which they run."""
    return [module for of_part in parts(block, arch).values() for module, _, _ in of_part]


def overwritten(block, arch, in_place):
    """Copies of those outputs in a block that the model changes in place, by the module's path."""
    return {m.path: first(m.output).clone() for m in modules_of(block, arch) if m.path in in_place}


def added(block, arch, h, after, cache, copies, start=0):
    """What a block that h enters and `after` leaves has added at the places from `start` on [B, T − start, d], float32.

    cache: see `watched`, from which the outputs are taken out; copies: those that are not to be had there.
    """
    if cache is None:
        return _change(h, after)[:, start:]
    total = None
    for modules in parts(block, arch).values():
        total = total_output(modules, h.shape, start, total, lambda module: _taken(module, cache, copies))
    return total


def _taken(module, cache, copies):
    (entry,) = cache._cache.entries.pop(module.path)
    return copies.get(module.path, entry.output)


def read_stream(llm, arch, with_contributions=False, last=None):
    """Inside a trace of one prompt: h_0..h_L, L + 1 tensors [T, d] in the model's dtype, each on its block's device,
    and if asked for the contributions c_l = a_l + m_l, L tensors [T, d], float32. No block after `last` is read, unless
    that is None."""
    n_layers = arch["n_layers"]
    n_read = n_layers if last is None or last >= n_layers else last + with_contributions
    h, c = [entering(llm.blocks[0])[0].clone()], []  # cloned, as some families add in place
    for block in llm.blocks[:n_read]:
        if with_contributions and not read_whole(arch):
            total = None
            for modules in parts(block, arch).values():
                total = total_output(modules, h[-1][None].shape, 0, total)
            c.append(total[0])
        h.append(leaving(block)[0].clone())
        if with_contributions and read_whole(arch):
            c.append(_change(h[-2], h[-1]))
    return h, c


def clean_run(llm, arch, ids, with_contributions=True, last=None):
    """What `read_stream` reads of a prompt's tokens; no block runs after those that are read."""
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False):
            h, c = read_stream(llm, arch, with_contributions, last)
            finish(llm, arch, len(h) - 1, h[-1][None])
    return h, c


def residuals(llm, arch, ids, last=None):
    """h_0..h_L of a prompt, as in `clean_run`."""
    return clean_run(llm, arch, ids, with_contributions=False, last=last)[0]


def unembedded(llm, arch, h):
    """unembed(final_norm(h)) of residuals h [N, d], by the model's own modules: [N, V] in the model's dtype."""
    h = h.unflatten(-1, arch["streams"])
    if len(arch["streams"]) > 1:  # what merges them wants a batch
        h = h[None]
    *before, unembed = arch["tail"]
    for name in before:
        h = getattr(llm, name)(h)
    weights = _fetched(llm, arch, h)
    logits = getattr(llm, unembed)(h) if weights is None else torch.nn.functional.linear(h, weights)
    return logits.flatten(0, -2)


def _fetched(llm, arch, h):
    """The unembedding's weights [V, d], where arch["fetched"] says that the model runs in another process, once more
    rows than d have been asked for: from then on their logits would be more to send. None where calling is right.

    They are what the module makes of unit vectors, and used if they give the same bits as the module.
    """
    fetched = arch.get("fetched")
    if fetched is None:
        return None
    fetched["rows"] = fetched.get("rows", 0) + h.shape[:-1].numel()
    if "weights" not in fetched and fetched["rows"] > h.shape[-1]:
        unit = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device).split(rows_of_logits(llm, h))
        weights = torch.cat([llm.unembed(some).T for some in unit], dim=1)
        few = h.flatten(0, -2)[:8]
        agree = torch.equal(torch.nn.functional.linear(few, weights), llm.unembed(few))
        fetched["weights"] = weights if agree else None
    return fetched.get("weights")


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
