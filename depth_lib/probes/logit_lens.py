"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2).

The obvious loop, with y the model's own output, softmax(lens(h_L)) (tests/oracles/curves.py):

    for each prompt, token and l in 0..L−1:
        p_l = softmax(lens(h_l))
        res_kl_divs = KL(p_l ‖ y) = Σ p_l (log p_l − log y)      res_overlaps = |top5(p_l) ∩ top5(y)| / 5
        rank = 1 + how many p_l exceed that of y's top token     res_entropy = H(p_l) = −Σ p_l log p_l
        res_jsd = H((p_l + y) / 2) − (H(p_l) + H(y)) / 2

Here all l of a few tokens are unembedded in one product, as large as is fast. Each token's logits are then compared
with its y a few rows at a time, while these are in the cache: nothing of the size [L, T, V] is ever held.
"""

import math

import torch
from nnsight import TransformersModel

from ..data.tokens import greedy_settings, tokenize
from ..lenses.files import Lens, translators
from ..models.check import verified_arch
from ..residual.budget import logits_in_cache, rows_of_logits
from ..residual.continuation import continuation
from ..residual.distributions import probability
from ..residual.residual_stream import inputs
from ..residual.stream import read_residuals
from ..residual.unembedding import lens as unembed
from ..residual.unembedding import translated
from ..results.means import token_means
from ..results.result import Result
from ..session import run

KEYS = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr", "res_in_top3", "res_in_top5", "res_in_top10")
KEYS += ("res_entropy", "res_jsd", "res_settled")


def logit_lens(
    llm: TransformersModel,
    prompts: list[str],
    remote: bool | str = False,
    generate: int = 0,
    all_measures: bool = True,
    lens: Lens | str | None = None,
) -> Result:
    """The model's prediction if it stopped before block l, compared with its output.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.logit_lens(llm, prompts).depths().ed.to_dict()
    {'kl': 1, 'overlap': 1}

    With p_l = softmax(lens(h_l)) and y the final distribution: KL(p_l ‖ y) in nats, |top5(p_l) ∩ top5(y)| / 5,
    agreement of the top token, and the mean reciprocal rank of y's top token under p_l; means over all tokens. The
    rank of a token is 1 + how many exceed it: tokens that tie, as they often do in half precision, have one rank.

    prompts: list of strings; generate: the model continues each of them, in the same session, by up to so many tokens,
    the likeliest one at each step, whatever else the checkpoint's generation config asks for, until one that ends
    texts; the means are over the tokens that predict these instead (`generated` has their texts); all_measures: False
    computes the first two keys alone, in less time; lens: of `load_lens` or `fit_lens`, or its file, with which p_l =
    softmax(lens(A_l h_l + b_l)); without one A = 1, b = 0. Returns float32 `res_kl_divs`, `res_overlaps`, `res_top1`,
    `res_mrr` [L] (entry l reads the input of block l); the share of tokens whose final top token is among the lens'
    first k, `res_in_top3`, `res_in_top5`, `res_in_top10`; `res_entropy`, of p_l in nats; `res_jsd`, the Jensen–Shannon
    divergence of p_l and y in bits; `res_settled`, the share of tokens for which it has been at most 1/2 at some block
    up to l; `<key>_sums` [P, L] and `n_tokens` [P]. Of the prompts' own tokens `loss` [P], the model's in nats per
    token, and `shuffled_loss` [P], what it would be with the tokens shuffled: where they are the same, the
    model knows nothing of the text. `deep_thinking_ratio` reads `res_settled`. Raises ValueError for a prompt without
    tokens, or with more than the model has positions, and LensError for a lens as `answer_lens` does. Source: Csordás
    et al. 2025, Figure 4; Hu et al. 2025 (arXiv 2512.14064); entropy: Ali et al. 2025 (2502.16570); settling: arXiv
    2602.13517.
    Cost: a forward pass per prompt and the unembedding of L + 1 layers; of a prompt h is held, [L + 1, T, d], and the
    logits of a few tokens. `generate` adds a pass over one token for each, a lens 2 L d² operations for each token.
    """
    if type(generate) is not int or generate < 0:
        raise ValueError(f"generate is {generate!r}; give the number of tokens, or 0 for the prompts' own.")
    arch, ids = verified_arch(llm), tokenize(llm, prompts, generate)
    settings, translation = greedy_settings(llm) if generate else None, translators(llm, lens, remote)
    how = {"remote": remote, "over": "prompts"}
    result = run(measure_logit_lens, llm, arch, ids, generate, all_measures, settings, translation, **how)
    generated = result.pop("generated")
    texts = {"generated": llm.tokenizer.batch_decode(generated)} if generate else {}
    return Result("logit_lens", token_means(result) | texts)


def measure_logit_lens(llm, arch, prompts, generate=0, all_measures=True, settings=None, lens=None):
    """Sums over the tokens of each prompt of the distances between the lens at h_l and the model's own prediction.

    With p_l = softmax(lens(h_l)), l = 0..L−1, and y the final distribution: res_kl_divs = KL(p_l ‖ y),
    res_overlaps = |top5(p_l) ∩ top5(y)| / 5, res_mrr = 1 / rank of top1(y) under p_l (1 + how many p_l exceed its;
    ranks up to 5 are the top five), res_top1, res_in_top3, 5, 10 = [that rank ≤ 1, 3, 5, 10], res_entropy =
    −Σ p_l log p_l in nats, res_jsd the Jensen–Shannon divergence of p_l and y in bits, res_settled =
    [min_{j ≤ l} res_jsd_j ≤ 1/2].

    prompts: token ids, one list per prompt. generate: the model continues each prompt by up to so many of its likeliest
    tokens (see `continuation`), and the sums are over the tokens that predict these. all_measures: whether to compute
    more than the first two keys. settings: of `generate`. lens: `A` [L, d, d] and `b` [L, d], by
    which h_l is translated, or None. Returns `<key>_sums` [P, L], `n_tokens` [P]
    and `generated`, their ids, a list per prompt. Of the prompts' own tokens also what the model knows of them, in nats
    per token [P]: `loss`, the mean −log y of the next one, and `shuffled_loss`, the same if the prompt's tokens came in
    any other order.
    """
    generated = [continuation(llm, arch, ids, generate, settings) if generate else [] for ids in prompts]
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
            h = translated(translation, read_residuals(llm, arch))
            at_a_time = max(1, rows_of_logits(llm, h[-1]) // len(h))
            for start in range(first, len(ids), at_a_time):
                some = [residual[start : start + at_a_time].to(h[-1].device) for residual in h]
                logits = unembed(llm, arch, torch.stack(some, dim=1).flatten(0, 1)).unflatten(0, (-1, len(h)))
                for few in logits.split(max(1, logits_in_cache(logits) // logits[0].numel())):
                    sums += distances(few, all_measures).sum(1)
                own = logits[: len(following) - start, -1].log_softmax(-1).clamp_min(-1e3).cpu()
                log_y[0] += own.gather(1, following[start : start + len(own), None]).sum()
                log_y[1] += (own[:, : len(share)] @ share.float()).sum()
            sums = sums.cpu()
    return sums, -log_y / max(len(following), 1)


def distances(logits, all_measures=True):
    """What KEYS names of n tokens, all or the first two [len(KEYS) or 2, n, L], from the logits of their
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
    found = [kl, overlap, rank <= 1, 1 / rank.float(), rank <= 3, rank <= 5, rank <= 10, entropy, jsd, settled]
    return torch.stack([distance.float() for distance in found])
