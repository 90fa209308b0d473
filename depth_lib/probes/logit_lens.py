"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2).

The obvious loop, with y the model's own output (tests/oracles/curves.py):

    for each prompt, token and l in 0..L−1:
        p_l = softmax(lens(h_l))
        res_kl_divs = KL(p_l ‖ y)      res_overlaps = |top5(p_l) ∩ top5(y)| / 5      …

Here a few hundred tokens are unembedded at once, and all distances are computed of a few rows of logits at a time,
while these are in the cache: nothing of the size [L, T, V] is ever held.
"""

import torch

from .distributions import pieces, softmax_and_log
from .residual_stream import exact, finished, inputs, lens, residuals, rows_of_logits, unembedded

KEYS = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr", "res_in_top3", "res_in_top5", "res_in_top10")
KEYS += ("res_entropy", "res_jsd", "res_settled")


def logit_lens(llm, arch, prompts):
    """Sums over the tokens of each prompt of the distances between the lens at h_l and the model's own prediction.

    With p_l = softmax(lens(h_l)), l = 0..L−1, and y the final distribution: res_kl_divs = KL(p_l ‖ y),
    res_overlaps = |top5(p_l) ∩ top5(y)| / 5, res_top1 = [top1(p_l) = top1(y)], res_mrr = 1 / rank of top1(y) under p_l,
    res_in_top3, 5, 10 = [that rank ≤ 3, 5, 10], res_entropy = −Σ p_l log p_l in nats, res_jsd the Jensen–Shannon
    divergence of p_l and y in bits, res_settled = [min_{j ≤ l} res_jsd_j ≤ 1/2].

    prompts: token ids, one list per prompt. Returns `<key>_sums` [P, L] and `n_tokens` [P].
    """
    sums = torch.stack([_of_prompt(llm, arch, ids) for ids in prompts])
    result = {f"{key}_sums": sums[:, k] for k, key in enumerate(KEYS)}
    return result | {"n_tokens": torch.tensor([len(ids) for ids in prompts], dtype=torch.float32)}


def _of_prompt(llm, arch, ids):
    """The sums over a prompt's tokens [len(KEYS), L]."""
    *h, final = residuals(llm, arch, ids)
    sums = torch.zeros(len(KEYS), len(h), dtype=torch.float32)
    size = min(512, rows_of_logits(llm, final.device))
    with torch.no_grad():
        with llm.trace(inputs([0]), use_cache=False) as tracer:
            for start in range(0, len(ids), size):
                tokens = slice(start, start + size)
                own = _own_prediction(lens(llm, arch, final[tokens]))
                settled = torch.zeros(len(own[0]), dtype=torch.bool, device=own[0].device)
                for l, residual in enumerate(h):
                    logits = unembedded(llm, arch, residual[tokens].to(final.device))
                    found = torch.cat([_distances(finished(arch, z), *y) for z, *y in pieces(logits, *own)], dim=1)
                    settled |= found[-1] <= 0.5
                    sums[:, l] += torch.cat([found.sum(1), settled.sum()[None]]).cpu()
            tracer.stop()
    return sums


def _own_prediction(logits):
    """What the lens is compared with, from the model's logits [N, V]: y, log y, the entropy [N] and the top five."""
    top, log_y = _top5(logits), _bounded(logits).log_softmax(-1)
    y = log_y.clamp_min(-80).exp_()  # no zero and no subnormal number: see softmax_and_log
    return y, log_y, -_dot(y, log_y), top


def _distances(logits, y, log_y, entropy_of_y, top_y):
    """The distances of logits [N, V], overwritten, to the final distribution, all but the last of KEYS: [9, N]."""
    top_p, p = _top5(logits), torch.empty_like(logits)
    rank = 1 + torch.gt(logits, logits.gather(1, top_y[:, :1]), out=p).sum(-1)  # sums of bools are slow
    p, log_p, _ = softmax_and_log(_bounded(logits), out=p)
    entropy = -_dot(p, log_p)
    kl = _dot(log_p.sub_(log_y), p)
    mean = p.lerp_(y, 0.5)
    entropy_of_mean = -_dot(torch.log(mean, out=log_p), mean)
    overlap = (top_p[:, :, None] == top_y[:, None, :]).sum((1, 2), dtype=torch.float32) / 5
    jsd = (entropy_of_mean - (entropy + entropy_of_y) / 2) / torch.log(torch.tensor(2.0, dtype=torch.float32))
    within = [(rank <= k).float() for k in (3, 5, 10)]
    return torch.stack([kl, overlap, (top_p[:, 0] == top_y[:, 0]).float(), 1 / rank, *within, entropy, jsd])


def _bounded(logits):
    """Logits [N, V] of at least −1e15, in place. Biases of −1e30 take tokens out of a vocabulary, and the logarithm of
    such a probability would count even times e^−70, the least one (see `softmax_and_log`). They are those of all rows.
    """
    return logits.clamp_min_(-1e15) if logits[0].amin() < -1e15 else logits


def _dot(x, y):
    with exact(x):
        return torch.linalg.vecdot(x, y)


def _top5(logits, group=64):
    """Ids of the five largest logits [N, 5], largest first; they lie in the five groups with the largest maxima."""
    n_grouped = logits.shape[1] // group * group
    if n_grouped < 10 * group:
        return logits.topk(min(5, logits.shape[1])).indices
    best = logits[:, :n_grouped].unflatten(1, (-1, group)).amax(-1).topk(5).indices
    ids = (best[:, :, None] * group + torch.arange(group, device=logits.device)).flatten(1)
    rest = torch.arange(n_grouped, logits.shape[1], device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids, rest], dim=1)
    return ids.gather(1, logits.gather(1, ids).topk(5).indices)
