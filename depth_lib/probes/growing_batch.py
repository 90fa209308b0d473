"""One intervention after the other, each in its own row of a batch that grows from block to block."""

import torch

from .distributions import output_change
from .packing import packed_inputs
from .residual_stream import compares_in_batch, enter, leaving, start_at, token_budget


def growing_batch(llm, arch, ids, pack, h, layers, change, read, budget, next_tokens=None, watch=None):
    """Change the residual stream at every l of `layers`, each time in a run of its own, and compare the outputs.

    The obvious loop, with the packed sequence as the prompt:

        for l in layers:
            row = h[l].clone();  change(l, row, h[l - 1]);  final = blocks l..L−1 of row

    All runs share one batch: the row of l joins it before block l, that of L after the last block, and what lies before
    block l is not computed for it. A pass holds as many rows as the budget's tokens allow.

    ids, pack: the prompt's tokens and how they are laid out (see `pack`); h: its clean residuals h_0..h_L [T, d];
    layers: a range within 0..L; change(l, row, before): changes `row` in place, a copy of the clean h_l [1, N, d],
    `before` being h_{l−1} (None for l = 0); read: the M places whose outputs are compared; next_tokens: as for
    `output_change`; watch(l, joined): called inside block l with the range of those that have joined, never empty,
    whose rows follow the batch's own.

    Returns what `output_change` gives, for interventions and for rounding alone: [2, 1 or 4, len(layers), M].
    """
    n_own = own_rows(llm)
    order, size = pack[0], max(1, token_budget(llm, budget) // len(pack[0]) - n_own)
    passes = [layers[k : k + size] for k in range(0, len(layers), size)]
    runs = [_one_pass(llm, arch, ids, pack, h, joining, change, read, n_own, watch) for joining in passes]
    if not n_own:
        clean = h[-1][[order[place] for place in read]]
        runs = [torch.cat([clean[None], *runs])]
    changes = []
    for of_pass in runs:
        change = output_change(llm, arch, of_pass, next_tokens)
        nudge, change = (change[:, :1], change[:, 1:]) if n_own else (torch.zeros_like(change), change)
        changes.append(torch.stack([change, nudge.expand_as(change)]))
    return torch.cat(changes, dim=2)


def own_rows(llm):
    """2 where interventions are compared within a batch, else 0: how many rows it begins with that have none.

    An unmodified row, whose residuals take the place of the clean run's, and one that differs from it by rounding alone
    (see `nudged`).
    """
    return 2 if compares_in_batch(llm) else 0


def _one_pass(llm, arch, ids, pack, h, joining, change, read, n_own, watch):
    """Final residuals of the batch [n_own + len(joining), M, d]."""
    order, n_layers, begin, n_rows = pack[0], arch["n_layers"], joining.start, n_own + len(joining)
    with torch.no_grad():
        with llm.trace(packed_inputs(llm, arch, ids, pack, n_rows), use_cache=False) as tracer:
            before = h[begin - 1][order][None] if begin else None
            # where batches cannot grow, unmodified rows stand in for those that are yet to join
            rows = h[begin][order].repeat(n_own if arch["grows"] else n_rows, 1, 1)
            if n_own:
                rows[1] = nudged(rows[0])
            for l in range(begin, n_layers + 1):
                if l in joining:
                    clean, k = rows[:1] if n_own else h[l][order][None], n_own + l - begin
                    row = clean.clone()
                    change(l, row, before)
                    before = clean.clone()
                    rows = torch.cat([rows[:k], row.to(rows.device), rows[k + 1 :]])
                if l == begin:
                    start_at(llm, arch, l, rows)
                if l < n_layers:
                    enter(llm, arch, l, rows)
                    if watch:
                        watch(l, range(begin, min(l + 1, joining.stop)))
                    rows = leaving(llm.blocks[l])
            final = rows[:, list(read)]
            tracer.stop()
    return final


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
