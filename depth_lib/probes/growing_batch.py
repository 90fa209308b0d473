"""One intervention after the other, each in its own row of a batch that grows from block to block."""

import torch

from .packing import additive
from .residual_stream import clean_run, compares_in_batch, first, inputs, start_at, token_budget


def prepared(llm, arch, ids, budget):
    """What the passes over one prompt share: its `ids`, the `budget` of tokens in a pass, and its `clean` run, or None
    where every batch has a clean row of its own (see `compares_in_batch`)."""
    clean = None if compares_in_batch(llm) else clean_run(llm, arch, ids)
    final = clean and clean["h"][-1][0]  # the same object for all passes, which is unembedded once
    return {"ids": ids, "budget": token_budget(llm, budget), "clean": clean, "final": final}


def growing_batch(llm, arch, prompt, layout, layers, join, watch=None):
    """The final residuals of a prompt with one change for every l of `layers`, neighbours out of 0..L.

    The row of l joins the batch before block l, that of L after the last one: `join(l, row, before)` changes `row` in
    place, a copy of the clean h_l [1, N, d] in the places of the layout (see `pack`); `before` is the clean h_{l−1},
    None for l = 0. `watch(l, joined)` is called inside block l with the range of those that have joined; their rows
    stand behind the clean one, if there is one. prompt: see `prepared`. layout: with `read`, the places to return.

    Returns for each pass, which holds as many rows as the budget allows: `l`, its layers as a slice, `varied`
    [rows, M, d], and the clean final residuals `clean` [K, d] with `same`, which of them belongs to each place.
    """
    rows_a_pass = max(1, prompt["budget"] // len(layout["order"]) - (prompt["clean"] is None))
    parts, seen = [], {}
    for begin in range(layers[0], layers[-1] + 1, rows_a_pass):
        joining = range(begin, min(begin + rows_a_pass, layers[-1] + 1))
        parts.append(_one_pass(llm, arch, {**prompt, "seen": seen}, layout, joining, join, watch))
    return parts


def _one_pass(llm, arch, prompt, layout, joining, join, watch):
    """One pass of `growing_batch`. Where the clean row is part of it, `seen` keeps the last two clean residuals before
    `joining.stop`: the next pass starts there."""
    order, clean, seen, n_layers = layout["order"], prompt["clean"], prompt["seen"], arch["n_layers"]
    n_clean = 0 if clean else 1
    n_rows = n_clean + len(joining)
    batch = 1 if arch["grows"] else n_rows
    encoding = inputs([prompt["ids"][i] for i in order], order, additive(layout["visible"], llm.dtype), batch)

    def reference(l):
        return clean["h"][l][:, order] if clean else seen[l]

    with torch.no_grad():
        with llm.trace(encoding, use_cache=False) as tracer:
            begin, rows = joining.start, None
            if not clean:
                if seen:
                    rows = seen[begin].expand(batch, -1, -1)
                    start_at(llm, arch, begin, rows)
                else:
                    begin = max(0, begin - 1)
                    rows = llm.blocks[begin].input
            for l in range(begin, n_layers + 1):
                if not clean and l <= joining.stop:
                    seen[l] = rows[:1].clone()
                    seen.pop(l - 2, None)
                if l in joining:
                    row = reference(l).clone()
                    join(l, row, reference(l - 1) if l else None)
                    rows = add_row(rows, row, n_clean + l - joining.start, n_rows, arch["grows"])
                    if clean and l == begin:
                        start_at(llm, arch, begin, rows)
                if l < n_layers:
                    llm.blocks[l].input = rows
                    if watch:
                        watch(l, range(joining.start, min(l + 1, joining.stop)))
                    rows = first(llm.blocks[l].output)
            part = {"l": slice(joining.start, joining.stop), "varied": rows[n_clean:, layout["read"]]}
            if clean:
                part |= {"clean": prompt["final"], "same": [order[place] for place in layout["read"]]}
            else:
                part |= {"clean": rows[0, layout["read"]], "same": list(range(len(layout["read"])))}
            tracer.stop()
    return part


def add_row(rows, row, k, n_rows, grows):
    """The batch with `row` [1, T, d] as its row k: appended (rows None: the first), or written over a clean one where
    batches cannot grow and have n_rows from the start."""
    if rows is None:
        return row if grows else row.repeat(n_rows, 1, 1)
    row = row.to(rows.device)
    if grows:
        return torch.cat([rows, row])
    rows = rows.clone()
    rows[k] = row[0]
    return rows
