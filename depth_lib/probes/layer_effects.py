"""Probe 2: what skipping a block, or its attention or MLP, does to later computation (Csordás et al. 2025, 3.3).

The obvious loop, with c_l = a_l + m_l the contributions and y the output of the clean run (tests/oracles/effects.py):

    for each block s and position t:
        run the model, but block s passes tokens 1..t−1 on unchanged (or its attention or MLP adds nothing to them)
        effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)
        output[s]    = max over tokens i ≥ t of ‖y[i] − ȳ[i]‖₂

Here all s are rows of one batch, each of which joins it where its run begins to differ (see `growing_batch`), and
several t share one sequence whose common prefix is computed once (see `pack`).
"""

import torch

from .growing_batch import growing_batch, own_rows, relative_change
from .packing import packs
from .residual_stream import changed_in_place, clean_run


def layer_effects(llm, arch, work, mode, part, budget):
    """Skip block s for some tokens and measure the change of every later contribution and of the output.

    work: for each prompt its token ids and its positions t. mode: "future", or with the only position t = T "all"
    (every token i ≥ 1 is skipped and every token measured) or "remove" (token 0 is skipped too). part: "layer",
    "attention" or "mlp". budget: tokens in one forward pass, or None.

    Returns the maxima over the positions of each prompt, `max_<mode>_layer` [P, L, L] (skipped, affected) and
    `max_<mode>_out` [P, L, 1], and means over the measured tokens, `<mode>_kl`, `<mode>_loss` and `<mode>_top1` [P, L]:
    KL(y ‖ ȳ), log y − log ȳ of the next token, and whether the top token stays. Where rounding shows (see
    `compares_in_batch`) also `max_<mode>_layer_resolution` and `max_<mode>_out_resolution`: what rounding alone does.
    """
    like, in_place = changed_in_place(llm, arch, work[0][0])
    n_own = own_rows(llm, like)
    results = [_of_prompt(llm, arch, ids, starts, mode, part, budget, n_own, in_place) for ids, starts in work]
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _of_prompt(llm, arch, ids, starts, mode, part, budget, n_own, in_place):
    clean = clean_run(llm, arch, ids, with_contributions=not n_own)
    how = (clean, mode, part, budget, n_own, in_place)
    of_packs = [_of_pack(llm, arch, ids, pack, *how) for pack in packs(starts, len(ids), arch)]
    effects, changes = zip(*of_packs, strict=True)
    effects, changes = torch.stack(effects).amax(0), torch.cat(changes, dim=-1)  # [2, L, L], [2, 4, L, measured tokens]
    outputs, (_, kl, loss, top_changes) = changes[:, 0].amax(-1, keepdim=True), changes[0]
    n_last = len(starts) if mode == "future" else 1  # tokens without a next one
    result = {
        f"max_{mode}_layer": effects[0],
        f"max_{mode}_out": outputs[0],
        f"{mode}_kl": kl.mean(-1),
        f"{mode}_loss": loss.sum(-1) / max(1, loss.shape[-1] - n_last),
        f"{mode}_top1": 1 - top_changes.mean(-1),
    }
    if n_own:
        result |= {f"max_{mode}_layer_resolution": effects[1], f"max_{mode}_out_resolution": outputs[1]}
    return result


def _of_pack(llm, arch, ids, pack, clean, mode, part, budget, n_own, in_place):
    """The effects of every block s at the positions of one pack, and beside them those of rounding.

    Returns effects [2, L, L] and the output's changes at the M measured tokens [2, 4, L, M] (see `output_change`).
    """
    order, suffixes = pack
    prefix, n_layers = suffixes[0].start, arch["n_layers"]
    h, c = clean
    skipped = slice(0 if mode == "remove" else 1, prefix)
    measured = range(prefix if mode == "future" else 0, len(order))
    # the row of a whole block joins after block s; that of a part before it, because the other part must run
    shift = 1 if part == "layer" else 0
    effect, effect_of_rounding = effects = torch.zeros(2, n_layers, n_layers, dtype=torch.float32)  # views of it
    changes = torch.zeros(2, 4, n_layers, len(measured), dtype=torch.float32)
    # what the last block gives earlier tokens reaches no later one
    n_skipped = n_layers - 1 if mode == "future" else n_layers
    if n_skipped == 0 or skipped.start == skipped.stop:
        return effects, changes
    if part == "layer" and mode != "future":  # the skipped tokens are measured too: they lose all that the block adds
        for s in range(n_layers):
            c_s = c[s] if c else h[s + 1].float() - h[s].to(h[s + 1]).float()
            size = c_s[skipped].norm(dim=-1)  # ‖c‖, and c̄ = 0
            effect[s, s] = (size / size.clamp_min(1e-6)).max()

    def skip(k, row, before):
        if part == "layer":
            row[:, skipped] = before[:, skipped].to(row.device)

    def compare(l, joined, c_bar):
        change, nudge = relative_change(c_bar, c and c[l][order[measured.start :]], n_own)
        blocks = slice(joined.start, joined.stop)
        effect[blocks, l], effect_of_rounding[blocks, l] = change[: len(joined)], nudge

    def silent(l, joined):
        if part != "layer" and l in joined:  # the row of a part joins before its own block
            return part, n_own + l - joined.start, skipped

    next_tokens = [ids[order[place] + 1] if order[place] + 1 < len(ids) else -1 for place in measured]
    work = (pack, h, range(shift, n_skipped + shift), skip, measured, budget, next_tokens, compare, in_place, silent)
    changes[:, :, :n_skipped] = growing_batch(llm, arch, ids, *work)
    return effects, changes
