"""Probe 2: what skipping a block, or its attention or MLP, does to later computation (Csordás et al. 2025, 3.3).

The obvious loop, with c_l = a_l + m_l the contributions and y the output of the clean run (tests/oracles/effects.py):

    for each block s and position t:
        run the model, but block s passes tokens 1..t−1 on unchanged (or its attention or MLP adds nothing to them)
        effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)
        output[s]    = max over tokens i ≥ t of ‖y[i] − ȳ[i]‖₂

Here all s are rows of one batch, each of which joins it where its run begins to differ (see `growing_batch`), and
several t share one sequence whose common prefix is computed once (see `Pack`).
"""

import torch

from .clean_run import CleanRun
from .growing_batch import growing_batch, rounding_floor


def layer_effects(llm, arch, work, mode, part, budget):
    """Skip block s for some tokens and measure the change of every later contribution and of the output.

    work: for each prompt its token ids and its positions t. mode: "future", or with the only position t = T "all"
    (every token i ≥ 1 is skipped and every token measured) or "remove" (token 0 is skipped too). part: "layer",
    "attention" or "mlp". budget: tokens in one forward pass, or None.

    Returns the maxima over the positions of each prompt, `max_<mode>_layer` [P, L, L] (skipped, affected) and
    `max_<mode>_out` [P, L, 1], and `<mode>_kl` [P, L], the mean of KL(y ‖ ȳ) over the measured tokens. Where rounding
    shows also `max_<mode>_layer_rounding_floor` and `max_<mode>_out_rounding_floor` [P], from `rounding_floor`.
    """
    results = []
    for ids, starts in work:
        clean = CleanRun(llm, arch, ids, budget, updates="with any")
        effects, changes = zip(*[_of_pack(clean, pack, mode, part) for pack in clean.packs(starts)], strict=True)
        distance, kl = torch.cat(changes, dim=-1)
        result = {
            f"max_{mode}_layer": torch.stack(effects).amax(0),
            f"max_{mode}_out": distance.amax(-1, keepdim=True),
            f"{mode}_kl": kl.mean(-1),
        }
        for name, floor in rounding_floor(clean, updates=True).items():
            result[f"max_{mode}_{'layer' if name == 'updates' else 'out'}_rounding_floor"] = floor
        results.append(result)
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _of_pack(clean, pack, mode, part):
    """The effects [L, L] of every block s at the positions of one pack, and the distance and the KL divergence of the
    output at the M measured tokens [2, L, M]."""
    prefix, n_layers = pack.prefix, clean.arch["n_layers"]
    skipped = slice(0 if mode == "remove" else 1, prefix)
    measured = range(prefix if mode == "future" else 0, pack.n_places)
    # the row of a whole block joins after block s; that of a part before it, because the other part must run
    shift = 1 if part == "layer" else 0
    effects = torch.zeros(n_layers, n_layers, dtype=torch.float32)
    changes = torch.zeros(2, n_layers, len(measured), dtype=torch.float32)
    # what the last block gives earlier tokens reaches no later one
    n_skipped = n_layers - 1 if mode == "future" else n_layers
    if n_skipped == 0 or skipped.start == skipped.stop:
        return effects, changes

    def skip(k, row, before):
        if part == "layer":
            row[:, skipped] = before[:, skipped].to(row.device)

    def silent(l, joined):
        if part != "layer" and l in joined:  # the row of a part joins before its own block
            return part, clean.in_batch + l - joined.start, skipped

    layers, no_next = range(shift, n_skipped + shift), [-1] * len(measured)
    damage, of_blocks = growing_batch(clean, pack, layers, skip, measured, no_next, updates=True, silent=silent)
    effects[:n_skipped], changes[:, :n_skipped] = of_blocks, damage[:2]
    if part == "layer" and mode != "future":  # the skipped tokens are measured too: they lose all that the block adds
        h, device = clean.h, clean.h[-1].device
        c = clean.c or [after.float() - before.to(after).float() for before, after in zip(h, h[1:], strict=False)]
        sizes = torch.stack([c_s[skipped].norm(dim=-1).to(device) for c_s in c]).cpu()  # ‖c‖, and c̄ = 0
        effects.diagonal().copy_((sizes / sizes.clamp_min(1e-6)).amax(1))
    return effects, changes
