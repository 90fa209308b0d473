"""One intervention after the other, each in its own row of a batch that grows from block to block."""

import torch

from .budget import compares_in_batch, tokens_of_finals
from .distributions import output_change
from .packing import Pack, Places, batch_of, packed_inputs
from .residual_stream import finish, hidden_states, silence, start_at
from .updates import Updates, relative_change


def growing_batch(clean, pack, layers, change, read, next_tokens=None, updates=False, silent=None):
    """Change the residual stream at every l of `layers`, each time in a run of its own, and compare the outputs.

    The obvious loop, with the packed sequence as the prompt:

        for k, l in enumerate(layers):
            row = h[l].clone();  change(k, row, h[l - 1]);  final = blocks l..L−1 of row

    All runs share one batch: the row of l joins it before block l, that of L after the last block, and what lies before
    block l is not computed for it. A pass holds as many rows as the budget's tokens allow.

    clean: the prompt's `CleanRun`; pack: how its tokens are laid out; layers: where each row joins, in 0..L and
    ascending, one or several at a place; change(k, row, before): changes `row` in place, a copy of the clean h_l
    [1, N, d] for the k-th of layers, `before` being h_{l−1} (None for l = 0); read: the M places whose outputs are
    compared; next_tokens: as for `output_change`; updates: whether to compare what the blocks add, too; silent(l, k):
    which part of block l adds nothing in which rows and places, (part, rows, places), or None, where k is the range of
    those numbers that have joined, whose rows follow the batch's own.

    Returns what `output_change` gives, [1 or 4, len(layers), M], and for each row the largest relative change of what a
    block adds at the places from read[0] on, [len(layers), L] (0 before the row joins), or None.
    """
    llm, arch, h, size = clean.llm, clean.arch, clean.h, clean.rows(pack)
    places, encoding, relative, changes = Places(read), packed_inputs(clean.ids, pack, h[0].dtype), [], []
    passes = [range(len(layers))[k : k + size] for k in range(0, len(layers), size)]
    # kept until they are as many as are best unembedded together; where rows are compared in their batch, for one pass
    finals, most = [], 0
    if not clean.in_batch:
        finals, most = [pack.of(h[-1])[places.on(h[-1].device)][None]], tokens_of_finals(clean.budget) // len(read)
    for some in passes:
        with torch.no_grad():
            batch = batch_of(llm, encoding, arch, clean.in_batch + len(some))
            with llm.trace(batch, use_cache=False) as tracer:
                start = read[0] if updates else None
                final, of_rows = _grown(tracer, clean, pack, layers, some, change, places, start, silent)
                relative.append(of_rows)
                finals.append(final)
                if sum(map(len, finals)) + size > most or some is passes[-1]:
                    changes.append(output_change(llm, arch, torch.cat(finals), next_tokens))
                    finals = [] if clean.in_batch else finals[:1]
                if layers[some.start] < arch["n_layers"]:
                    finish(llm, arch, arch["n_layers"], final)
                else:  # no block runs; gpt2 reshapes what leaves its final norm to the tokens of its input
                    finish(llm, arch, 0, final[:, :1].expand(-1, pack.n_places, -1))
    return torch.cat(changes, dim=1), torch.cat(relative).cpu() if updates else None


def _grown(tracer, clean, pack, layers, some, change, places, start, silent):
    """Inside a trace, the batch's final residuals [rows, M, d] at the places, for these of `layers`, a range of their
    numbers k, and the relative changes [len(some), L] of what blocks add from `start` on (zeros if that is None)."""
    llm, arch, h, in_batch = clean.llm, clean.arch, clean.h, int(clean.in_batch)
    n_layers, begin = arch["n_layers"], layers[some.start]
    updates = None if start is None else Updates(tracer, llm, arch, range(begin, n_layers))
    relative = torch.zeros(len(some), n_layers, dtype=torch.float32, device=h[-1].device)
    before = pack.of(h[begin - 1])[None] if begin else None
    # where batches cannot grow, unmodified rows stand in for those that are yet to join
    rows = pack.of(h[begin]).repeat(in_batch if arch["grows"] else in_batch + len(some), 1, 1)
    n_joined, output = 0, None
    for l in range(begin, n_layers + 1):
        joining = [k for k in some if layers[k] == l]
        if joining:
            unmodified, n_rows = rows[:1] if in_batch else pack.of(h[l])[None], in_batch + n_joined
            new = unmodified.repeat(len(joining), 1, 1)
            for k, row in zip(joining, new.split(1), strict=True):
                change(k, row, before)
            before = unmodified.clone()
            rows = torch.cat([rows[:n_rows], new.to(rows.device), rows[n_rows + len(joining) :]])
            n_joined += len(joining)
        if l == n_layers:
            final = rows[:, places.on(rows.device)]
            if output is not None and arch["grows"]:
                output.data = output[:1].clone()  # all that the final norm gets
            return final, relative
        if l == begin:
            start_at(llm, arch, l, rows)
        elif joining:  # in place, as what has been read is sent back anyway
            output.data = rows.unflatten(-1, arch["streams"])
        block = llm.blocks[l]
        if silent and (what := silent(l, some[:n_joined])):
            silence(block, arch, rows, *what)
        if updates:
            updates.before(block, rows)
        output = hidden_states(block.output)
        rows = output.flatten(2)
        if updates:
            truth = pack.of(clean.c[l], start) if clean.c else None
            of_rows = relative_change(updates.after(start), truth, in_batch)[in_batch:]
            relative[:n_joined, l] = of_rows[:n_joined].to(relative.device)


def rounding_floor(clean, updates=False, change=None):
    """What rounding alone may do to a prompt's numbers: {} where it does not show (see `compares_in_batch`).

    Every feature of h_0 is moved by one rounding unit, up or down at random, in eight rows of their own; so each
    operation that follows rounds another number. change(k, row): what is done besides to the k-th of eight pairs of
    such rows, as changed runs round more where the clean one is sure of its token; or None.

    Returns the largest change of any row and token: `outputs`, ‖y − ȳ‖₂, or twice the most by which it differs
    within a pair, as either may be off, whichever is more; and if asked for `updates`, ‖c − c̄‖ / ‖c‖ of any block.
    """
    if not compares_in_batch(clean.llm, clean.h[0]):
        return {}
    n_rows, draw = 24 if change else 8, torch.Generator().manual_seed(0)
    eps = torch.finfo(clean.h[0].dtype).eps
    signs = torch.randint(0, 2, (n_rows, clean.h[0].shape[1]), generator=draw) * 2 - 1

    def nudge(k, row, before):
        row.addcmul_(row, (eps * signs[k].float()).to(row))
        if k >= 8:
            change((k - 8) // 2, row)

    # of a long prompt its beginning does, and little is sent where the model is another process
    n_tokens = min(64 if change else 24, len(clean.ids)) if clean.arch["cuts"] else len(clean.ids)
    work = (Pack([n_tokens], n_tokens), [0] * n_rows, nudge, range(n_tokens))
    (distance,), of_blocks = growing_batch(clean, *work, updates=updates)
    outputs = distance[:8].max()
    if change:
        outputs = torch.maximum(outputs, 2 * (distance[8::2] - distance[9::2]).abs().max())
    return {"outputs": outputs} | ({"updates": of_blocks.max()} if updates else {})
