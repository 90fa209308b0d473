"""A prompt's residual stream, the model's blocks as functions of it, and changed runs.

    stream.h                    h_0..h_L of the prompt, [T, d] each
    stream.block(l, x)          the output of block l for any residuals x [B, T, d]
    run(stream, rows)           for each row: x = a changed h_l; for l in its blocks: x = block(l, x)

Everything happens inside one trace. A block is called with the masks and positions that the model gave it for this
prompt, so a changed run needs no pass of the model.
"""

import torch

from .budget import compares_in_batch, tokens_in_pass
from .distributions import output_change
from .residual_stream import (
    READS_MORE,
    enter,
    entering,
    final_residual,
    hidden_states,
    inputs,
    leaving,
    read_block,
    sent_once,
    silence,
    skip,
    skip_head,
)


def read_residuals(llm, arch):
    """h_0..h_L [T, d] of a trace's prompt. Copies, because some families add in place. Call it first in a trace."""
    h = entering(llm.blocks[0]).clone()
    found = [h[0]]
    for block in llm.blocks:
        h = leaving(block).clone()
        found.append(h[0])
    skip_head(llm, arch, h)
    return found


def read_blocks(tracer, llm, arch):
    """For each block h_l, what attention and MLP add, a and m (float32), and h_{l+1}: copies, [1, T, d] each.

    Call it first in a trace. If a and m cannot be told apart, a is all that the block adds and m is 0.
    """
    read = sent_once(tracer, llm, arch)
    h = entering(llm.blocks[0]).clone()
    for block in llm.blocks:
        before, (a, m, h) = h, read_block(block, arch, h, read)
        yield before, a, m, h
    skip_head(llm, arch, h)


def stacked(results):
    """The results of all prompts as one: the tensors of each key along a first axis."""
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


class Stream:
    """h_0..h_L of a prompt of token ids, and its blocks; made inside a trace, before anything is read.

    budget: tokens in one call of a block, or None. after: h_1..h_L [T, d] if they are known; no block then runs for
    them. Raises ValueError for a model whose blocks pass on more.
    """

    def __init__(self, llm, arch, ids, budget=None, after=None):
        if not arch.can_skip_blocks:
            raise ValueError(READS_MORE)
        self.llm, self.arch, self.ids = llm, arch, ids
        self.h, self.calls = [], []
        for l, block in enumerate(llm.blocks):
            positional, named = block.inputs
            h = positional[0] if positional else named["hidden_states"]
            self.h.append(h.flatten(2)[0].clone())  # a copy, as some families add in place
            self.calls.append((positional[1:], {key: x for key, x in named.items() if key != "hidden_states"}))
            if after:
                skip(llm, arch, l, after[l][None])
        final = final_residual(llm, arch).clone()
        self.h.append(final[0])
        skip_head(llm, arch, final)
        self.compares_in_batch = compares_in_batch(llm, self.h[0])
        n_tokens = budget or tokens_in_pass(llm, arch, self.h[0])
        self.n_rows = max(1, n_tokens // len(ids) - self.compares_in_batch)  # beside the unmodified one, if any

    def block(self, l, x):
        """The output of block l for x [B, T, d]."""
        if not self.arch.can_add_rows and len(x) > 1:  # its masks are those of one row
            return torch.cat([self.block(l, row) for row in x.split(1)])
        positional, named = self.calls[l]
        # some families keep several streams, [B, T, n, d']
        entered = x.clone().to(self.h[l].device).unflatten(-1, self.arch.streams)  # a copy, as some add in place
        return hidden_states(self.llm.blocks[l](entered, *positional, **named)).flatten(2)

    def after(self, l, x):
        """The final residuals if x [B, T, d] enters block l, or is one (l = L)."""
        for later in range(l, self.arch.n_layers):
            x = self.block(later, x)
        return x


class Row:
    """A changed run: `edit(h, before)` changes a copy of the clean h [T, d], and `blocks` run on it, in this order.

    h enters block `start`, or leaves the last one if start = L. before: the clean input of the block before. read:
    the positions that are compared; a range to the last one, if `run` is to compare contributions. While it runs, `x`
    is its current residual stream, and `moved` [L] the largest relative change of each block's contribution.
    """

    def __init__(self, start, blocks, read, edit=None):
        self.start, self.blocks, self.read, self.edit, self.x, self.moved = start, blocks, read, edit, None, None


def run(stream, rows, updates=False):
    """Run all rows to their ends, and return the clean final residual stream [T, d] to compare them with.

    The first block that any row waits for runs next, for all rows that wait for it; so a row costs nothing before
    it starts. If batches round differently, the clean residuals are those of an unmodified row in the same batch.

    updates: also compare the blocks' contributions.
    """
    h, n_layers, begin = [*stream.h], stream.arch.n_layers, min(row.start for row in rows)
    ahead, clean = sorted(rows, key=lambda row: row.start), None
    if stream.compares_in_batch:
        clean = Row(begin, range(begin, n_layers), ())
        ahead.insert(0, clean)
    running = []
    while ahead or running:
        l = min(row.blocks[0] for row in running) if running else n_layers
        if ahead and ahead[0].start <= l:
            row = ahead.pop(0)
            before, row.x = h[max(0, row.start - 1)], h[row.start].clone()
            if row.edit:
                row.edit(row.x, before)
            if updates and row.start and row is not clean:
                _compare([row], h, row.start - 1, before[None], row.x[None])
            running += [row] if row.blocks else []
            continue
        some = [row for row in running if row.blocks[0] == l]
        x = torch.stack([row.x.to(some[0].x.device) for row in some])  # a block that is skipped may lie elsewhere
        after = stream.block(l, x)
        for row, x_after in zip(some, after, strict=True):
            row.x, row.blocks = x_after, row.blocks[1:]
        if clean in some:
            h[l + 1] = clean.x.clone()  # a view would keep the whole batch until the end
        if updates:
            _compare(some, h, l, x, after)
        running = [row for row in running if row.blocks]
    return h[-1]


def _compare(rows, h, l, x, after):
    """Note in each row the largest ‖c − c̄‖ / max(‖c‖, 1e-6) at its positions, for block l and x [R, T, d]."""
    change = relative_change(contribution(x, after), contribution(h[l], h[l + 1]))
    for row, of_row in zip(rows, change, strict=True):
        if row.read:
            row.moved[l] = of_row[row.read[0] :].max()  # `read` goes to the last token


def contribution(x, after):
    """The contribution of a block to x, float32."""
    return after.float() - x.to(after.device).float()


def relative_change(changed, c):
    """‖c − c̄‖ / max(‖c‖, 1e-6) [R, T] of changed contributions c̄ [R, T, d]."""
    c = c.to(changed.device)
    return (changed - c).norm(dim=-1) / c.norm(dim=-1).clamp_min(1e-6)


def output_changes(stream, rows, damage=False, updates=False, tick=None):
    """Run all rows; for each, the change of the outputs at its positions, [4 or 1, len(read)] (see `output_change`).

    damage: all four measures, or ‖y − ȳ‖₂ only. updates: as for `run`. tick: called with the share of the work that
    is done.
    """
    found, ids = {}, stream.ids
    moved = torch.zeros(len(rows), stream.arch.n_layers, dtype=torch.float32, device=stream.h[-1].device)
    for row, of_row in zip(rows, moved, strict=True):
        row.moved = of_row  # of one tensor: small ones of their own keep the memory between them from being used again
    for start in range(0, len(rows), stream.n_rows):
        some = rows[start : start + stream.n_rows]
        clean = run(stream, some, updates)
        changes = {}
        for read in dict.fromkeys(row.read for row in some):
            alike = [row for row in some if row.read == read]
            finals = torch.stack([x[list(read)].to(clean.device) for x in (clean, *(row.x for row in alike))])
            next_tokens = [ids[i + 1] if i + 1 < len(ids) else -1 for i in read] if damage else None
            changes |= zip(alike, output_change(stream.llm, stream.arch, finals, next_tokens).unbind(1), strict=True)
        flat = torch.cat([change.flatten() for change in changes.values()]).cpu()  # one wait for the device
        sizes = [change.numel() for change in changes.values()]
        for (row, change), values in zip(changes.items(), flat.split(sizes), strict=True):
            found[row] = values.view(change.shape)
        for row in some:
            row.x = None  # memory
        if tick:
            tick(len(some) / len(rows))
    return [found[row] for row in rows]


def residuals(llm, arch, ids):
    """h_0..h_L [T, d] of a prompt."""
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h = read_residuals(llm, arch)
    return h


def without_part(llm, arch, ids, part):
    """The outputs of each block of a clean run, and those without what a part of it adds: twice L tensors [T, d]."""
    left = []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids, batch=2), use_cache=False):
            h = entering(llm.blocks[0])
            for l, block in enumerate(llm.blocks):
                h = h[:1].repeat(2, 1, 1)  # row 0: clean; row 1: without the part in this block alone
                enter(llm, arch, l, h)
                silence(block, arch, h.shape, part, [(1, slice(None))])
                h = leaving(block)
                left.append(h.clone().unbind())  # a copy, as some families add in place
            skip_head(llm, arch, h)
    return zip(*left, strict=True)
