"""What a block makes of its input without one earlier contribution: local effects (Csordás et al. 2025, 3.3)."""

import torch

from .growing_batch import prepared
from .packing import additive, packs
from .residual_stream import added, clean_run, inputs, start_at


def local_effects(llm, arch, work, mode, budget):
    """Take c_s out of the input of block l alone, s < l, as if it did not travel through the blocks between.

    With h and c of the clean run, c̄_l what block l adds when it reads h_l[i] − c_s[i] at tokens 1 ≤ i < t:
    local[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6), 0 for l ≤ s.

    work, mode, budget: as for `layer_effects`. Returns `effects` [P, L, L], the maxima over each prompt's positions.
    """
    effects = []
    for ids, starts in work:
        effect = torch.zeros(arch["n_layers"], arch["n_layers"], dtype=torch.float32)
        prompt = prepared(llm, arch, ids, budget)
        in_batch = prompt["clean"] is None
        clean = clean_run(llm, arch, ids) if in_batch else prompt["clean"]
        for layout in packs(starts, len(ids), arch):
            rows = max(1, prompt["budget"] // len(layout["order"]) - in_batch)
            for begin in range(0, arch["n_layers"] - 1, rows):
                sources = range(begin, min(begin + rows, arch["n_layers"] - 1))
                _without(llm, arch, {**prompt, "clean": clean, "in_batch": in_batch}, layout, mode, sources, effect)
        effects.append(effect)
    return {"effects": torch.stack(effects)}


def _without(llm, arch, prompt, layout, mode, sources, effect):
    """Raise `effect` to the local effects of some c_s: every later block reads a batch of its own, one row for each."""
    order, clean, n_clean = layout["order"], prompt["clean"], int(prompt["in_batch"])
    skipped = slice(1, layout["prefix"])
    start = layout["prefix"] if mode == "future" else 0
    taken = torch.cat([clean["c"][s][:, order[skipped]].to(clean["c"][0].device) for s in sources])
    n_rows = n_clean + len(sources)
    tokens = [prompt["ids"][i] for i in order]
    encoding = inputs(tokens, order, additive(layout["visible"], llm.dtype), 1 if arch["grows"] else n_rows)
    with torch.no_grad():
        with llm.trace(encoding, use_cache=False) as tracer:
            for l in range(sources.start + 1, arch["n_layers"]):
                n_without = min(len(sources), l - sources.start)
                h = clean["h"][l][:, order]
                rows = h.repeat(n_clean + n_without if arch["grows"] else n_rows, 1, 1)
                without = slice(n_clean, n_clean + n_without)
                rows[without, skipped] = (rows[without, skipped].float() - taken[:n_without].to(h.device)).to(h.dtype)
                if l == sources.start + 1:
                    start_at(llm, arch, l, rows)
                llm.blocks[l].input = rows
                c_bar = added(llm.blocks[l], arch, start)
                c = c_bar[:1] if prompt["in_batch"] else clean["c"][l][:, order[start:]]
                change = ((c_bar[without] - c).norm(dim=-1) / c.norm(dim=-1).clamp_min(1e-6)).amax(1).cpu()
                blocks = slice(sources.start, sources.start + n_without)
                effect[blocks, l] = torch.maximum(effect[blocks, l], change)
            tracer.stop()
