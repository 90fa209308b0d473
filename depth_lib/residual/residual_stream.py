"""Reading and steering the residual stream inside a trace."""

import torch

from .ranks import is_sharded

READS_MORE = (
    "this model's blocks read more of earlier blocks than the residual stream, so nothing can be changed in it; "
    "use relative_contribution, logit_lens or answer_lens"
)


def hidden_states(output):
    """The hidden states of a module that returns them alone or before others."""
    return output[0] if isinstance(output, tuple | list) else output


def with_hidden_states(output, h):
    """A module's output with other hidden states."""
    return type(output)([h, *output[1:]]) if isinstance(output, tuple | list) else h


def inputs(llm, arch, ids, batch=1):
    """Model inputs for one sequence of token ids [T], `batch` times, of a model that is as before any pass."""
    forget(llm, arch)
    return {"input_ids": torch.tensor(ids).expand(batch, -1)} | dict.fromkeys(arch.asks, False)


def forget(llm, arch):
    """Undo what earlier passes left in the model, on a server also those of other people.

    Dynamic rotary frequencies stay those of the longest sequence until a short one runs, so a pass of one token
    runs.
    """
    if arch.remembers:
        with llm.trace({"input_ids": torch.zeros(1, 1, dtype=torch.long)}, use_cache=False):
            skip_head(llm, arch, final_residual(llm, arch))


def entering(block):
    """h [B, T, d] that enters a block; several streams [B, T, n, d'] are one of n d' features."""
    return block.input.flatten(2)


def leaving(block):
    """h [B, T, d] that leaves a block."""
    return hidden_states(block.output).flatten(2)


def enter(llm, arch, l, h):
    """Let block l read h [B, T, d], of more rows than before if need be. Not for use once `leaving` was read of it."""
    llm.blocks[l].input = h.unflatten(-1, arch.streams)


def start_at(llm, arch, l, h):
    """Let block l read h [B, T, d], and skip the blocks before it. L: skip all, with h the final residual."""
    if not arch.can_skip_blocks:
        raise ValueError(READS_MORE)
    if l == 0:
        return enter(llm, arch, l, h)
    for before in range(l):
        skip(llm, arch, before, h if before == l - 1 else h[:1, :1].clone())


def skip(llm, arch, l, h):
    """Let h [B, T, d] leave block l, which does not run."""
    rows = h.unflatten(-1, arch.streams)
    llm.blocks[l].skip(rows if arch.n_other_outputs is None else (rows, *[None] * arch.n_other_outputs))


def final_residual(llm, arch):
    """h_L [B, T, d], which leaves the last block."""
    return leaving(llm.blocks[arch.n_layers - 1])


def skip_head(llm, arch, h):
    """Let the unembedding not run: what a trace returns is sent back, and logits are large. (After `tracer.stop()` a
    server would run no further trace of the session.) h [B, T, d]: any residuals of this trace."""
    if not is_sharded(llm):  # ranks gather the slices of the head's own output
        llm.unembed.skip(h[:1, :1, :1].clone())


def parts(block, arch):
    """The modules of a and of m, in the order in which they run, as (module, scale, bias).

    A part is the sum of their outputs times scale plus bias (None: none). A block without the part has an empty
    list.
    """
    addends, modules = arch.parts[int(block.path.rpartition(".")[2])], {}
    for part in addends:
        modules[part] = [(block.get(path), scale, bias and block.get(bias)) for path, scale, bias in addends[part]]
    return modules


def sent_once(tracer, llm, arch):
    """How to read the outputs of a's and m's modules if the model runs in another process; None if it runs in this one.

    That process sends each once, while what a trace reads goes there and back. An output is there once a later one was
    read.
    """
    if not arch.parts or next(llm._module.parameters()).device.type != "meta":
        return None
    modules = [module for block in llm.blocks for part in parts(block, arch).values() for module, *_ in part]
    cache = tracer.cache(modules=modules, device=None)._cache
    return lambda module: cache.entries.pop(module.path)[0].output


def read_block(block, arch, h, read=None):
    """a, m and what leaves a block that h [B, T, d] enters; a and m are what attention and MLP add, float32.

    A part that the block does not have is 0. If the two cannot be told apart, a is all that the block adds.

    read: from `sent_once`.
    """
    of_parts = parts(block, arch).values() if arch.parts else ()
    after = leaving(block) if read else None
    a, m = (total_output(modules, h.shape, read=read) for modules in of_parts) if of_parts else (None, None)
    after = (leaving(block) if after is None else after).clone()  # a copy, as some families add in place
    if not of_parts:
        a = after.float() - h.to(after.device).float()
    zero = torch.zeros(h.shape, dtype=torch.float32, device=after.device)
    return *(zero if x is None else x.to(after.device) for x in (a, m)), after


def total_output(modules, shape, total=None, read=None):
    """The sum of scaled outputs [B, T, d], float32; None without modules.

    total: what the outputs are added to, in place; read: what gives a module's output (default: waits for it). The
    first output is copied, as some families add in place right after a module returns.
    """
    for module, scale, bias in modules:
        x = hidden_states(read(module) if read else module.output).reshape(shape)
        x = x if scale == 1 else x.float() * scale
        x = x if bias is None else x.float() + bias
        total = x.to(torch.float32, copy=True) if total is None else total.add_(x.to(total.device))
    return total


def rescaling(total, after):
    """The number that makes h + a + m what leaves the block; 1 in most families."""
    return (total * after).sum() / total.square().sum()


def silence(block, arch, shape, part, where):
    """Make a part ("attention", "mlp") of a block, which h [B, T, d] enters, 0 at `where`: (row, positions) of it."""
    for module, scale, bias in parts(block, arch)[part]:
        added = hidden_states(module.output).view(shape)
        for row, positions in where:
            added[row, positions] = 0 if bias is None else -bias / scale
