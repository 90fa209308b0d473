"""Verifies a detected architecture on the running model: the two identities that every probe relies on, which part
mixes tokens, what the MLP reads, and the shortcuts (starting at a block, adding rows)."""

import torch

from .residual_stream import (
    enter,
    entering,
    hidden_states,
    inputs,
    leaving,
    parts,
    rescaling,
    skip_rest,
    start_at,
    total_output,
    with_hidden_states,
)
from .unembedding import lens

N_TOKENS = 4
CLEAN, MIDDLE, STEERED, FIRST_BIT = range(4)  # rows of the batch
NAN, TINY = float("nan"), 1e-30


def identities(llm, arch, ids):
    """Errors of the detected architecture `arch` on the running model.

    ids: N_TOKENS tokens, run as one batch. Each row replaces what enters every block: row CLEAN leaves it as it is; row
    MIDDLE sets all tokens between the first and the last to the last; in row STEERED attention adds something else; and
    there is one row for each bit of a block's number, which enters changed where the bit is 0. So every block is
    measured on its own, and for any two blocks there is a row that only the earlier one reads changed.

    Changes are relative to the norm (NaN if that is 0), and the median over tokens, as rounding may choose other
    experts for one token. Returns tensors [L], one value per block:
    - `identity_1`: h_{l+1} = h_l + a_l + m_l, times any one number in blocks that rescale: the largest error of a token
      relative to what is added to it, or of a part's scale, minus what rounding explains;
    - `attention_mixes`, `mlp_mixes`: the change of the last token if earlier ones change: the least of the modules that
      make a, the largest of those that make m; `sees_later`: the change of the first token in what the block adds;
    - `mlp_change`: the change of m if a changes (0 in parallel blocks);
    - `passes_on`: how far what the block reads is from what the one before returned;
    - `can_skip_blocks`: the change of what the block adds if earlier blocks read something else;
    - `can_add_rows`: the change of what the block adds in a row that was added later;
    tensors [1] of the model, `identity_2`: lens(h_L) = the logits, the largest error of a logit relative to the largest
    logit, and `logit_scale`, the error of their scale; `finite`, whether all logits are; and `eps`, the rounding unit
    of the residual's dtype, and `eps_of_logits`, of the unembedding's where that is coarser.
    """
    n_bits = (arch.n_layers - 1).bit_length() if arch.can_skip_blocks else 0
    blocks, entered, added, after = [], [], [], None
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids, FIRST_BIT + n_bits), use_cache=False):
            h = entering(llm.blocks[0])[:1].clone()
            for l, block in enumerate(llm.blocks):
                unchanged = [FIRST_BIT + bit for bit in range(n_bits) if l >> bit & 1]
                rows = h.repeat(FIRST_BIT + n_bits, 1, 1)
                rows[MIDDLE, 1:-1] = h[0, -1]
                rows[FIRST_BIT:] = h.flip(1)
                rows[unchanged] = h
                passes_on = 0.0 if l == 0 else _off(entering(block), after)
                enter(llm, arch, l, rows)
                measured, sums = _parts(block, arch, rows)
                measured["passes_on"] = passes_on
                after = leaving(block).clone()
                rows = rows.to(after.device)
                change = after.float() - rows.float()
                measured["identity_1"] = _identity_1(arch, rows, sums, after) if sums else 0.0
                measured["sees_later"] = _moved(change[MIDDLE, :1], change[CLEAN, :1])
                measured["can_skip_blocks"] = _moved(change[unchanged], change[CLEAN]) if unchanged else 0.0
                blocks.append(measured)
                entered.append(rows[:STEERED])
                added.append(change[:STEERED])
                h = after[:1]
            ours = lens(llm, arch, after[:FIRST_BIT].flatten(0, 1))
            logits = llm.output.logits[:FIRST_BIT].float().to(ours.device).flatten(0, 1)
            error, eps = ours - logits, torch.finfo(after.dtype).eps
            eps_of_logits = max(eps, torch.finfo(arch.head_dtype or after.dtype).eps)
            last = {
                "identity_2": float(error.abs().max() / logits.abs().max()),
                "logit_scale": _off_in_scale(error, logits, eps_of_logits * logits),
            }
        measured = {key: torch.tensor([of_block[key] for of_block in blocks]) for key in blocks[0]}
        measured |= {key: torch.tensor([value]) for key, value in last.items()}
        measured |= {"eps": eps, "eps_of_logits": eps_of_logits, "finite": bool(logits.isfinite().all())}
        return measured | _shortcuts(llm, verified(arch, measured), ids, entered, added)


def _parts(block, arch, rows):
    """The measures of a and m, and the parts themselves (float32 [B, T, d]), without those that are missing or unknown.

    In row STEERED attention adds something else; in row MIDDLE it adds to the last token what it adds in row CLEAN, so
    that the MLP reads the same there.
    """
    sums, mixes = {}, {"attention": [], "mlp": []}
    for part, addends in parts(block, arch).items() if arch.parts else ():
        for module, scale, bias in addends:
            x = hidden_states(module.output)
            of_token = x.clone().view(rows.shape)
            mixes[part].append(_moved(of_token[MIDDLE, -1:].float(), of_token[CLEAN, -1:].float()))
            if part == "attention":
                of_token[MIDDLE, -1] = of_token[CLEAN, -1]
                if part not in sums:
                    of_token[STEERED] += rows[CLEAN].flip(0).to(x)
                module.output = with_hidden_states(module.output, of_token.view(x.shape))
            added = [(module, scale, bias)]
            sums[part] = total_output(added, rows.shape, total=sums.get(part), read=lambda _, x=of_token: x)
    m = sums.get("mlp")
    return {
        "attention_mixes": min(mixes["attention"], default=NAN),
        "mlp_mixes": max(mixes["mlp"], default=NAN),
        "mlp_change": _moved(m[STEERED], m[CLEAN]) if len(sums) == 2 else NAN,
    }, [*sums.values()]


def _identity_1(arch, h, sums, after):
    """The largest error of a token or of a part's scale, minus what the rounding of two sums explains."""
    sums = [p.to(after.device) for p in sums]
    total = h + sum(sums)
    k = rescaling(total, after.float()) if arch.rescales else 1
    error = after.float() - k * total
    rounding = torch.finfo(after.dtype).eps * sum((k * p).abs() for p in (after.float() / k, *sums))
    of_token = (error.norm(dim=-1) - rounding.norm(dim=-1)).relu() / (k * sum(sums)).norm(dim=-1).clamp_min(TINY)
    return max(float(of_token.max()), *(_off_in_scale(error, k * p, rounding) for p in sums))


def _off_in_scale(error, p, rounding):
    """The relative error of p's scale: the slope of the error on p, minus what rounding may contribute.

    Rounding errors are uniform within ± `rounding`: twice that is 3.5 standard deviations. Places where it is not much
    smaller than p are left out, as the two are not independent there.
    """
    p = p.where(p.abs() > 4 * rounding.abs(), 0)
    square = p.square().sum().clamp_min(TINY)
    return float(((error * p).sum().abs() - 2 * (rounding * p).norm()).relu() / square)


def _off(x, truth):
    """‖x − truth‖ / ‖truth‖ of all tokens together."""
    x, truth = x.float(), truth.to(x.device).float()
    return float((x - truth).norm() / truth.norm().clamp_min(TINY))


def _moved(x, truth):
    """‖x − truth‖ / ‖truth‖ of x [..., T, d]: the median over tokens, then the largest. NaN where nothing is added."""
    return float(((x - truth).norm(dim=-1) / truth.norm(dim=-1)).median(-1).values.max())


def _shortcuts(llm, arch, ids, entered, added):
    """The change of what blocks add to row MIDDLE, compared with `added` [2, T, d], in a pass that uses all shortcuts:
    it starts at the second block, where that row is added."""
    begin, errors = int(arch.can_skip_blocks and arch.n_layers > 1), [0.0]
    with llm.trace(inputs(llm, arch, ids, 1 if arch.can_add_rows else 2), use_cache=False):
        for l in range(begin, arch.n_layers):
            rows = entered[l]
            (start_at if l == begin else enter)(llm, arch, l, rows)
            after = leaving(llm.blocks[l])
            rows, truth = rows.to(after.device).float(), added[l].to(after.device)
            rounding = torch.finfo(after.dtype).eps * (after.float().norm(dim=-1) + rows.norm(dim=-1))
            off = ((after.float() - rows - truth).norm(dim=-1) - rounding).relu() / truth.norm(dim=-1)
            errors.append(float(off[MIDDLE].median()))
        skip_rest(llm, arch, arch.n_layers, after)
    return {"can_add_rows": torch.tensor(errors)}


def verified(arch, measured):
    """`arch` without the shortcuts that were measured and do not work."""
    limit, shortcuts = measured["eps"] ** 0.5, ("can_skip_blocks", "can_add_rows")
    names = [name for name in shortcuts if name in measured and (measured[name] > limit).any()]
    if "can_skip_blocks" in names:
        names.append("can_add_rows")
    return arch.but(**dict.fromkeys(names, False))
