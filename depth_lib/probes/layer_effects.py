"""Probe 2: what skipping a block does to later computation (Csordás et al. 2025, section 3.3)."""

import torch

from .packing import additive, packs
from .residual_stream import add_row, added, first, inputs, output_change, start_at, token_budget


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
        if starts is None:  # the whole prompt is skipped, and measured
            layouts, measured = [{"order": list(range(len(ids))), "prefix": len(ids), "visible": None}], 0
        else:
            layouts, measured = packs(starts, len(ids), arch), None
        for layout in layouts:
            first_measured = layout["prefix"] if measured is None else measured
            _skip_every_block(llm, arch, ids, layout, first_measured, budget, effect, output)
        effects.append(effect)
        outputs.append(output)
    return {"effects": torch.stack(effects), "outputs": torch.stack(outputs)}


def _skip_every_block(llm, arch, ids, layout, measured, budget, effect, output):
    """Raise `effect` and `output` to what skipping each block does in one layout, measured from place `measured` on.

    Row 0 of the batch stays clean; block s adds the row in which s was skipped. The rows of one pass are bounded by
    the budget; the next pass starts at its first skipped block, from the clean residual that the last one left there.
    """
    n_layers, tokens = arch["n_layers"], [ids[i] for i in layout["order"]]
    rows_a_pass = max(1, budget // len(tokens) - 1)
    clean = None
    for begin in range(0, n_layers, rows_a_pass):
        end = min(begin + rows_a_pass, n_layers)
        batch = 1 if arch["grows"] else 1 + end - begin
        encoding = inputs(tokens, layout["order"], additive(layout["visible"], llm.dtype), batch)
        with torch.no_grad():
            with llm.trace(encoding, use_cache=False) as tracer:
                if clean is not None:
                    start_at(llm, arch, begin, clean.expand(batch, -1, -1))
                h = llm.blocks[begin].input
                for l in range(begin, n_layers):
                    if l > begin:
                        llm.blocks[l].input = h
                    if l == end:
                        clean = h[:1].clone()
                    c = added(llm.blocks[l], arch, measured)
                    h_in, h = h, first(llm.blocks[l].output)
                    if l < end:
                        h = add_row(h, _skip(h, h_in, 0, layout["prefix"]), 1 + l - begin, arch["grows"])
                        c = add_row(c, _skip(c, None, measured, layout["prefix"]), 1 + l - begin, arch["grows"])
                    rows = slice(begin, min(l + 1, end))
                    change = (c[1:] - c[:1]).norm(dim=-1) / c[0].norm(dim=-1).clamp_min(1e-6)
                    effect[rows, l] = torch.maximum(effect[rows, l], change.amax(1).cpu()[: rows.stop - begin])
                change = output_change(llm, arch, h[:, measured:]).amax(1)[:, None]
                output[begin:end] = torch.maximum(output[begin:end], change.cpu())
                tracer.stop()


def _skip(rows, skipped, offset, prefix):
    """The clean row 0 with the skipped tokens 1..prefix−1 as in `skipped` (None: nothing is added); rows begin at
    place `offset`, which is 0 or the first place behind the prefix."""
    row = rows[:1].clone()
    row[:, 1 : prefix - offset] = 0 if skipped is None else skipped[:1, 1 : prefix - offset]
    return row
