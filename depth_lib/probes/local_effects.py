"""What a block makes of its input without one earlier contribution: local effects (Csordás et al. 2025, 3.3).

The obvious loop, with h and c of the clean run (tests/oracles/effects.py):

    for each s < l and position t:
        run block l alone on h_l[i] − c_s[i] at tokens 1 ≤ i < t, and on h_l[i] elsewhere; it adds c̄_l
        local[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)

Here one forward pass gives every block its own batch as input: a row for each s.
"""

import torch

from .growing_batch import nudged, own_rows, relative_change
from .packing import packed_inputs, packs
from .residual_stream import (
    added,
    changed_in_place,
    clean_run,
    finish,
    leave,
    leaving,
    overwritten,
    start_at,
    token_budget,
    watched,
)


def local_effects(llm, arch, work, mode, budget):
    """Take c_s out of the input of block l alone, as if it did not travel through the blocks between.

    work, budget: as for `layer_effects`; mode: "future" or "all". Returns `max_<mode>_local` [P, L, L], the maxima
    over each prompt's positions, 0 for l ≤ s, and where rounding shows `max_<mode>_local_resolution`: what rounding
    alone does.
    """
    results, (like, in_place) = [], changed_in_place(llm, arch, work[0][0])
    n_own = own_rows(llm, like)
    for ids, starts in work:
        clean, all_packs = clean_run(llm, arch, ids), packs(starts, len(ids), arch)
        effects = [_of_pack(llm, arch, ids, pack, clean, mode, budget, n_own, in_place) for pack in all_packs]
        results.append(torch.stack(effects).amax(0))
    effect, resolution = torch.stack(results, dim=1)
    result = {f"max_{mode}_local": effect}
    if n_own:
        result[f"max_{mode}_local_resolution"] = resolution
    return result


def _of_pack(llm, arch, ids, pack, clean, mode, budget, n_own, in_place):
    """The local effects at the positions of one pack, and beside them those of rounding: [2, L, L]."""
    order, suffixes = pack
    prefix, n_layers = suffixes[0].start, arch["n_layers"]
    h, c = clean
    start = prefix if mode == "future" else 0
    effect, effect_of_rounding = effects = torch.zeros(2, n_layers, n_layers, dtype=torch.float32)  # views of it
    size = max(1, token_budget(llm, h[0], budget) // len(order) - n_own)

    def compare(l, earlier, *of_block):
        c_bar = added(llm.blocks[l], arch, *of_block, start)
        change, nudge = relative_change(c_bar, c[l][order[start:]], n_own)
        taken = slice(earlier.start, earlier.stop)
        effect[taken, l], effect_of_rounding[taken, l] = change[: len(earlier)], nudge

    for begin in range(0, n_layers - 1, size):
        sources = range(n_layers - 1)[begin : begin + size]
        with torch.no_grad():
            encoding = packed_inputs(arch, ids, pack, n_own + len(sources), h[0].dtype)
            with llm.trace(encoding, use_cache=False) as tracer:
                cache = watched(tracer, llm, arch, range(begin + 1, n_layers))
                done = None
                for l in range(begin + 1, n_layers):
                    earlier = sources[: l - begin]
                    # what cannot grow has clean rows to spare
                    n_rows = n_own + len(earlier if arch["grows"] else sources)
                    rows = h[l][order].repeat(n_rows, 1, 1)
                    if n_own:
                        rows[1] = nudged(rows[1])
                    for row, s in zip(rows[n_own:], earlier, strict=False):
                        row[1:prefix] = (row[1:prefix].float() - c[s][1:prefix].to(row.device)).to(row.dtype)
                    if done is None:
                        start_at(llm, arch, l, rows)
                    else:
                        leave(llm, arch, l - 1, rows)  # once the block before has run
                        compare(*done)
                    entered = rows.clone() if cache is None else rows  # some families add in place
                    copies = overwritten(llm.blocks[l], arch, in_place) if cache is not None else {}
                    after = leaving(llm.blocks[l]) if cache is None else None
                    done = l, earlier, entered, after, cache, copies
                leave(llm, arch, n_layers - 1, rows[:1].clone())
                compare(*done)
                finish(llm, arch, n_layers, rows)
    return effects
