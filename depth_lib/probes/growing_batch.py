"""One intervention after the other, each in its own row of a batch that grows from block to block."""

import torch

from .distributions import output_change
from .packing import packed_inputs
from .residual_stream import (
    added,
    compares_in_batch,
    finish,
    first,
    overwritten,
    silence,
    start_at,
    token_budget,
    watched,
)


def growing_batch(
    llm, arch, ids, pack, h, layers, change, read, budget, next_tokens=None, watch=None, in_place=(), silent=None
):
    """Change the residual stream at every l of `layers`, each time in a run of its own, and compare the outputs.

    The obvious loop, with the packed sequence as the prompt:

        for k, l in enumerate(layers):
            row = h[l].clone();  change(k, row, h[l - 1]);  final = blocks l..L−1 of row

    All runs share one batch: the row of l joins it before block l, that of L after the last block, and what lies before
    block l is not computed for it. A pass holds as many rows as the budget's tokens allow.

    ids, pack: the prompt's tokens and how they are laid out (see `pack`); h: its clean residuals h_0..h_L [T, d];
    layers: where each row joins, in 0..L and ascending, one or several at a place; change(k, row, before): changes
    `row` in place, a copy of the clean h_l [1, N, d] for the k-th of layers, `before` being h_{l−1} (None for l = 0);
    read: the M places whose outputs are compared; next_tokens: as for `output_change`; watch(l, joined, c_bar): told
    after block l what it adds to each row at the places from read[0] on, [rows, N − read[0], d], and the range of those
    k of the pass that have joined, never empty, whose rows follow the batch's own; in_place: as from
    `changed_in_place`, for it; silent(l, joined): which part of
    block l adds nothing in which rows and places, (part, rows, places), or None.

    Returns what `output_change` gives, for interventions and for rounding alone: [2, 1 or 4, len(layers), M].
    """
    n_own = own_rows(llm, h[0])
    order, size = pack[0], max(1, token_budget(llm, h[0], budget) // len(pack[0]) - n_own)
    passes, changes, runs = [range(len(layers))[k : k + size] for k in range(0, len(layers), size)], [], []
    if not n_own:
        runs = [h[-1][[order[place] for place in read]][None]]
    for some in passes:
        with torch.no_grad():
            encoding = packed_inputs(arch, ids, pack, n_own + len(some), h[0].dtype)
            with llm.trace(encoding, use_cache=False) as tracer:
                how = (change, n_own, read, watch, in_place, silent)
                final = _grown(tracer, llm, arch, pack[0], h, layers, some, *how)
                runs.append(final)
                if n_own or some is passes[-1]:
                    changes.append(output_change(llm, arch, torch.cat(runs), next_tokens))
                    runs = []
                finish(llm, arch, arch["n_layers"] if layers[some.start] < arch["n_layers"] else 0, final)
    if not n_own:
        return torch.stack([changes[0], torch.zeros_like(changes[0])])
    return torch.cat([torch.stack([x[:, 1:], x[:, :1].expand_as(x[:, 1:])]) for x in changes], dim=2)


def own_rows(llm, h):
    """2 where interventions are compared within a batch, else 0: how many rows it begins with that have none.

    An unmodified row, whose residuals take the place of the clean run's, and one that differs from it by rounding alone
    (see `nudged`).
    """
    return 2 if compares_in_batch(llm, h) else 0


def _grown(tracer, llm, arch, order, h, layers, some, change, n_own, read, watch, in_place, silent):
    """Inside a trace, the batch's final residuals [n_own + len(some), M, d], for these of `layers`, a range of their
    numbers k."""
    n_layers, begin, n_rows = arch["n_layers"], layers[some.start], n_own + len(some)
    cache = watched(tracer, llm, arch, range(begin, n_layers)) if watch else None
    before = h[begin - 1][order][None] if begin else None
    # where batches cannot grow, unmodified rows stand in for those that are yet to join
    rows = h[begin][order].repeat(n_own if arch["grows"] else n_rows, 1, 1)
    if n_own:
        rows[1] = nudged(rows[0])
    joined, output = range(some.start, some.start), None
    for l in range(begin, n_layers + 1):
        joining = [k for k in some if layers[k] == l]
        if joining:
            clean, k = rows[:1] if n_own else h[l][order][None], n_own + len(joined)
            new = clean.repeat(len(joining), 1, 1)
            for number, row in zip(joining, new.split(1), strict=True):
                change(number, row, before)
            before = clean.clone()
            rows = torch.cat([rows[:k], new.to(rows.device), rows[k + len(joining) :]])
            joined = range(some.start, joining[-1] + 1)
        if l == n_layers:
            final = rows[:, list(read)]
            if output is not None and arch["grows"]:
                output.data = output[:1].clone()  # all that the final norm gets
            return final
        if l == begin:
            start_at(llm, arch, l, rows)
        elif joining:  # in place, as what has been read is sent back anyway
            output.data = rows.unflatten(-1, arch["streams"])
        block, entered = llm.blocks[l], rows
        if silent and (what := silent(l, joined)):
            silence(block, arch, rows, *what)
        if watch:
            entered = rows.clone() if cache is None else rows  # some families add in place
            copies = overwritten(block, arch, in_place) if cache is not None else {}
        output = first(block.output)
        rows = output.flatten(2)
        if watch:
            watch(l, joined, added(block, arch, entered, rows, cache, copies, read[0]))


def nudged(h):
    """h with every feature moved by one rounding unit, up and down in turn.

    What becomes of it in the blocks that follow is what rounding can do: an intervention that changes no more cannot be
    told from it.
    """
    units = torch.full(h.shape[-1:], torch.finfo(h.dtype).eps, dtype=h.dtype, device=h.device)
    units[::2] *= -1
    return torch.addcmul(h, h, units)


def relative_change(c_bar, clean, n_own):
    """max over places of ‖c − c̄‖ / max(‖c‖, 1e-6), for the rows of interventions and for the nudged one (0: none).

    c_bar: what a block adds in each row [B, M, d], overwritten; clean [M, d]: what it adds in the clean run, for which
    the batch's unmodified row stands in where there is one.
    """
    clean = c_bar[0].clone() if n_own else clean
    change = (c_bar.sub_(clean).norm(dim=-1) / clean.norm(dim=-1).clamp_min(1e-6)).amax(1).cpu()
    return change[n_own:], change[1] if n_own else 0
