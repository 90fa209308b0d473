"""What a block makes of its input without one earlier contribution: local effects (Csordás et al. 2025, 3.3).

The obvious loop, with h and c of the clean run (tests/oracles/effects.py):

    for each s < l and position t:
        run block l alone on h_l[i] − c_s[i] at tokens 1 ≤ i < t, and on h_l[i] elsewhere; it adds c̄_l
        local[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)

Here one forward pass gives every block its own batch as input: a row for each s and t.
"""

import torch

from .clean_run import CleanRun
from .growing_batch import rounding_floor
from .residual_stream import inputs, leave, skip_rest, start_at
from .updates import Updates, relative_change


def local_effects(llm, arch, prompts, mode, budget):
    """Take c_s out of the input of block l alone, as if it did not travel through the blocks between.

    prompts, budget: as for `layer_effects`; mode: "future" or "all". Returns `max_<mode>_local` [P, L, L], the maxima
    over each prompt's positions, 0 for l ≤ s, and where rounding shows `max_<mode>_local_rounding_floor` [P], from
    `rounding_floor`.
    """
    effects, floors = [], []
    for ids, positions in prompts:
        clean = CleanRun(llm, arch, ids, budget, with_c=True)
        effects.append(_of_prompt(clean, positions, mode))
        floors.append(rounding_floor(clean, updates=True).get("updates"))
    result = {f"max_{mode}_local": torch.stack(effects)}
    if floors[0] is not None:
        result[f"max_{mode}_local_rounding_floor"] = torch.stack(floors)
    return result


def _of_prompt(clean, positions, mode):
    """The local effects [L, L] of every s, the largest at any position t."""
    llm, arch, n_layers = clean.llm, clean.arch, clean.arch.n_layers
    effects, size = torch.zeros(n_layers, n_layers, dtype=torch.float32), clean.rows(len(clean.ids))
    cases = [(s, t) for s in range(n_layers - 1) for t in positions if t > 1]
    for begin in range(0, len(cases), size):
        some = cases[begin : begin + size]
        n_rows = 1 if arch.can_add_rows else clean.has_clean_row + len(some)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, clean.ids, n_rows), use_cache=False) as tracer:
                of_pass = _one_pass(tracer, clean, some, 0 if mode == "all" else min(positions)).cpu()
        for (s, _), of_row in zip(some, of_pass, strict=True):
            effects[s] = effects[s].maximum(of_row)
    return effects


def _one_pass(tracer, clean, cases, first):
    """Inside a trace, for each (s, t) of `cases`, in ascending order of s, the effect of taking what block s adds out
    of tokens 1..t − 1 on tokens from t on, or on all if `first` is 0: [len(cases), L]."""
    llm, arch, h, c, n_clean = clean.llm, clean.arch, clean.h, clean.c, int(clean.has_clean_row)
    n_layers, begin, ran = arch.n_layers, cases[0][0] + 1, None
    effects = torch.zeros(len(cases), n_layers, dtype=torch.float32, device=h[-1].device)
    kept_from = torch.tensor([[t if first else 0] for _, t in cases])
    early = (torch.arange(first, len(clean.ids)) < kept_from).to(h[-1].device)
    updates = Updates(tracer, llm, arch, range(begin, n_layers))

    def compare(l, n_earlier):
        change = relative_change(updates.after(first), c[l][first:], n_clean)[n_clean : n_clean + n_earlier]
        change = change.masked_fill_(early[:n_earlier].to(change.device), 0).amax(1)
        effects[:n_earlier, l] = change.to(effects.device)

    for l in range(begin, n_layers):
        earlier = [(s, t) for s, t in cases if s < l]
        # what cannot grow has clean rows to spare
        rows = h[l].repeat(n_clean + len(earlier if arch.can_add_rows else cases), 1, 1)
        for row, (s, t) in zip(rows[n_clean:], earlier, strict=False):
            row[1:t] = h[l][1:t] - c[s][1:t].to(row.device)
        if ran is None:
            start_at(llm, arch, l, rows)
        else:
            leave(llm, arch, l - 1, rows)  # once the block before has run
            compare(*ran)
        updates.before(llm.blocks[l], rows)
        ran = l, len(earlier)
    leave(llm, arch, n_layers - 1, rows[:1].clone())
    compare(*ran)
    skip_rest(llm, arch, n_layers, rows)
    return effects
