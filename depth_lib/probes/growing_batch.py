"""One intervention after the other, each in its own row of a batch that grows from block to block."""

import torch

from .packing import additive
from .residual_stream import enter, inputs, leaving, start_at


def growing_batch(llm, arch, ids, pack, h, layers, change, read, budget, n_own, watch=None):
    """Change the residual stream at every l of `layers`, a range within 0..L, each time in a run of its own.

    The obvious loop, with the packed sequence as the prompt:

        for l in layers:
            row = h[l].clone();  change(l, row, h[l - 1]);  final = blocks l..L−1 of row

    All runs share one batch: the row of l joins it before block l, that of L after the last block, and what lies before
    block l is not computed for it. A pass holds as many rows as `budget` tokens allow.

    ids, pack: the prompt's tokens and how they are laid out (see `pack`); h: its clean residuals h_0..h_L [T, d];
    change(l, row, before): changes `row` in place, a copy of the clean h_l [1, N, d], `before` being h_{l−1} (None for
    l = 0); read: the M places to return; n_own: 0, or 2 where interventions are compared within a batch: the batch
    begins with an unmodified row, whose residuals take the place of h, and one that differs from it by rounding alone
    (see `nudged`); watch(l, joined): called inside block l with the range of those that have joined, never empty, whose
    rows follow these two.

    Returns a tuple for each pass: the range of its l, and final residuals for `output_change`: `varied` [rows, M, d],
    with the nudged row first if there is one, `clean` [K, d], and `base`, the row of `clean` for each of the M places.
    """
    size = max(1, budget // len(pack[0]) - n_own)
    starts = range(layers.start, layers.stop, size)
    passes = [range(start, min(start + size, layers.stop)) for start in starts]
    return [_one_pass(llm, arch, ids, pack, h, joining, change, read, n_own, watch) for joining in passes]


def _one_pass(llm, arch, ids, pack, h, joining, change, read, n_own, watch):
    order, _, visible = pack
    n_layers, begin, n_rows = arch["n_layers"], joining.start, n_own + len(joining)
    batch = 1 if arch["grows"] else n_rows
    encoding = inputs([ids[i] for i in order], order, additive(visible, llm.dtype), batch)
    with torch.no_grad():
        with llm.trace(encoding, use_cache=False) as tracer:
            clean = h[begin][order][None]
            before = h[begin - 1][order][None] if begin else None
            rows = clean.repeat(n_own if arch["grows"] else n_rows, 1, 1)
            if n_own:
                rows[1] = nudged(clean[0])
            for l in range(begin, n_layers + 1):
                if l in joining:
                    if l > begin:
                        clean = rows[:1] if n_own else h[l][order][None]
                    row = clean.clone()
                    change(l, row, before)
                    rows = add_row(rows, row, n_own + l - begin, arch["grows"])
                    before = clean.clone()
                if l == begin:
                    start_at(llm, arch, l, rows)
                if l < n_layers:
                    enter(llm, arch, l, rows)
                    if watch:
                        watch(l, range(begin, min(l + 1, joining.stop)))
                    rows = leaving(llm.blocks[l])
            final = rows[:, read]
            tracer.stop()
    if n_own:
        return joining, final[1:], final[0], range(len(read))
    return joining, final, h[-1], [order[place] for place in read]


def add_row(rows, row, k, grows):
    """The batch with `row` [1, N, d] as its row k: appended, or written over a clean one where batches cannot grow."""
    row = row.to(rows.device)
    if grows:
        return torch.cat([rows, row])
    rows = rows.clone()
    rows[k] = row[0]
    return rows


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
