"""How far an intervention moves the model's distributions over the vocabulary."""

import torch

from .budget import rows_of_logits
from .unembedding import lens


def output_change(llm, arch, finals, next_tokens=None):
    """How far the outputs ȳ of changed runs are from y of the clean one. For use inside a trace.

    finals: final residuals [1 + R, M, d] of M places, those of the clean run first. next_tokens: the token that follows
    each place (−1: none), or None.

    Returns ‖y − ȳ‖₂ [1, R, M], or with next_tokens the four numbers of `damage` [4, R, M].
    """
    changes, n_rows = [], max(1, rows_of_logits(llm, finals) // len(finals))
    following = torch.tensor(next_tokens or [-1] * finals.shape[1], device=finals.device)
    for h, tokens in zip(finals.split(n_rows, dim=1), following.split(n_rows), strict=True):
        log_y = lens(llm, arch, h.flatten(0, 1)).log_softmax(-1).clamp_min(-1e3).unflatten(0, h.shape[:2])
        numbers = damage(log_y, tokens.to(log_y.device))
        changes.append(numbers if next_tokens else numbers[:1])
    return torch.cat(changes, dim=2)


def damage(log_y, next_tokens):
    """Four measures of each changed output, [4, R, M], from log y [1 + R, M, V] with the clean run first.

    They are ‖y − ȳ‖₂, KL(y ‖ ȳ) in nats, log y − log ȳ of the next token (0 without one), and whether the top token
    changes.
    """
    p = probability(log_y)
    total = p.sum(-1, keepdim=True)  # off 1 by what log_softmax rounds: 1e-6 for a large vocabulary
    log_y, p = log_y - total.log(), p / total
    (clean, changed), (y, y_bar) = log_y.split([1, len(log_y) - 1]), p.split([1, len(p) - 1])
    top, following = clean.argmax(-1, keepdim=True), next_tokens.clamp_min(0)[None, :, None]
    of_top, of_next = (changed.gather(2, which.expand(len(changed), -1, 1))[..., 0] for which in (top, following))
    rise = (clean.gather(2, following)[..., 0] - of_next) * (next_tokens >= 0)
    kl = (y * (clean - changed)).sum(-1)
    return torch.stack([(y - y_bar).norm(dim=-1), kl, rise, (of_top < changed.amax(-1)).float()])


def probability(log_p):
    """exp(log p), but no subnormal number, for which a CPU takes a hundred times as long: no sum notices e^−80."""
    return log_p.clamp_min(-80).exp()
