"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2)."""

import torch

from .residual_stream import clean_run, exact, in_cache, inputs, lens, rows_of_logits, softmax_and_log


def logit_lens(llm, arch, prompts, chunk=None):
    """Sums over the tokens of each prompt of the distance between the lens at h_l and the model's own prediction.

    With p_l = softmax(lens(h_l)), l = 0..L−1, and y the final distribution: res_kl_divs = KL(p_l ‖ y),
    res_overlaps = |top5(p_l) ∩ top5(y)| / 5, res_top1 = [top1(p_l) = top1(y)], res_mrr = 1 / rank of top1(y) under p_l,
    res_in_top3, 5, 10 = [that rank ≤ 3, 5, 10], res_entropy = −Σ p_l log p_l in nats, res_jsd the Jensen–Shannon
    divergence of p_l and y in bits, res_settled = [min_{j ≤ l} res_jsd_j ≤ 1/2].

    prompts: token ids, one list a prompt; chunk: tokens unembedded at a time, or None. Returns `<key>_sums` [P, L] and
    `n_tokens` [P].
    """
    keys = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr", "res_in_top3", "res_in_top5", "res_in_top10")
    keys += ("res_entropy", "res_jsd", "res_settled")
    sums = []
    for ids in prompts:
        residuals = [h[0] for h in clean_run(llm, arch, ids, with_c=False)["h"]]
        final = residuals.pop()
        rows = chunk or min(256, rows_of_logits(llm, final.device))
        curves = torch.zeros(len(keys), len(residuals), dtype=torch.float32)
        with torch.no_grad():
            with llm.trace(inputs([0]), use_cache=False) as tracer:
                for start in range(0, len(ids), rows):
                    piece = slice(start, start + rows)
                    own = _own_prediction(_bounded(lens(llm, arch, final[piece])))
                    settled = torch.zeros_like(own["top"][:, 0], dtype=torch.bool)
                    for l, h in enumerate(residuals):
                        found = _distances(_bounded(lens(llm, arch, h[piece].to(final.device))), own)
                        settled |= found[-1] <= 0.5
                        curves[:, l] += torch.cat([found.sum(1), settled.sum()[None]]).cpu()
                tracer.stop()
        sums.append(curves)
    result = {f"{key}_sums": torch.stack([curves[k] for curves in sums]) for k, key in enumerate(keys)}
    result["n_tokens"] = torch.tensor([len(ids) for ids in prompts], dtype=torch.float32)
    return result


def _bounded(logits):
    """Logits [N, V] of at least −1e15, in place. Biases of −1e30 take tokens out of a vocabulary, and the logarithm of
    such a probability would count even times e^−70, the least one (see `softmax_and_log`). They are those of all rows.
    """
    return logits.clamp_min_(-1e15) if logits[0].amin() < -1e15 else logits


def _own_prediction(logits):
    """What the lens is compared with: y, log y, its entropy [N] and its top five, from the model's logits [N, V]."""
    top, log_y = _top5(logits), logits.log_softmax(-1)
    y = log_y.clamp_min(-80).exp_()  # no zero and no subnormal number: see softmax_and_log
    return {"log_y": log_y, "y": y, "entropy": -_dot(y, log_y), "top": top}


def _distances(logits, own):
    """The distances of logits [N, V], overwritten, to the final distribution, all but the last of `keys`: [9, N]."""
    top_p, top_y = _top5(logits), own["top"]
    pieces = in_cache(logits, logits.gather(1, top_y[:, :1]), own["log_y"], own["y"])
    few = [_of_few(*piece) for piece in zip(*pieces, strict=True)]
    rank, entropy, kl, entropy_of_mean = torch.cat(few, dim=1)
    overlap = (top_p[:, :, None] == top_y[:, None, :]).sum((1, 2), dtype=torch.float32) / 5
    jsd = (entropy_of_mean - (entropy + own["entropy"]) / 2) / torch.log(torch.tensor(2.0, dtype=torch.float32))
    within = [(rank <= k).float() for k in (3, 5, 10)]
    return torch.stack([kl, overlap, (top_p[:, 0] == top_y[:, 0]).float(), 1 / rank, *within, entropy, jsd])


def _of_few(logits, top, log_y, y):
    """Rank of y's top token, whose logit is `top` [n, 1], entropy of p, KL(p ‖ y), entropy of (p + y) / 2: [4, n]."""
    p = torch.empty_like(logits)
    rank = 1 + torch.gt(logits, top, out=p).sum(-1)
    p, log_p, _ = softmax_and_log(logits, out=p)
    entropy = -_dot(p, log_p)
    kl = log_p.sub_(log_y).mul_(p).sum(-1)
    mean = p.lerp_(y, 0.5)
    return torch.stack([rank, entropy, kl, -torch.log(mean, out=logits).mul_(mean).sum(-1)])


def _dot(x, y):
    with exact(x):
        return torch.linalg.vecdot(x, y)


def _top5(logits, group=64):
    """Ids of the five largest logits [N, 5], largest first; they lie in the five groups with the largest maxima."""
    n_grouped = logits.shape[1] // group * group
    if n_grouped < 10 * group:
        return logits.topk(min(5, logits.shape[1])).indices
    groups = logits[:, :n_grouped].unflatten(1, (-1, group))
    best = groups.amax(-1).topk(5).indices
    ids = (best[:, :, None] * group + torch.arange(group, device=logits.device)).flatten(1)
    rest = torch.arange(n_grouped, logits.shape[1], device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids, rest], dim=1)
    return ids.gather(1, logits.gather(1, ids).topk(5).indices)
