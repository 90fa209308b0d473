"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2).

The obvious loop, with y the model's own output, softmax(lens(h_L)) (tests/oracles/curves.py):

    for each prompt, token and l in 0..L−1:
        p_l = softmax(lens(h_l))
        res_kl_divs = KL(p_l ‖ y)      res_overlaps = |top5(p_l) ∩ top5(y)| / 5      …

Here all l of a few tokens are unembedded in one product, as large as is fast. Each token's logits are then compared
with its y a few rows at a time, while these are in the cache: nothing of the size [L, T, V] is ever held.
"""

import torch

from ..residual.budget import logits_in_cache, rows_of_logits
from ..residual.residual_stream import inputs
from ..residual.stream import Stream
from ..residual.unembedding import lens, translated
from .continuation import continuation
from .lens_distances import distances

KEYS = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr", "res_in_top3", "res_in_top5", "res_in_top10")
KEYS += ("res_entropy", "res_jsd", "res_settled")


def logit_lens(llm, arch, prompts, generate=0, all_measures=True, stops=(), lens=None):
    """Sums over the tokens of each prompt of the distances between the lens at h_l and the model's own prediction.

    With p_l = softmax(lens(h_l)), l = 0..L−1, and y the final distribution: res_kl_divs = KL(p_l ‖ y),
    res_overlaps = |top5(p_l) ∩ top5(y)| / 5, res_mrr = 1 / rank of top1(y) under p_l (1 + how many p_l exceed its;
    ranks up to 5 are the top five), res_top1, res_in_top3, 5, 10 = [that rank ≤ 1, 3, 5, 10], res_entropy =
    −Σ p_l log p_l in nats, res_jsd the Jensen–Shannon divergence of p_l and y in bits, res_settled =
    [min_{j ≤ l} res_jsd_j ≤ 1/2].

    prompts: token ids, one list per prompt. generate: the model continues each prompt by up to so many of its likeliest
    tokens (see `continuation`), and the sums are over the tokens that predict these. all_measures: whether to compute
    more than the first two keys. stops: tokens after which none is generated. lens: `A` [L, d, d] and `b` [L, d], by
    which h_l is translated, or None. Returns `<key>_sums` [P, L], `n_tokens` [P]
    and `generated`, their ids, a list per prompt. Of the prompts' own tokens also what the model knows of them, in nats
    per token [P]: `loss`, the mean −log y of the next one, and `shuffled_loss`, the same if the prompt's tokens came in
    any other order.
    """
    generated = [continuation(llm, arch, ids, generate, stops) if generate else [] for ids in prompts]
    # the last token that is generated predicts none of them
    measured = [(ids + new[:-1], len(ids) - 1 if new else 0) for ids, new in zip(prompts, generated, strict=True)]
    of_prompts = [_of_prompt(llm, arch, *of_prompt, all_measures, lens) for of_prompt in measured]
    sums, losses = (torch.stack(values) for values in zip(*of_prompts, strict=True))
    result = {f"{key}_sums": values for key, values in zip(KEYS, sums.unbind(1), strict=False)}
    if not generate:
        result |= dict(zip(("loss", "shuffled_loss"), losses.unbind(1), strict=True))
    n_tokens = [len(ids) - first for ids, first in measured]
    return result | {"n_tokens": torch.tensor(n_tokens, dtype=torch.float32), "generated": generated}


def _of_prompt(llm, arch, ids, first, all_measures, translation):
    """The sums over a prompt's tokens from `first` on [len(KEYS) or 2, L], and both losses [2]."""
    following = torch.tensor(ids[1:], dtype=torch.long)
    share = torch.bincount(following, minlength=1) / max(len(following), 1)
    sums, log_y = 0, torch.zeros(2, dtype=torch.float32)
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h = translated(translation, Stream(llm, arch, ids, budget=1).h)
            at_a_time = max(1, rows_of_logits(llm, h[-1]) // len(h))
            for start in range(first, len(ids), at_a_time):
                some = [residual[start : start + at_a_time].to(h[-1].device) for residual in h]
                logits = lens(llm, arch, torch.stack(some, dim=1).flatten(0, 1)).unflatten(0, (-1, len(h)))
                for few in logits.split(max(1, logits_in_cache(logits) // logits[0].numel())):
                    sums += distances(few, all_measures).sum(1)
                own = logits[: len(following) - start, -1].log_softmax(-1).clamp_min(-1e3).cpu()
                log_y[0] += own.gather(1, following[start : start + len(own), None]).sum()
                log_y[1] += (own[:, : len(share)] @ share.float()).sum()
            sums = sums.cpu()
    return sums, -log_y / max(len(following), 1)
