"""Reading and steering the residual stream inside a trace."""

import torch

from .ranks import is_sharded


def hidden_states(output):
    """The hidden states of a module that returns them alone or before others."""
    return output[0] if isinstance(output, tuple | list) else output


def inputs(llm, arch, ids, batch=1):
    """Model inputs for one sequence of token ids [T], `batch` times, of a model that is as before any pass."""
    forget(llm, arch)
    return {"input_ids": torch.tensor(ids).expand(batch, -1)} | dict.fromkeys(arch.asks, False)


def forget(llm, arch):
    """Undo what earlier passes left in the model, on a server those of other people too: dynamic rotary frequencies
    stay those of the longest sequence so far until a short one runs, so one of a single token does."""
    if arch.remembers:
        with llm.trace({"input_ids": torch.zeros(1, 1, dtype=torch.long)}, use_cache=False):
            skip_rest(llm, arch, arch.n_layers, final_residual(llm, arch))


def with_hidden_states(output, h):
    """A module's output with other hidden states."""
    return type(output)([h, *output[1:]]) if isinstance(output, tuple | list) else h


def entering(block):
    """h [B, T, d] that enters a block; several streams [B, T, n, d'] are one of n d' features."""
    return block.input.flatten(2)


def leaving(block):
    """h [B, T, d] that leaves a block."""
    return hidden_states(block.output).flatten(2)


def enter(llm, arch, l, h):
    """Let block l read h [B, T, d]. Not for use after `leaving` was read of block l (see `leave`)."""
    llm.blocks[l].input = h.unflatten(-1, arch.streams)


def leave(llm, arch, l, h):
    """Let block l return h [B, T, d], without reading what it returns: nothing is sent back by the model's process."""
    llm.blocks[l].output = _as_output(arch, h)


def start_at(llm, arch, l, h):
    """Let block l read h [B, T, d] and skip the blocks before it.

    They run all the same where later ones read more of them than the residual.
    """
    if l == 0 or not arch.can_skip_blocks:
        return enter(llm, arch, l, h)
    _skip(llm, arch, 0, l, h)


def skip_rest(llm, arch, l, h):
    """Let no block run from l on, nor the head: what a trace returns is sent back, and logits are large. (After
    `tracer.stop()` a server would run no further trace of the session.) h [B, T, d]: any residuals of this trace."""
    if l < arch.n_layers and arch.can_skip_blocks:
        rows = h[:1] if arch.can_add_rows else h  # gpt_bigcode reshapes what leaves its final norm to the batch
        _skip(llm, arch, l, arch.n_layers, rows.clone())  # cloned, as a view is sent with all it is a view of
    if not is_sharded(llm):  # ranks gather the slices of the head's own output
        getattr(llm, arch.tail[-1]).skip(h[:1, :1, :1].clone())


def _skip(llm, arch, begin, end, h):
    """Skip the blocks from `begin` on, and let that before `end` return h."""
    for l in range(begin, end):
        llm.blocks[l].skip(_as_output(arch, h if l == end - 1 else h[:1, :1].clone()))


def _as_output(arch, h):
    """What a block returns to make h [B, T, d] the residual stream."""
    streams = h.unflatten(-1, arch.streams)
    return streams if arch.n_other_outputs is None else (streams, *[None] * arch.n_other_outputs)


def final_residual(llm, arch):
    """h_L [B, T, d], which leaves the last block."""
    return leaving(llm.blocks[arch.n_layers - 1])


def a_and_m(block, arch, h, after=None, read=None):
    """a and m [B, T, d] of a block that h enters: what attention and MLP add to it, float32 on the block's device.

    0 for a part that the block does not have. Where the two cannot be told apart a is all that the block adds. after:
    what leaves the block, if that was read; read: as for `total_output`.
    """
    if arch.parts:
        a, m = (total_output(modules, h.shape, read=read) for modules in parts(block, arch).values())
    else:
        a, m = difference(h, leaving(block) if after is None else after), None
    device = h.device if a is None else a.device
    zero = torch.zeros(h.shape, dtype=torch.float32, device=device)
    return zero if a is None else a, zero if m is None else m.to(device)


def difference(before, after):
    """after − before, float32."""
    wide = torch.promote_types(before.dtype, torch.float32)
    return (after.to(wide) - before.to(wide)).float()


def parts(block, arch):
    """Of a and m each, the modules that make it, in the order in which they run: the part is the sum of their outputs
    times scale plus bias (None: none), as (module, scale, bias); an empty list for a part that the block does not have.
    """
    addends, modules = arch.parts[int(block.path.rpartition(".")[2])], {}
    for part in addends:
        modules[part] = [(block.get(path), scale, bias and block.get(bias)) for path, scale, bias in addends[part]]
    return modules


def rescaling(total, after):
    """The number that makes h + a + m what leaves the block; 1 in most families."""
    return (total * after).sum() / total.square().sum()


def total_output(modules, shape, start=0, total=None, read=None):
    """The sum of scaled outputs at the places from `start` on, float32: a part [B, T − start, d]; None without modules.

    shape: that of the block's input. total: what the outputs are added to, in place. read: what gives a module's output
    (default: waits for it). The first output is copied, as some families add in place right after a module returns.
    """
    for module, scale, bias in modules:
        x = hidden_states(read(module) if read else module.output)
        x = x.reshape(shape)[:, start:]
        x = x if scale == 1 else x.float() * scale
        x = x if bias is None else x.float() + bias
        total = x.to(torch.float32, copy=True) if total is None else total.add_(x.to(total.device))
    return total


def read_whole(arch):
    """Whether what a block adds is the difference of what leaves and what enters it."""
    return not arch.parts or arch.rescales


def silence(block, arch, h, part, where):
    """Make a part ("attention", "mlp") of a block, which h [B, T, d] enters, 0 at `where`: (row, positions) of it."""
    for module, scale, bias in parts(block, arch)[part]:
        added = hidden_states(module.output).view(h.shape)
        for row, positions in where:
            added[row, positions] = 0 if bias is None else -bias / scale


def modules_of(block, arch):
    """The modules that make a and m of a block, in the order in which they run."""
    return [module for of_part in parts(block, arch).values() for module, _, _ in of_part]


def read_stream(llm, arch, h_0, with_contributions=False, last=None):
    """Inside a trace of one prompt, after its h_0 [T, d]: h_0..h_L, L + 1 tensors [T, d] in the model's dtype, each on
    its block's device, and if asked for the contributions c_l = a_l + m_l, L tensors [T, d], float32. No block after
    `last` is read, unless that is None."""
    n_layers, whole, h, c = arch.n_layers, read_whole(arch), [h_0], []
    n_read = n_layers if last is None or last >= n_layers else last + with_contributions
    for block in llm.blocks[:n_read]:
        if with_contributions and not whole:
            c.append(sum_of_parts(block, arch, h[-1][None].shape)[0])
        h.append(leaving(block)[0].clone())
        if with_contributions and whole:
            c.append(difference(h[-2], h[-1]))
    return h, c


def first_residual(llm):
    """h_0 [T, d] of a prompt, copied, as some families add in place."""
    return entering(llm.blocks[0])[0].clone()


def sum_of_parts(block, arch, shape, start=0, read=None):
    """a + m of a block as its modules return them, as in `total_output`."""
    total = None
    for modules in parts(block, arch).values():
        total = total_output(modules, shape, start, total, read)
    return total


def clean_run(llm, arch, ids, with_contributions=False, last=None):
    """What `read_stream` reads of a prompt's tokens; no block runs after those that are read."""
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h, c = read_stream(llm, arch, first_residual(llm), with_contributions, last)
            skip_rest(llm, arch, len(h) - 1, h[-1][None])
    return h, c
