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

from .distributions import output_change
from .growing_batch import growing_batch, relative_change
from .packing import packs
from .residual_stream import added, clean_run, compares_in_batch, token_budget


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
    results = [_of_prompt(llm, arch, ids, starts, mode, part, budget) for ids, starts in work]
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _of_prompt(llm, arch, ids, starts, mode, part, budget):
    clean = clean_run(llm, arch, ids)
    results = []
    for pack in packs(starts, len(ids), arch):
        results.append(_of_pack(llm, arch, ids, pack, clean, mode, part, token_budget(llm, budget)))
    effects, changes, n_next = zip(*results, strict=True)
    effect, resolution = torch.stack(effects).amax(0)
    change = torch.cat(changes, dim=-1)  # [2, 4, L, all measured tokens]
    output, output_resolution = change[:, 0].amax(-1, keepdim=True)
    result = {
        f"max_{mode}_layer": effect,
        f"max_{mode}_out": output,
        f"{mode}_kl": change[0, 1].mean(-1),
        f"{mode}_loss": change[0, 2].sum(-1) / max(1, sum(n_next)),
        f"{mode}_top1": 1 - change[0, 3].mean(-1),
    }
    if compares_in_batch(llm):
        result |= {f"max_{mode}_layer_resolution": resolution, f"max_{mode}_out_resolution": output_resolution}
    return result


def _of_pack(llm, arch, ids, pack, clean, mode, part, budget):
    """The effects of every block s at the positions of one pack, and beside them those of rounding.

    Returns effects [2, L, L], the output's changes at the M measured tokens [2, 4, L, M] (see `output_change`), and
    how many of these have a next token.
    """
    order, suffixes, _ = pack
    prefix, n_layers = suffixes[0].start, arch["n_layers"]
    h, c = clean
    n_own = 2 if compares_in_batch(llm) else 0
    skipped = slice(0 if mode == "remove" else 1, prefix)
    measured = range(prefix if mode == "future" else 0, len(order))
    # the row of a whole block joins after block s; that of a part before it, because the other part must run
    shift = 1 if part == "layer" else 0
    effect, effect_of_rounding = effects = torch.zeros(2, n_layers, n_layers, dtype=torch.float32)  # views of it

    def skip(l, row, before):
        if part == "layer":
            before = before[:, skipped].to(row.device)
            if mode != "future":  # the skipped tokens are measured too: they lose all that the block adds
                size = (row[:, skipped] - before).float().norm(dim=-1)  # ‖c‖, and c̄ = 0
                effect[l - 1, l - 1] = (size / size.clamp_min(1e-6)).max()
            row[:, skipped] = before

    def compare(l, joined):
        def silence(x):
            x[n_own + l - joined.start, skipped] = 0

        blocks = slice(joined.start - shift, joined.stop - shift)
        c_bar = added(llm.blocks[l], arch, measured.start, silence if l in joined else None, part)
        change, effect_of_rounding[blocks, l] = relative_change(c_bar, c[l][order[measured.start :]], n_own)
        effect[blocks, l] = torch.maximum(effect[blocks, l], change[: len(joined)])

    next_tokens = [ids[order[place] + 1] if order[place] + 1 < len(ids) else -1 for place in measured]
    n_next = sum(token >= 0 for token in next_tokens)
    changes = torch.zeros(2, 4, n_layers, len(measured), dtype=torch.float32)
    # what the last block gives earlier tokens reaches no later one
    n_skipped = n_layers - 1 if mode == "future" else n_layers
    if n_skipped == 0 or skipped.start == skipped.stop:
        return effects, changes, n_next
    layers = range(shift, n_skipped + shift)
    passes = growing_batch(llm, arch, ids, pack, h, layers, skip, list(measured), budget, n_own, compare)
    output_changes = output_change(llm, arch, [final for _, *final in passes], next_tokens)
    for (joined, *_), change in zip(passes, output_changes, strict=True):
        blocks = slice(joined.start - shift, joined.stop - shift)
        changes[0, :, blocks] = change[:, -len(joined) :]
        if n_own:
            changes[1, :, blocks] = change[:, :1]
    return effects, changes, n_next
