"""One residual after the other replaced by something else, each in its own row of a growing batch."""

import torch

from .packing import additive
from .residual_stream import add_row, first, inputs, start_at


def replaced(llm, arch, ids, layout, layers, replace, places, budget, clean):
    """The final residuals at `places` of a layout (see `pack`) for every l of layers with h_l replaced.

    The row of h_l joins the batch before block l, that of h_L after the last one: `replace(l, row)` changes it in
    place, a copy of the clean residual [1, N, d]. That comes from the clean run or, where clean is None, from row 0 of
    the batch, which then stays clean. layers: neighbours out of 0..L; budget: tokens in one forward pass.
    Returns for each pass `l`, its layers as a slice, `varied` [rows, M, d], and the clean final residuals `clean`
    [K, d] with `same`, which of them belongs to each place.
    """
    order, n_clean, stop = layout["order"], 0 if clean else 1, layers[-1] + 1
    tokens, mask = [ids[i] for i in order], additive(layout["visible"], llm.dtype)
    rows_a_pass, left, parts = max(1, budget // len(tokens) - n_clean), None, []
    begin = layers[0]
    while begin < stop:
        end = min(begin + rows_a_pass, stop)
        n_rows = n_clean + end - begin
        batch = 1 if arch["grows"] else n_rows
        with torch.no_grad():
            with llm.trace(inputs(tokens, order, mask, batch), use_cache=False) as tracer:
                rows = None
                if left is not None:
                    rows = left.expand(batch, -1, -1)
                    start_at(llm, arch, begin, rows)
                elif not clean:
                    rows = llm.blocks[begin].input if begin < arch["n_layers"] else first(llm.blocks[-1].output)
                for l in range(begin, arch["n_layers"] + 1):
                    if l == end and not clean:
                        left = rows[:1].clone()
                    if l < end:
                        row = clean["h"][l][:, order] if clean else rows[:1].clone()
                        replace(l, row)
                        rows = add_row(rows, row, n_clean + l - begin, n_rows, arch["grows"])
                        if clean and l == begin:
                            start_at(llm, arch, begin, rows)
                    if l < arch["n_layers"]:
                        llm.blocks[l].input = rows
                        rows = first(llm.blocks[l].output)
                part = {"l": slice(begin, end), "varied": rows[n_clean:, places]}
                if clean:
                    part |= {"clean": clean["h"][-1][0], "same": [order[place] for place in places]}
                else:
                    part |= {"clean": rows[0, places], "same": list(range(len(places)))}
                parts.append(part)
                tracer.stop()
        begin = end
    return parts
