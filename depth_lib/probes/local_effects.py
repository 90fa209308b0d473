"""What a block makes of its input without one earlier contribution: local effects (Csordás et al. 2025, 3.3).

The obvious loop, with h and c of the clean run (tests/oracles/effects.py):

    for each s < l and position t:
        run block l alone on h_l[i] − c_s[i] at tokens 1 ≤ i < t, and on h_l[i] elsewhere; it adds c̄_l
        local[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)

Here one forward pass gives every block its own batch as input: a row for each s.
"""

import torch

from .clean_run import CleanRun
from .growing_batch import rounding_floor
from .packing import batch_of, packed_inputs
from .residual_stream import finish, leave, start_at
from .updates import Updates, relative_change


def local_effects(llm, arch, work, mode, budget):
    """Take c_s out of the input of block l alone, as if it did not travel through the blocks between.

    work, budget: as for `layer_effects`; mode: "future" or "all". Returns `max_<mode>_local` [P, L, L], the maxima
    over each prompt's positions, 0 for l ≤ s, and where rounding shows `max_<mode>_local_rounding_floor` [P], from
    `rounding_floor`.
    """
    effects, floors = [], []
    for ids, starts in work:
        clean = CleanRun(llm, arch, ids, budget, updates="with c")
        effects.append(torch.stack([_of_pack(clean, pack, mode) for pack in clean.packs(starts)]).amax(0))
        floors.append(rounding_floor(clean, updates=True).get("updates"))
    result = {f"max_{mode}_local": torch.stack(effects)}
    if floors[0] is not None:
        result[f"max_{mode}_local_rounding_floor"] = torch.stack(floors)
    return result


def _of_pack(clean, pack, mode):
    """The local effects [L, L] at the positions of one pack."""
    llm, arch, size, n_layers = clean.llm, clean.arch, clean.rows(pack), clean.arch["n_layers"]
    effects = torch.zeros(n_layers, n_layers, dtype=torch.float32)
    encoding = packed_inputs(clean.ids, pack, clean.h[0].dtype)
    for begin in range(0, n_layers - 1, size):
        sources = range(n_layers - 1)[begin : begin + size]
        with torch.no_grad():
            batch = batch_of(llm, encoding, arch, clean.in_batch + len(sources))
            with llm.trace(batch, use_cache=False) as tracer:
                of_pass = _of_pass(tracer, clean, pack, sources, 0 if mode == "all" else pack.prefix)
        effects[sources.start : sources.stop] = of_pass.cpu()
    return effects


def _of_pass(tracer, clean, pack, sources, start):
    """Inside a trace, the local effects [len(sources), L] of taking out what these blocks add."""
    llm, arch, h, c, in_batch = clean.llm, clean.arch, clean.h, clean.c, int(clean.in_batch)
    n_layers, taken, ran = arch["n_layers"], slice(1, pack.prefix), None
    effects = torch.zeros(len(sources), n_layers, dtype=torch.float32, device=h[-1].device)
    updates = Updates(tracer, llm, arch, range(sources.start + 1, n_layers))

    def compare(l, n_earlier):
        change = relative_change(updates.after(start), pack.of(c[l], start), in_batch)[in_batch:]
        effects[:n_earlier, l] = change[:n_earlier].to(effects.device)

    for l in range(sources.start + 1, n_layers):
        earlier = sources[: l - sources.start]
        # what cannot grow has clean rows to spare
        rows = pack.of(h[l]).repeat(in_batch + len(earlier if arch["grows"] else sources), 1, 1)
        for row, s in zip(rows[in_batch:], earlier, strict=False):
            row[taken] = (row[taken].float() - c[s][taken].to(row.device)).to(row.dtype)
        if ran is None:
            start_at(llm, arch, l, rows)
        else:
            leave(llm, arch, l - 1, rows)  # once the block before has run
            compare(*ran)
        updates.before(llm.blocks[l], rows)
        ran = l, len(earlier)
    leave(llm, arch, n_layers - 1, rows[:1].clone())
    compare(*ran)
    finish(llm, arch, n_layers, rows)
    return effects
