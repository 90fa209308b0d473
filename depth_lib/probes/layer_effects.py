"""Probe 2: what skipping a block does to later computation (Csordás et al. 2025, section 3.3)."""

import torch

from .growing_batch import growing_batch, prepared
from .packing import packs
from .residual_stream import added, output_change


def layer_effects(llm, arch, work, mode, budget):
    """Skip block s for some tokens and measure the change of every later contribution and of the output.

    With c_l = a_l + m_l (= h_{l+1} − h_l without its rounding) and y the output of the clean run, c̄_l and ȳ of the run
    in which block s passes tokens 1..t−1 on unchanged (token 0 never):
    effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6), output[s] = max ‖y[i] − ȳ[i]‖₂.

    work: for each prompt its token ids and its positions t; mode "future", or "all" with t = T: every token i ≥ 1 is
    skipped and every token measured; budget: tokens in one forward pass, or None. Returns the maxima over the positions
    of each prompt, `effects` [P, L, L] (skipped, affected) and `outputs` [P, L, 1].
    """
    effects, outputs = [], []
    for ids, starts in work:
        effect, output = torch.zeros(arch["n_layers"], arch["n_layers"]), torch.zeros(arch["n_layers"], 1)
        prompt = prepared(llm, arch, ids, budget)
        for layout in packs(starts, len(ids), arch):
            _skip_every_block(llm, arch, prompt, layout, mode, effect, output)
        effects.append(effect)
        outputs.append(output)
    return {"effects": torch.stack(effects), "outputs": torch.stack(outputs)}


def _skip_every_block(llm, arch, prompt, layout, mode, effect, output):
    """Raise `effect` and `output` to what skipping each block does in one layout."""
    order, clean, n_layers = layout["order"], prompt["clean"], arch["n_layers"]
    skipped = slice(1, layout["prefix"])
    start = layout["prefix"] if mode == "future" else 0  # the first measured place
    layers = range(1, n_layers if mode == "future" else n_layers + 1)  # nothing reads the last block's skipped tokens
    if not layers or skipped.stop <= 1:
        return

    def skip(l, row, before):
        before = before[:, skipped].to(row.device)
        c = (row[:, skipped] - before).float().norm(dim=-1)
        row[:, skipped] = before
        if mode == "all":  # what is taken away counts itself
            effect[l - 1, l - 1] = (c / c.clamp_min(1e-6)).max()

    def compare(l, joined):
        if not joined:
            return
        rows = added(llm.blocks[l], arch, start)
        c = clean["c"][l][:, order[start:]] if clean else rows[:1]
        c_bar = rows[0 if clean else 1 :][: len(joined)]
        change = ((c_bar - c).norm(dim=-1) / c.norm(dim=-1).clamp_min(1e-6)).amax(1).cpu()
        skipped_blocks = slice(joined.start - 1, joined.stop - 1)
        effect[skipped_blocks, l] = torch.maximum(effect[skipped_blocks, l], change)

    layout = {**layout, "read": list(range(start, len(order)))}
    parts = growing_batch(llm, arch, prompt, layout, layers, skip, compare)
    for part, change in zip(parts, output_change(llm, arch, parts), strict=True):
        blocks = slice(part["l"].start - 1, part["l"].stop - 1)
        output[blocks] = torch.maximum(output[blocks], change.amax(1)[:, None])
