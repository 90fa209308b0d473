"""Probe 2: what skipping a block, or its attention or MLP, does to later computation (Csordás et al. 2025, 3.3)."""

import torch

from .growing_batch import growing_batch, prepared
from .packing import packs
from .residual_stream import added, output_change


def layer_effects(llm, arch, work, mode, part, budget):
    """Skip block s for some tokens and measure the change of every later contribution and of the output.

    With c_l = a_l + m_l (= h_{l+1} − h_l without its rounding) and y the output of the clean run, c̄_l and ȳ of the run
    in which block s passes tokens 1..t−1 on unchanged (token 0 never), or adds no a_s or m_s to them:
    effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6), output[s] = max ‖y[i] − ȳ[i]‖₂;
    kl[s], loss[s] and top1[s] are means of KL(y[i] ‖ ȳ[i]), log y[i] − log ȳ[i] at token i + 1, and whether the top
    token stays.

    work: for each prompt its token ids and its positions t; mode "future", or with t = T "all" (every token i ≥ 1 is
    skipped and every token measured) or "remove" (token 0 is skipped too); part: "layer", "attention" or "mlp"; budget:
    tokens in one forward pass, or None. Returns the maxima over the positions of each prompt, `effects` [P, L, L]
    (skipped, affected) and `outputs` [P, L, 1], and means over them `kl`, `loss` and `top1` [P, L].
    """
    results = []
    for ids, starts in work:
        prompt, n_layers = prepared(llm, arch, ids, budget), arch["n_layers"]
        found = {"effects": _zeros(n_layers, n_layers), "outputs": _zeros(n_layers, 1)}
        sums, counts = _zeros(3, n_layers), _zeros(3, 1)
        for layout in packs(starts, len(ids), arch):
            damage, measured = _skip_every_block(llm, arch, prompt, layout, mode, part, found)
            sums, counts = sums + damage, counts + measured
        kl, loss, changed = sums / counts.clamp_min(1)
        results.append(found | {"kl": kl, "loss": loss, "top1": 1 - changed})
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _skip_every_block(llm, arch, prompt, layout, mode, part, found):
    """Raise the maxima in `found` to what skipping each block does in one layout. Returns the sums over measured tokens
    [3, L] of kl, loss and changed top tokens, and their numbers [3, 1]."""
    order, clean, n_layers = layout["order"], prompt["clean"], arch["n_layers"]
    skipped = slice(0 if mode == "remove" else 1, layout["prefix"])
    start = layout["prefix"] if mode == "future" else 0  # the first measured place
    # A whole block's row joins behind it; one that lacks a part joins before it, for what the other part makes of that.
    shift = 1 if part == "layer" else 0
    n_skipped = (
        n_layers - 1 if mode == "future" else n_layers
    )  # nothing reads what the last block's skipped tokens hold
    n_clean, effect, output = 0 if clean else 1, found["effects"], found["outputs"]

    def skip(l, row, before):
        if part == "layer":
            before = before[:, skipped].to(row.device)
            c = (row[:, skipped] - before).float().norm(dim=-1)
            row[:, skipped] = before
            if mode != "future":  # what is taken away counts itself
                effect[l - 1, l - 1] = (c / c.clamp_min(1e-6)).max()

    def compare(l, joined):
        if not joined:
            return

        def silence(x):
            x[n_clean + l - joined.start, skipped] = 0

        rows = added(llm.blocks[l], arch, start, silence if l in joined else None, part)
        c = clean["c"][l][:, order[start:]] if clean else rows[:1]
        change = (rows[n_clean : n_clean + len(joined)] - c).norm(dim=-1) / c.norm(dim=-1).clamp_min(1e-6)
        blocks = slice(joined.start - shift, joined.stop - shift)
        effect[blocks, l] = torch.maximum(effect[blocks, l], change.amax(1).cpu())

    ids = prompt["ids"]
    layout = {**layout, "read": list(range(start, len(order)))}
    following = [ids[i + 1] if i + 1 < len(ids) else -1 for i in order[start:]]
    n_next = sum(token >= 0 for token in following)
    sums, numbers = _zeros(3, n_layers), torch.tensor([[len(following)], [n_next], [len(following)]])
    if n_skipped == 0 or skipped.start == skipped.stop:
        return sums, numbers
    parts = growing_batch(llm, arch, prompt, layout, range(shift, n_skipped + shift), skip, compare)
    parts = [{**piece, "next": following} for piece in parts]
    for piece, (distance, *damage) in zip(parts, output_change(llm, arch, parts), strict=True):
        blocks = slice(piece["l"].start - shift, piece["l"].stop - shift)
        output[blocks] = torch.maximum(output[blocks], distance.amax(1)[:, None])
        sums[:, blocks] = torch.stack(damage).sum(-1)
    return sums, numbers


def _zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float32)
