"""Probe 2: what skipping a block does to later computation (Csordás et al. 2025, section 3.3)."""

import torch

from .packing import additive, packs
from .residual_stream import (
    add_row,
    added,
    clean_run,
    compares_in_batch,
    first,
    inputs,
    output_change,
    start_at,
    token_budget,
)


def layer_effects(llm, arch, work, budget):
    """Skip block s for some tokens and measure the change of every later contribution and of the output.

    With c_l = a_l + m_l (= h_{l+1} − h_l without its rounding) and y the output of the clean run, c̄_l and ȳ of the run
    in which block s passes tokens 1..t−1 on unchanged (token 0 never):
    effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6), output[s] = max ‖y[i] − ȳ[i]‖₂.

    work: for each prompt its token ids and its positions t, or None for all mode (skip every token i ≥ 1, measure
    every token); budget: tokens in one forward pass, or None. Returns the maxima over the positions of each prompt,
    `effects` [P, L, L] (skipped, affected) and `outputs` [P, L, 1].
    """
    budget = token_budget(llm, budget)
    effects, outputs = [], []
    for ids, starts in work:
        effect, output = torch.zeros(arch["n_layers"], arch["n_layers"]), torch.zeros(arch["n_layers"], 1)
        clean = None if compares_in_batch(llm) else clean_run(llm, arch, ids)
        if starts is None and len(ids) > 1:  # all tokens but the first are skipped, and all measured
            layout = {"order": list(range(len(ids))), "prefix": len(ids), "visible": None}
            _skip_every_block(llm, arch, ids, layout, 0, budget, clean, effect, output)
        elif starts is not None:
            for layout in packs(starts, len(ids), arch):
                _skip_every_block(llm, arch, ids, layout, layout["prefix"], budget, clean, effect, output)
        effects.append(effect)
        outputs.append(output)
    return {"effects": torch.stack(effects), "outputs": torch.stack(outputs)}


def _skip_every_block(llm, arch, ids, layout, measured, budget, clean, effect, output):
    """Raise `effect` and `output` to what skipping each block does in one layout, measured from place `measured` on.

    Block s adds the row in which s was skipped, made from the clean run, or without one from row 0 of the batch, which
    then stays clean. The rows of one pass are bounded by the budget; the next pass starts at its first skipped block.
    """
    n_layers, order, n_clean = arch["n_layers"], layout["order"], 0 if clean else 1
    tokens, prefix = [ids[i] for i in order], layout["prefix"]
    n_skipped = n_layers - 1 if measured == prefix else n_layers  # the last block is skipped where nothing is measured
    rows_a_pass, left = max(1, budget // len(tokens) - n_clean), None
    for begin in range(0, n_skipped, rows_a_pass):
        end = min(begin + rows_a_pass, n_skipped)
        batch = 1 if arch["grows"] else n_clean + end - begin
        encoding = inputs(tokens, order, additive(layout["visible"], llm.dtype), batch)
        with torch.no_grad():
            with llm.trace(encoding, use_cache=False) as tracer:
                rows = rows_c = None
                if not clean:
                    if left is not None:
                        start_at(llm, arch, begin, left.expand(batch, -1, -1))
                    rows = llm.blocks[begin].input
                for l in range(begin, n_layers):
                    if l == end:
                        left = rows[:1].clone()
                    if rows is not None:
                        if l > begin:
                            llm.blocks[l].input = rows
                        rows_c = added(llm.blocks[l], arch, measured)
                        rows_in, rows = rows, first(llm.blocks[l].output)
                    if clean:
                        h_in, h, c = (
                            clean["h"][l][:, order],
                            clean["h"][l + 1][:, order],
                            clean["c"][l][:, order[measured:]],
                        )
                    else:
                        h_in, h, c = rows_in[:1], rows[:1], rows_c[:1]
                    if l < end:
                        k, n_rows = n_clean + l - begin, n_clean + end - begin
                        rows = add_row(rows, _skip(h, h_in, 0, prefix), k, n_rows, arch["grows"])
                        rows_c = add_row(rows_c, _skip(c, None, measured, prefix), k, n_rows, arch["grows"])
                        if clean and l == begin:
                            start_at(llm, arch, begin + 1, rows)
                    skipped = slice(begin, min(l + 1, end))
                    change = (rows_c[n_clean:] - c).norm(dim=-1) / c.norm(dim=-1).clamp_min(1e-6)
                    effect[skipped, l] = torch.maximum(effect[skipped, l], change.amax(1).cpu()[: skipped.stop - begin])
                part = {"varied": rows[n_clean:, measured:], "clean": rows[0], "same": range(measured, len(order))}
                if clean:
                    part |= {"clean": clean["h"][-1][0], "same": order[measured:]}
                (change,) = output_change(llm, arch, [part])
                output[begin:end] = torch.maximum(output[begin:end], change.amax(1)[:, None])
                tracer.stop()


def _skip(row, skipped, offset, prefix):
    """The clean row [1, T, d] with the skipped tokens 1..prefix−1 as in `skipped` (None: nothing is added); the row
    begins at place `offset`, which is 0 or the first place behind the prefix."""
    row = row.clone()
    row[:, 1 : prefix - offset] = 0 if skipped is None else skipped[:, 1 : prefix - offset]
    return row
