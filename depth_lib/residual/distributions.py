"""How far an intervention moves the model's distributions over the vocabulary."""

import torch

from .budget import logits_in_cache, rows_of_logits
from .unembedding import lens


def output_change(llm, arch, finals, next_tokens=None):
    """How far the outputs ȳ of changed runs are from y of the clean one. For use inside a trace.

    finals: final residuals [1 + R, M, d] of M places, those of the clean run first. next_tokens: the token that follows
    each place (−1: none), or None.

    Returns ‖y − ȳ‖₂ [1, R, M], or with next_tokens the four numbers of `damage` [4, R, M].
    """
    changes, at_once = [], max(1, rows_of_logits(llm, finals) // len(finals))
    following = torch.tensor(next_tokens or [-1] * finals.shape[1], device=finals.device)
    for h, tokens in zip(finals.split(at_once, dim=1), following.split(at_once), strict=True):
        logits = lens(llm, arch, h.flatten(0, 1)).unflatten(0, h.shape[:2])
        n_places = max(1, logits_in_cache(logits) // logits.shape[-1])
        for z, some in zip(logits.split(n_places, dim=1), tokens.to(logits.device).split(n_places), strict=True):
            y, n_rows = distribution(z[:1]), max(1, logits_in_cache(z) // z[0].numel())
            top = y[1].argmax(-1, keepdim=True) if next_tokens else None
            changed = map(distribution, z[1:].split(n_rows))
            of_rows = [damage(y, top, y_bar, some) if next_tokens else distance(y, y_bar) for y_bar in changed]
            changes.append(torch.cat(of_rows, dim=1))
    return torch.cat(changes, dim=2)


def distribution(logits):
    """p and log p [..., V] of logits, both finite and p above 0: for a token that a bias excludes, e^−70 and −1000."""
    z = (logits - logits.amax(-1, keepdim=True)).clamp_min_(-1e3)
    p = probability(z)
    total = p.sum(-1, keepdim=True)
    return p.div_(total), z.sub_(total.log())


def distance(clean, changed):
    """‖y − ȳ‖₂ [1, R, M] of the clean distribution (y, log y), [1, M, V] each, and changed ones, [R, M, V] each.

    The changed ones are overwritten: temporaries of their size are slow.
    """
    return changed[0].sub_(clean[0]).norm(dim=-1)[None]


def damage(clean, top, changed, next_tokens):
    """Four measures of each changed output [4, R, M], of distributions as in `distance`.

    They are ‖y − ȳ‖₂, KL(y ‖ ȳ) in nats, log y − log ȳ of the next token (0 without one), and whether the top token
    changes. top: the clean run's top tokens [1, M, 1].
    """
    (y, log_y), (_, log_y_bar) = clean, changed
    following = next_tokens.clamp_min(0)[None, :, None]
    of_top, of_next = (log_y_bar.gather(2, k.expand(len(log_y_bar), -1, 1))[..., 0] for k in (top, following))
    rise = (log_y.gather(2, following)[..., 0] - of_next) * (next_tokens >= 0)
    top_changes = (of_top < log_y_bar.amax(-1)).float()
    kl = torch.sub(log_y, log_y_bar, out=log_y_bar).mul_(y).sum(-1)
    return torch.cat([distance(clean, changed), torch.stack([kl, rise, top_changes])])


def probability(log_p):
    """exp(log p), but no subnormal number, for which a CPU takes a hundred times as long: no sum notices e^−70."""
    return log_p.clamp_min(-70).exp_()
