"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2).

The obvious loop, with y the model's own output, softmax(lens(h_L)) (tests/oracles/curves.py):

    for each prompt, token and l in 0..L−1:
        p_l = softmax(lens(h_l))
        res_kl_divs = KL(p_l ‖ y)      res_overlaps = |top5(p_l) ∩ top5(y)| / 5      …

Here all l of a few tokens are unembedded in one product, as large as is fast. Each token's logits are then compared
with its y a few rows at a time, while these are in the cache: nothing of the size [L, T, V] is ever held.
"""

import torch

from .budget import logits_in_cache, rows_of_logits
from .continuation import continuation
from .residual_stream import finish, first_residual, inputs, read_stream
from .unembedding import to_logits, translated, unembedded

KEYS = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr", "res_in_top3", "res_in_top5", "res_in_top10")
KEYS += ("res_entropy", "res_jsd", "res_settled")


def logit_lens(llm, arch, prompts, generate=0, further=True, stops=(), lens=None):
    """Sums over the tokens of each prompt of the distances between the lens at h_l and the model's own prediction.

    With p_l = softmax(lens(h_l)), l = 0..L−1, and y the final distribution: res_kl_divs = KL(p_l ‖ y),
    res_overlaps = |top5(p_l) ∩ top5(y)| / 5, res_mrr = 1 / rank of top1(y) under p_l (1 + how many p_l exceed its;
    ranks up to 5 are the top five), res_top1, res_in_top3, 5, 10 = [that rank ≤ 1, 3, 5, 10], res_entropy =
    −Σ p_l log p_l in nats, res_jsd the Jensen–Shannon divergence of p_l and y in bits, res_settled =
    [min_{j ≤ l} res_jsd_j ≤ 1/2].

    prompts: token ids, one list per prompt. generate: the model continues each prompt by up to so many of its likeliest
    tokens (see `continuation`), and the sums are over the tokens that predict these. further: whether to compute more
    than the first two keys. stops: tokens after which none is generated. lens: `A`
    [L, d, d] and `b` [L, d], by which h_l is translated, or None. Returns `<key>_sums` [P, L], `n_tokens` [P]
    and `generated`, their ids, a list per prompt. Of the prompts' own tokens also what the model knows of them, in nats
    per token [P]: `loss`, the mean −log y of the next one, and `shuffled_loss`, the same if the prompt's tokens came in
    any other order.
    """
    generated = [continuation(llm, arch, ids, generate, stops) if generate else [] for ids in prompts]
    # the last token that is generated predicts none of them
    measured = [(ids + new[:-1], len(ids) - 1 if new else 0) for ids, new in zip(prompts, generated, strict=True)]
    of_prompts = [_of_prompt(llm, arch, *of_prompt, further, lens) for of_prompt in measured]
    sums, losses = (torch.stack(values) for values in zip(*of_prompts, strict=True))
    result = {f"{key}_sums": values for key, values in zip(KEYS, sums.unbind(1), strict=False)}
    if not generate:
        result |= dict(zip(("loss", "shuffled_loss"), losses.unbind(1), strict=True))
    n_tokens = [len(ids) - first for ids, first in measured]
    return result | {"n_tokens": torch.tensor(n_tokens, dtype=torch.float32), "generated": generated}


def _of_prompt(llm, arch, ids, first, further, lens):
    """The sums over a prompt's tokens from `first` on [len(KEYS) or 2, L], and both losses [2]."""
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h, _ = read_stream(llm, arch, first_residual(llm))
            h = translated(lens, h)
            sums, at_a_time = 0, max(1, rows_of_logits(llm, h[-1]) // len(h))
            log_y = torch.zeros(2, dtype=torch.float32, device=h[-1].device)
            for start in range(first, len(ids), at_a_time):
                some = [residual[start : start + at_a_time].to(h[-1].device) for residual in h]
                logits = unembedded(llm, arch, torch.stack(some, dim=1).flatten(0, 1)).unflatten(0, (-1, len(h)))
                if start < len(ids) - 1:
                    log_y = log_y + _log_y(arch, logits[:, -1].clone(), ids, start)
                at_once = logits_in_cache(logits)
                parts = logits.split(max(1, at_once // logits[0].numel()))
                sums += torch.cat([_of_tokens(arch, part, at_once, further) for part in parts], dim=1).sum(1)
            sums = sums.cpu()
            finish(llm, arch, arch.n_layers, h[-1][None])
    return sums, -log_y.cpu() / max(len(ids) - 1, 1)


def _log_y(arch, unembedded_last, ids, start):
    """log y of the next token, and its mean over all tokens but the first, each summed over tokens from `start` on [2].

    unembedded_last: the unembedded h_L of these tokens [n, V], which is overwritten. Nothing follows the last token.
    """
    logits = to_logits(arch, unembedded_last)[: len(ids) - 1 - start].clamp_min(-1e3)  # a bias may take a token out
    following = torch.tensor(ids[1:], device=logits.device)
    of_next = logits.gather(1, following[start : start + len(logits), None]).sum()
    total, share = logits.logsumexp(-1).sum(), torch.bincount(following, minlength=logits.shape[-1]) / len(following)
    return torch.stack([of_next - total, (logits.sum(0) * share).sum() - total])


def _of_tokens(arch, logits, at_once, further=True):
    """All of KEYS or the first two [len(KEYS) or 2, n, L] of n tokens, from their unembedded h_0..h_L [n, L + 1, V],
    which are overwritten.

    About `at_once` logits are compared at a time.
    """
    logits, final = logits[:, :-1], to_logits(arch, logits[:, -1:])
    _, five_of_final = _five_largest(final)
    log_e = (final - final.amax(-1, keepdim=True)).clamp_min_(-1e15)  # finite where a bias takes a token out
    y = log_e.clamp_min(-80).exp_()  # no zero, and no subnormal number, which is slow
    total_y, half_y = y.sum(-1), None
    if further:
        y /= total_y[..., None]
        half_y = y / 2
    rows = max(1, at_once // (len(logits) * logits.shape[-1]))
    pieces = [_compared(to_logits(arch, z), five_of_final, log_e, half_y) for z in logits.split(rows, dim=1)]
    n_shared, total, e_log_ratio, *others = torch.cat(pieces, dim=1).unbind(-1)
    kl = e_log_ratio / total - (total / total_y).log()
    if not further:
        return torch.stack([kl, n_shared / 5])
    n_above, e_log_e, mean_log_mean = others
    rank, entropy = n_above + 1, total.log() - e_log_e / total
    mean_entropy = (entropy + total_y.log() - (y * log_e).sum(-1)) / 2
    jsd = (-mean_log_mean - mean_entropy) / torch.log(torch.tensor(2.0, dtype=torch.float32))
    settled = jsd.cummin(1).values <= 0.5
    distances = [kl, n_shared / 5, rank <= 1, 1 / rank, rank <= 3, rank <= 5, rank <= 10, entropy, jsd, settled]
    return torch.stack([distance.float() for distance in distances])


def _compared(logits, five_of_final, log_e_of_final, half_y):
    """Logits [n, r, V], which are overwritten, against the model's own: their top five tokens [n, 1, 5], the logits
    themselves less the largest [n, 1, V] and, unless it is None, y / 2.

    Returns three numbers [n, r, 3]: how many of the five are in the top five, Σ e and Σ e (log e − log e of the model's
    own), where e = exp(logits − the largest) is p before it is normalised (0 where p is y, and exact near it). With
    y / 2 three more: how many logits exceed that of the model's top token, Σ e log e, and Σ m log m, where
    m = (p + y) / 2.
    """
    (largest, _), of_five = _five_largest(logits), _at(logits, five_of_final)
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


def _five_largest(logits, size=64):
    """The five largest logits of [..., V] and their ids; they lie in the five groups with the largest maxima."""
    n = logits.shape[-1] // size
    if n < 10:
        return logits.topk(min(5, logits.shape[-1]))
    best = logits[..., : n * size].unflatten(-1, (size, n)).amax(-2).topk(5).indices  # group k: k, k + n, k + 2n, …
    in_group = torch.arange(0, n * size, n, device=logits.device)
    rest = torch.arange(n * size, logits.shape[-1], device=logits.device).expand(*best.shape[:-1], -1)
    ids = torch.cat([(best[..., None] + in_group).flatten(-2), rest], dim=-1)
    values, indices = logits.gather(-1, ids).topk(5)
    return values, ids.gather(-1, indices)
