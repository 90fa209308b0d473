"""How far an intervention moves the model's distributions over the vocabulary."""

import torch

from .budget import logits_in_cache, rows_of_logits
from .unembedding import to_logits, unembedded


def output_change(llm, arch, finals, next_tokens=None):
    """How far the outputs ȳ of changed runs are from y of the clean one. For use inside a trace.

    finals: final residuals [1 + R, M, d] of M places, those of the clean run first. next_tokens: the token that follows
    each place (−1: none), or None.

    Returns ‖y − ȳ‖₂ [1, R, M], or with next_tokens the four numbers of `damage` [4, R, M].
    """
    at_once, changes = max(1, rows_of_logits(llm, finals) // len(finals)), []
    following = torch.tensor(next_tokens or [-1] * finals.shape[1], device=finals.device)
    for h, tokens in zip(finals.split(at_once, dim=1), following.split(at_once), strict=True):
        h = h.transpose(0, 1)
        logits = unembedded(llm, arch, h.flatten(0, 1)).unflatten(0, h.shape[:2])
        n_places = max(1, logits_in_cache(logits) // logits[0].numel())
        n_rows = max(1, logits_in_cache(logits) // (n_places * logits.shape[2]))
        for z, some in zip(logits.split(n_places), tokens.to(logits.device).split(n_places), strict=True):
            y, changed = z[:, :1], z[:, 1:].split(n_rows, dim=1)
            changes.append(distance(arch, y, changed) if next_tokens is None else damage(arch, y, changed, some))
    return torch.cat(changes, dim=1).mT.cpu()


def softmax_and_log(z):
    """p and log p of logits z [..., V], which log p overwrites, and log Σ exp as two terms: the largest, the rest.

    No exponential is below e^−70, which no float32 sum notices: a CPU takes a hundred times as long for subnormals.
    """
    largest = z.amax(-1, keepdim=True)
    p = torch.clamp_min(z.sub_(largest), -70).exp_()
    total = p.sum(-1, keepdim=True)
    log_total = total.log()
    return p.mul_(total.reciprocal()), z.sub_(log_total), (largest[..., 0], log_total[..., 0])


def distance(arch, y, changed):
    """‖y − ȳ‖₂ [1, m, R] of unembedded residuals: y [m, 1, V] and, in pieces, [m, R, V]."""
    y = to_logits(arch, y).softmax(-1)
    return torch.cat([to_logits(arch, z).softmax(-1).sub_(y).norm(dim=-1) for z in changed], dim=1)[None]


def damage(arch, y, changed, next_tokens):
    """‖y − ȳ‖₂, KL(y ‖ ȳ) in nats, log y − log ȳ of the next token (0 without one) and whether the top token changes.

    y [m, 1, V] and changed, pieces of [m, R, V]: unembedded residuals, which may be overwritten; next_tokens [m].
    Returns [4, m, R]. The loss may rise by a millionth of itself, so it is a sum of differences, each of two numbers
    that are nearly equal.
    """
    clean, columns = to_logits(arch, y), []
    top, following = clean.argmax(-1, keepdim=True), next_tokens.clamp_min(0)[:, None, None]
    y, log_y, (largest_of_y, rest_of_y) = softmax_and_log(clean.clone())
    for z in changed:
        z = to_logits(arch, z)
        of_top, of_next = (z.gather(2, which.expand(-1, z.shape[1], 1))[..., 0] for which in (top, following))
        rise = clean.gather(2, following)[..., 0] - of_next
        p, log_p, (largest, rest) = softmax_and_log(z)
        kl = torch.sub(log_y, log_p, out=log_p).mul_(y).sum(-1)
        rise = (rise - (largest_of_y - largest) - (rest_of_y - rest)) * (next_tokens >= 0)[:, None]
        columns.append(torch.stack([p.sub_(y).norm(dim=-1), kl, rise, (of_top < largest).float()]))
    return torch.cat(columns, dim=2)
