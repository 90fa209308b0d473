"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2).

The obvious loop, with y the model's own output (tests/oracles/curves.py):

    for each prompt, token and l in 0..L−1:
        p_l = softmax(lens(h_l))
        res_kl_divs = KL(p_l ‖ y)      res_overlaps = |top5(p_l) ∩ top5(y)| / 5      …

Here all l of a few tokens are unembedded in one product, as large as is fast. Each token's logits are then compared
with its y a few rows at a time, while these are in the cache: nothing of the size [L, T, V] is ever held.
"""

import torch

from .distributions import softmax_and_log
from .residual_stream import finished, inputs, residuals, rows_of_logits, unembedded

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
    h = residuals(llm, arch, ids)
    sums = torch.zeros(len(KEYS), len(h) - 1, dtype=torch.float32)
    n_tokens = max(1, rows_of_logits(llm, h[-1].device) // len(h))
    with torch.no_grad():
        with llm.trace(inputs([0]), use_cache=False) as tracer:
            for start in range(0, len(ids), n_tokens):
                some = [residual[start : start + n_tokens].to(h[-1].device) for residual in h]
                logits = unembedded(llm, arch, torch.stack(some, dim=1).flatten(0, 1)).unflatten(0, (-1, len(h)))
                # a CPU passes over the logits many times: a cache holds 2^17 of them twice
                at_once = 2**17 if logits.device.type == "cpu" else logits.numel()
                parts = logits.split(max(1, at_once // logits[0].numel()))
                parts = [_of_tokens(finished(arch, part), at_once) for part in parts]
                sums += torch.cat(parts, dim=1).sum(1).cpu()
            tracer.stop()
    return sums


def _of_tokens(logits, at_once):
    """All of KEYS [len(KEYS), n, L] from the logits [n, L + 1, V] of h_0..h_L at n tokens, which are overwritten, about
    `at_once` of them at a time."""
    if logits[0, -1].amin() < -1e15:  # a bias took tokens out of the vocabulary: 0 times its logarithm must be 0
        logits = logits.clamp_min_(-1e15)
    logits, own = logits[:, :-1], logits[:, -1:]
    top, top_own = _top5(logits), _top5(own)
    largest, of_top = logits.gather(2, top[..., :1]), logits.gather(2, top_own[..., :1].expand_as(top[..., :1]))
    log_y = own.log_softmax(-1)
    y = log_y.clamp_min(-80).exp_()  # no zero and no subnormal number: see softmax_and_log
    rows = max(1, at_once // (len(logits) * logits.shape[-1]))
    pieces = zip(*(x.split(rows, dim=1) for x in (logits, largest, of_top)), strict=True)
    n_above, kl, *negative_entropies = torch.cat([_compared(*piece, y, log_y) for piece in pieces], dim=2)
    rank, entropy, entropy_of_mean = n_above + 1, *(-x for x in negative_entropies)
    jsd = (entropy_of_mean - (entropy - (y * log_y).sum(-1)) / 2) / torch.log(torch.tensor(2.0, dtype=torch.float32))
    settled = jsd.cummin(1).values <= 0.5
    overlap = (top[..., :, None] == top_own[..., None, :]).sum((2, 3), dtype=torch.float32) / 5
    same_top = top[..., 0] == top_own[..., 0]
    distances = [kl, overlap, same_top, 1 / rank, rank <= 3, rank <= 5, rank <= 10, entropy, jsd, settled]
    return torch.stack([distance.float() for distance in distances])


def _compared(logits, largest, of_top, y, log_y):
    """Logits [n, r, V], which are overwritten, against the model's own y [n, 1, V].

    largest, of_top [n, r, 1]: the largest logit of each row, and that of the model's top token. Returns [4, n, r]: how
    many logits are above that of the top token, KL(p ‖ y), Σ p log p, and the same of (p + y) / 2, in nats.
    """
    p = torch.empty_like(logits)
    n_above = torch.gt(logits, of_top, out=p).sum(-1)  # sums of bools are slow
    p, log_p, _ = softmax_and_log(logits, largest, out=p)
    negative_entropy = (p * log_p).sum(-1)
    kl = log_p.sub_(log_y).mul_(p).sum(-1)
    mean = p.lerp_(y, 0.5)
    return torch.stack([n_above, kl, negative_entropy, torch.log(mean, out=log_p).mul_(mean).sum(-1)])


def _top5(logits, group=64):
    """Ids of the five largest logits [..., V], largest first; they lie in the five groups with the largest maxima."""
    n_grouped = logits.shape[-1] // group * group
    if n_grouped < 10 * group:
        return logits.topk(min(5, logits.shape[-1])).indices
    best = logits[..., :n_grouped].unflatten(-1, (-1, group)).amax(-1).topk(5).indices
    ids = (best[..., None] * group + torch.arange(group, device=logits.device)).flatten(-2)
    rest = torch.arange(n_grouped, logits.shape[-1], device=logits.device).expand(*logits.shape[:-1], -1)
    ids = torch.cat([ids, rest], dim=-1)
    return ids.gather(-1, logits.gather(-1, ids).topk(5).indices)
