"""The arithmetic of the logit lens: plain formulas, computed where they lie, as a row of logits is large.

With e = exp(z − max z) of the lens' logits z, p = e / Σ e, and y that of the model's own:

    KL(p ‖ y) = Σ p (log p − log y)      H(p) = −Σ p log p      JSD(p, y) = H((p + y) / 2) − (H(p) + H(y)) / 2
    rank = 1 + how many z exceed that of y's top token
"""

import torch

from .unembedding import to_logits


def distances(arch, logits, at_once, all_measures=True):
    """What `logit_lens.KEYS` names of n tokens, all or the first two [len(KEYS) or 2, n, L], from their unembedded
    h_0..h_L [n, L + 1, V], which are overwritten.

    About `at_once` logits are compared at a time.
    """
    logits, final = logits[:, :-1], to_logits(arch, logits[:, -1:])
    five_of_final = final.topk(min(5, final.shape[-1])).indices
    log_e = (final - final.amax(-1, keepdim=True)).clamp_min_(-1e15)  # finite where a bias takes a token out
    y = log_e.clamp_min(-80).exp_()  # no zero, and no subnormal number, which is slow
    total_y, half_y = y.sum(-1), None
    if all_measures:
        y /= total_y[..., None]
        half_y = y / 2
    rows = max(1, at_once // (len(logits) * logits.shape[-1]))
    pieces = [_compared(to_logits(arch, z), five_of_final, log_e, half_y) for z in logits.split(rows, dim=1)]
    n_shared, total, e_log_ratio, *others = torch.cat(pieces, dim=1).unbind(-1)
    kl = e_log_ratio / total - (total / total_y).log()
    if not all_measures:
        return torch.stack([kl, n_shared / 5])
    n_above, e_log_e, mean_log_mean = others
    rank, entropy = n_above + 1, total.log() - e_log_e / total
    mean_entropy = (entropy + total_y.log() - (y * log_e).sum(-1)) / 2
    jsd = (-mean_log_mean - mean_entropy) / torch.log(torch.tensor(2.0, dtype=torch.float32))
    settled = jsd.cummin(1).values <= 0.5
    found = [kl, n_shared / 5, rank <= 1, 1 / rank, rank <= 3, rank <= 5, rank <= 10, entropy, jsd, settled]
    return torch.stack([distance.float() for distance in found])


def _compared(logits, five_of_final, log_e_of_final, half_y):
    """Logits [n, r, V], which are overwritten, against the model's own: their top five tokens [n, 1, 5], the logits
    themselves less the largest [n, 1, V] and, unless it is None, y / 2.

    Returns three numbers [n, r, 3]: how many of the five are in the top five, Σ e and Σ e (log e − log e of the model's
    own), where e = exp(logits − the largest) is p before it is normalised (0 where p is y, and exact near it). With
    y / 2 three more: how many logits exceed that of the model's top token, Σ e log e, and Σ m log m, where
    m = (p + y) / 2.
    """
    largest, of_five = logits.topk(five_of_final.shape[-1]).values, _at(logits, five_of_final)
    n_shared, e = of_five.ge(largest[..., -1:]).sum(-1), torch.empty_like(logits)
    if half_y is not None:
        n_above = torch.gt(logits, of_five[..., :1], out=e).sum(-1)  # sums of bools are slow
    log_e = logits.sub_(largest[..., :1]).clamp_min_(-70)  # no subnormal number: no sum notices e^−70
    total = torch.exp(log_e, out=e).sum(-1)
    if half_y is None:
        return torch.stack([n_shared, total, log_e.sub_(log_e_of_final).mul_(e).sum(-1)], dim=-1)
    e_log_e = log_e.mul_(e).sum(-1)
    e_log_ratio = log_e.addcmul_(e, log_e_of_final, value=-1).sum(-1)
    mean = torch.addcmul(half_y, e, 0.5 / total[..., None], out=e)
    mean_log_mean = torch.log(mean, out=log_e).mul_(mean).sum(-1)
    return torch.stack([n_shared, total, e_log_ratio, n_above, e_log_e, mean_log_mean], dim=-1)


def _at(logits, ids):
    """The logits [n, r, k] of these tokens [n, 1, k]."""
    return logits.gather(2, ids.expand(-1, logits.shape[1], -1))
