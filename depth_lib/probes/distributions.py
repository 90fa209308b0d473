"""How far an intervention moves the model's distributions over the vocabulary."""

import torch

from .residual_stream import finished, rows_of_logits, unembedded


def output_change(llm, arch, runs, next_tokens=None):
    """How far the outputs ȳ of changed runs are from y of the clean one. For use inside a trace.

    runs: final residuals [1 + R, M, d] of M places, those of the clean run first. next_tokens: the token that follows
    each place (−1: none), or None.

    Returns ‖y − ȳ‖₂ [1, R, M], or with next_tokens the four numbers of `damage` [4, R, M].
    """
    n_places = runs.shape[1]
    tokens = next_tokens or [None] * n_places
    at_once = max(1, rows_of_logits(llm, runs) // len(runs))
    changes = []
    for start in range(0, n_places, at_once):
        h = runs[:, start : start + at_once].transpose(0, 1)
        logits = unembedded(llm, arch, h.flatten(0, 1)).unflatten(0, (-1, len(runs)))
        of_places = zip(logits, tokens[start : start + at_once], strict=True)
        changes.append(torch.stack([_change(arch, z, token) for z, token in of_places], dim=-1).cpu())
    return torch.cat(changes, dim=-1)


def _change(arch, logits, next_token):
    """`distance` or `damage` of unembedded residuals [1 + R, V], those of the clean run first.

    On a CPU a few rows are compared at a time: its cache holds few.
    """
    rows = max(1, 2**18 // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    changed = logits[1:].split(rows)
    if next_token is None:
        return distance(arch, logits[:1], changed)
    return damage(arch, logits[:1], changed, next_token)


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
    """‖y − ȳ‖₂ [1, R] of unembedded residuals: y [1, V] and, in pieces, [R, V]."""
    y = finished(arch, y).softmax(-1)
    return torch.cat([finished(arch, z).softmax(-1).sub_(y).norm(dim=-1) for z in changed])[None]


def damage(arch, y, changed, next_token):
    """‖y − ȳ‖₂, KL(y ‖ ȳ) in nats, log y − log ȳ of the next token (0 without one) and whether the top token changes.

    y [1, V] and changed, pieces of [R, V]: unembedded residuals, which may be overwritten. Returns [4, R]. The loss may
    rise by a millionth of itself, so it is a sum of differences, each of two numbers that are nearly equal.
    """
    clean = finished(arch, y)
    top, columns = clean.argmax(), []
    y, log_y, (largest_of_y, rest_of_y) = softmax_and_log(clean.clone())
    for z in changed:
        z = finished(arch, z)
        of_next, of_top = clean[:, next_token] - z[:, next_token], z[:, top].clone()
        p, log_p, (largest, rest) = softmax_and_log(z)
        kl = torch.sub(log_y, log_p, out=log_p).mul_(y).sum(-1)
        rise = of_next - (largest_of_y - largest) - (rest_of_y - rest)
        rise = rise if next_token >= 0 else torch.zeros_like(rise)
        columns.append(torch.stack([p.sub_(y).norm(dim=-1), kl, rise, (of_top < largest).float()]))
    return torch.cat(columns, dim=1)
