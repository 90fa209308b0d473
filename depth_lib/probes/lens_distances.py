"""The arithmetic of the logit lens, of the lens' p at each h_l and the model's own y:

KL(p ‖ y) = Σ p (log p − log y)      H(p) = −Σ p log p      JSD(p, y) = H((p + y) / 2) − (H(p) + H(y)) / 2
rank = 1 + how many p exceed that of y's top token
"""

import math

import torch

from ..residual.distributions import probability


def distances(logits, all_measures=True):
    """What `logit_lens.KEYS` names of n tokens, all or the first two [len(KEYS) or 2, n, L], from the logits of their
    h_0..h_L [n, L + 1, V]."""
    log_p, log_y = logits.log_softmax(-1).clamp_min(-1e3).tensor_split([-1], dim=1)  # a bias may take a token out
    p, y = probability(log_p), probability(log_y)
    five = log_y.topk(min(5, log_y.shape[-1])).indices.expand(-1, log_p.shape[1], -1)
    of_five = log_p.gather(2, five)
    kl = (p * (log_p - log_y)).sum(-1)
    overlap = (of_five >= log_p.topk(five.shape[-1]).values[..., -1:]).float().mean(-1)
    if not all_measures:
        return torch.stack([kl, overlap])
    rank = 1 + (log_p > of_five[..., :1]).sum(-1)
    entropy, entropy_y, mean = -(p * log_p).sum(-1), -(y * log_y).sum(-1), (p + y) / 2
    jsd = (-(mean * mean.log()).sum(-1) - (entropy + entropy_y) / 2) / math.log(2)
    settled = jsd.cummin(1).values <= 0.5
    found = [kl, overlap, rank <= 1, 1 / rank, rank <= 3, rank <= 5, rank <= 10, entropy, jsd, settled]
    return torch.stack([distance.float() for distance in found])
