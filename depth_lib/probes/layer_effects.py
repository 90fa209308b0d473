"""Probe 2: what skipping a block, or its attention or MLP, does to later computation (Csordás et al. 2025, 3.3).

The obvious loop, with c_l = a_l + m_l the contributions and y the output of the clean run (tests/oracles/effects.py):

    for each block s and position t:
        run the model, but block s passes tokens 1..t−1 on unchanged (or its attention or MLP adds nothing to them)
        effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)
        output[s]    = max over tokens i ≥ t of ‖y[i] − ȳ[i]‖₂

Here all s and t are rows of a batch, each of which joins it where its run begins to differ (see `growing_batch`).
"""

import torch

from .clean_run import CleanRun
from .growing_batch import Row, growing_batch, rounding_floor


def layer_effects(llm, arch, prompts, mode, part, budget):
    """Skip block s for some tokens and measure the change of every later contribution and of the output.

    prompts: for each prompt its token ids and its positions t. mode: "future", or with the only position t = T "all"
    (every token i ≥ 1 is skipped and every token measured) or "remove" (token 0 is skipped too). part: "layer",
    "attention" or "mlp". budget: tokens in one forward pass, or None.

    Returns the maxima over the positions of each prompt, `max_<mode>_layer` [P, L, L] (skipped, affected) and
    `max_<mode>_out` [P, L, 1], and `<mode>_kl` [P, L], the mean of KL(y ‖ ȳ) over the measured tokens. Where rounding
    shows also `max_<mode>_layer_rounding_floor` and `max_<mode>_out_rounding_floor` [P], from `rounding_floor`.
    """
    results = []
    for ids, positions in prompts:
        clean = CleanRun(llm, arch, ids, budget, compares_c=True)
        effects, distance, kl = _of_prompt(clean, positions, mode, part)
        result = {f"max_{mode}_layer": effects, f"max_{mode}_out": distance[:, None], f"{mode}_kl": kl}
        for name, floor in rounding_floor(clean, updates=True).items():
            result[f"max_{mode}_{'layer' if name == 'updates' else 'out'}_rounding_floor"] = floor
        results.append(result)
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _of_prompt(clean, positions, mode, part):
    """The effects [L, L] of every block s, and the largest distance and the mean KL divergence of the output [L]."""
    n_layers, n_tokens, first = clean.arch.n_layers, len(clean.ids), 0 if mode == "remove" else 1
    effects, (distance, kl) = (
        torch.zeros(n_layers, n_layers, dtype=torch.float32),
        torch.zeros(2, n_layers, dtype=torch.float32),
    )
    # what the last block gives earlier tokens reaches no later one
    n_skipped = n_layers - 1 if mode == "future" else n_layers
    cases = [(s, range(first, t)) for t in positions if t > first for s in range(n_skipped)]
    rows = [_skip(s, skipped, part, mode == "future", n_tokens) for s, skipped in cases]
    changes, of_blocks = growing_batch(clean, rows, part, damage=True, updates=True)
    for (s, _), change, of_row in zip(cases, changes, of_blocks, strict=True):
        effects[s] = effects[s].maximum(of_row)
        distance[s] = distance[s].maximum(change[0].max())
        kl[s] += change[1].sum()
    kl /= sum(n_tokens - t if mode == "future" else n_tokens for t in positions)
    if part == "layer" and mode != "future" and cases:  # the skipped tokens are measured too: c̄ = 0 there
        h, device = clean.h, clean.h[-1].device
        c = clean.c or [after.float() - before.to(after).float() for before, after in zip(h, h[1:], strict=False)]
        sizes = torch.stack([c_s[first:].norm(dim=-1).to(device) for c_s in c]).cpu()
        effects.diagonal().copy_((sizes / sizes.clamp_min(1e-6)).amax(1))
    return effects, distance, kl


def _skip(s, skipped, part, future, n_tokens):
    """The row in which block s, or a part of it, adds nothing to the skipped tokens."""
    read = range(skipped.stop if future else 0, n_tokens)
    tokens = slice(skipped.start, skipped.stop)
    if part != "layer":  # the other part has to run
        return Row(s, read, silent={s: tokens})

    def pass_on(h, before):
        h[tokens] = before[tokens].to(h.device)

    return Row(s + 1, read, pass_on)
