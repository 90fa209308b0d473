"""From residuals to the model's logits, by its own modules."""

import torch

from .budget import rows_of_logits


def unembedded(llm, arch, h):
    """unembed(final_norm(h)) of residuals h [N, d], by the model's own modules: [N, V] in the model's dtype."""
    h = h.unflatten(-1, arch.streams)
    if len(arch.streams) > 1:  # what merges them wants a batch
        h = h[None]
    *before, unembed = arch.tail_names
    for name in before:
        h = getattr(llm, name)(h)
    h = h if arch.head_dtype is None else h.to(arch.head_dtype)
    weights = _fetched(llm, arch, h)
    logits = getattr(llm, unembed)(h) if weights is None else torch.nn.functional.linear(h, weights)
    return logits.flatten(0, -2)


def _fetched(llm, arch, h):
    """The unembedding's weights [V, d], if the model runs in another process and more rows than d have been requested.

    Sending weights is then cheaper than sending logits. They are read from the module's output for unit vectors,
    and used if they give the same bits as the module. None if calling the module is right.
    """
    fetched = arch.fetched
    if fetched is None:
        return None
    fetched["rows"] = fetched.get("rows", 0) + h.shape[:-1].numel()
    if "weights" not in fetched and fetched["rows"] > h.shape[-1]:
        unit = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device).split(rows_of_logits(llm, h))
        weights = torch.cat([llm.unembed(some).T for some in unit], dim=1)
        few = h.flatten(0, -2)[:8]
        agree = torch.equal(torch.nn.functional.linear(few, weights), llm.unembed(few))
        fetched["weights"] = weights if agree else None
    return fetched.get("weights")


def to_logits(arch, logits):
    """Unembedded residuals as the model's logits, float32: scaled and capped where the family does."""
    logits = logits.float()
    if arch.logit_scale != 1.0:
        logits = logits * arch.logit_scale
    if arch.logit_softcap is not None:
        logits = torch.tanh(logits / arch.logit_softcap) * arch.logit_softcap
    return logits


def lens(llm, arch, h):
    """The logit lens: to_logits(unembed(final_norm(h))) of residuals h [N, d] as logits [N, V], float32."""
    return to_logits(arch, unembedded(llm, arch, h))


def translated(lens, h):
    """A_l h_l + b_l of residuals h_0.. [N, d] in their dtype; h_L and, without a lens, all are as they are.

    Products are in float32, outside a server's autocast. lens: `A` [L, d, d] and `b` [L, d], or None.
    """
    result = list(h)
    for l, x in enumerate(h[: len(lens["A"])] if lens else ()):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):
            result[l] = torch.addmm(lens["b"][l].to(wide), wide, lens["A"][l].to(wide).T).to(x.dtype)
    return result
