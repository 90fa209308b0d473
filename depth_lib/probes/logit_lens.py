"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2).

The obvious loop, with y the model's own output, softmax(unembed(norm(h_L))) (tests/oracles/curves.py):

    for each prompt, token and l in 0..L−1:
        p_l = softmax(unembed(norm(A_l h_l + b_l))), with A_l = 1 and b_l = 0 without a lens
        res_kl_divs = KL(p_l ‖ y) = Σ p_l (log p_l − log y)      res_overlaps = |top5(p_l) ∩ top5(y)| / 5
        rank = 1 + how many p_l exceed that of y's top token     res_entropy = H(p_l) = −Σ p_l log p_l
        res_jsd = (H((p_l + y) / 2) − (H(p_l) + H(y)) / 2) / ln 2

Here all l of a few tokens are unembedded in one product, as large as is fast. Each token's logits are then compared
with its y a few rows at a time, while these are in the cache. Nothing of the size [L, T, V] is ever held.
"""

import math
from collections.abc import Sequence

import torch
from nnsight import TransformersModel

from ..data.tokens import greedy_settings, measured_tokens, tokenize, without_template
from ..lenses.files import Lens, translators
from ..models.check import verified_arch
from ..params import warn
from ..residual.budget import logits_in_cache, rows_of_logits
from ..residual.continuation import continuation
from ..residual.distributions import distribution
from ..residual.residual_stream import inputs
from ..residual.stream import read_residuals
from ..residual.unembedding import lens as unembed
from ..residual.unembedding import translated
from ..results.means import one_token_loss_to_nan, token_means
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run

KEYS = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr", "res_in_top3", "res_in_top5", "res_in_top10")
KEYS += ("res_entropy", "res_jsd", "res_settled")


@with_origin
def logit_lens(
    llm: TransformersModel,
    prompts: list[str],
    remote: bool | str = False,
    generate: int = 0,
    all_measures: bool = True,
    lens: Lens | str | None = None,
    answers: Sequence | None = None,
    at: str = "all",
    per_token: bool = False,
) -> Result:
    """The model's prediction if it stopped before block l, compared with its output.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.logit_lens(llm, prompts).depths().ed.to_dict()  # the effective depth by two rules
    {'kl': 1, 'overlap': 1}
    >>> dl.logit_lens(llm, ["5 + 7 = "], answers=["12"])["settling"][0].shape  # where each token of "12" settles
    torch.Size([2])

    p_l = softmax(unembed(norm(h_l))), y is the model's output, and means are over the measured tokens of all prompts.

    - prompts: list of strings
    - remote: True for NDIF, or the address of a server
    - generate: the model continues each prompt greedily by up to this many tokens, and the positions that predict
      them are measured. The checkpoint's generation config is ignored
    - all_measures: False computes only the first two keys, which is faster
    - lens: from `load_lens` or `fit_lens`, or its file: p_l = softmax(unembed(norm(A_l h_l + b_l)))
    - answers: a stored response to each prompt, as a string or token ids; the positions that predict it are measured
    - at: "all" positions of the prompts, or the "last" of each
    - per_token: also keep `jsd` and `tokens`

    Returns a dict of float32 tensors. Entry l of L is measured at the input of block l:

    - `res_kl_divs` [L]: KL(p_l ‖ y) in nats; `res_overlaps` [L]: |top5(p_l) ∩ top5(y)| / 5
    - `res_top1`, `res_in_top3`, `res_in_top5`, `res_in_top10` [L]: the share of positions whose final top token is
      among the first k of p_l. Tied tokens share a rank
    - `res_mrr` [L]: the mean reciprocal rank of the final top token
    - `res_entropy` [L]: entropy of p_l in nats; `res_jsd` [L]: the Jensen–Shannon divergence of p_l and y in bits
    - `res_settled` [L]: the share of tokens whose divergence was at most 1/2 bit at some block up to l
    - `settling`: for each prompt [T_p], the first l at which each token's divergence is at most 1/2 bit, or L if none.
      See `deep_thinking_ratio`
    - `<key>_sums` [P, L], `n_tokens` [P]: sums over each prompt's measured tokens, and the number of these tokens
    - `loss`, `shuffled_loss` [P]: nats per token of the prompt, and the same with the tokens shuffled; NaN for a
      prompt of one token. Only if all positions of the prompts are measured
    - `generated`: the generated responses, strings; only with generate
    - `jsd`: for each prompt [T_p, L], float16; `tokens`: the token after each measured one; of a whole
      prompt T_p − 1, as none follows its last. Only with per_token

    Raises ValueError for a prompt without tokens or with more tokens than the model has positions, and for answers that
    do not fit the prompts. Raises LensError for a lens that belongs to a different model or, on a server, is larger
    than half a GiB.
    Sources: Csordás et al. 2025, Figure 4; Hu et al. 2025 (arXiv 2512.14064); entropy: Ali et al. 2025 (2502.16570);
    settling: Chen et al. 2026 (2602.13517).
    Cost: a forward pass per prompt and the unembedding of L + 1 layers. `generate` adds a one-token pass per generated
    token, and a lens adds 2 L d² operations per token. Memory: h of one prompt, [L + 1, T, d], and the logits of a few
    tokens.
    """
    if generate < 0:
        raise ValueError(f"generate must be a number of tokens, or 0 for the prompts' own tokens, got {generate!r}")
    if generate and (answers is not None or at != "all"):
        raise ValueError("pass only one of generate, answers and at: each chooses the tokens to measure")
    if per_token and not all_measures:
        raise ValueError("per_token needs all measures; leave out all_measures=False")
    arch = verified_arch(llm)
    if generate:
        measured = [(ids, 0, []) for ids in tokenize(llm, prompts, generate=generate)]
        if without_template(llm, prompts):
            warn("these prompts do not use the model's chat template; to apply it, use dl.chat_prompts(llm, questions)")
    else:
        measured = measured_tokens(llm, prompts, answers, at)
    whole = not generate and answers is None and at == "all"
    settings, translation = greedy_settings(llm) if generate else None, translators(llm, lens, remote)
    keys = " ".join(f"{key}_sums" for key in KEYS[: None if all_measures else 2])
    gives = f"P L: {keys}; P: n_tokens{' loss shuffled_loss' * whole}; [P]: generated jsd"
    how, read = {"remote": remote, "over": "prompts", "gives": gives}, [(ids, first) for ids, first, _ in measured]
    result = run(measure_logit_lens, llm, arch, read, generate, all_measures, settings, translation, whole, **how)
    one_token_loss_to_nan(result, [ids for ids, _ in read])
    generated, jsd = result.pop("generated"), result.pop("jsd")
    found = token_means(result)
    if all_measures:
        found["settling"] = [settling(of_prompt) for of_prompt in jsd]
    if generate:
        found["generated"] = llm.tokenizer.batch_decode(generated, clean_up_tokenization_spaces=False)
    if per_token:
        new = generated if generate else [following for *_, following in measured]
        found |= {"jsd": [of_prompt.half() for of_prompt in jsd]}
        found["tokens"] = [[llm.tokenizer.decode([token]) for token in ids] for ids in new]
    return Result("logit_lens", found, llm)


def settling(jsd: torch.Tensor) -> torch.Tensor:
    """The first layer c [T] at which jsd [T, L] has been at most 0.5 bits; L where it never is."""
    return (jsd.float().cummin(1).values > 0.5).sum(1).float()


def measure_logit_lens(llm, arch, prompts, generate=0, all_measures=True, settings=None, lens=None, losses=True):
    """Sums over the measured tokens of each prompt of the distances between the lens at h_l and the model's prediction.

    - prompts: (token ids, the first position that is measured) each
    - generate: the largest number of tokens by which the model continues each prompt (see `continuation`); then only
      the positions that predict these are measured
    - all_measures: whether to compute more than the first two of KEYS
    - settings: of `generate`
    - lens: `A` [L, d, d] and `b` [L, d], by which h_l is translated, or None
    - losses: whether to compute `loss` and `shuffled_loss`

    Returns:

    - `<key>_sums` [P, L] of KEYS, and `n_tokens` [P]
    - `generated`: token ids of each prompt
    - `jsd`: [T_p, L] of each prompt, bits; None without all measures
    - `loss`, `shuffled_loss` [P]: the mean −log y of the next token, nats, and the same for the shuffled tokens
    """
    generated = [continuation(llm, arch, ids, generate, settings) if generate else [] for ids, _ in prompts]
    # the last token that is generated predicts none of them
    measured = [
        (ids + new[:-1], len(ids) - 1 if new else first) for (ids, first), new in zip(prompts, generated, strict=True)
    ]
    of_prompts = [_of_prompt(llm, arch, *of_prompt, all_measures, lens) for of_prompt in measured]
    sums, of_loss, jsd = zip(*of_prompts, strict=True)
    result = {f"{key}_sums": values for key, values in zip(KEYS, torch.stack(sums).unbind(1), strict=False)}
    if losses:
        result |= dict(zip(("loss", "shuffled_loss"), torch.stack(of_loss).unbind(1), strict=True))
    n_tokens = torch.tensor([len(ids) - first for ids, first in measured], dtype=torch.float32)
    return result | {"n_tokens": n_tokens, "generated": generated, "jsd": list(jsd)}


def _of_prompt(llm, arch, ids, first, all_measures, translation):
    """The sums over a prompt's tokens from `first` on [len(KEYS) or 2, L], both losses [2], and `jsd` [T, L]."""
    following = torch.tensor(ids[1:], dtype=torch.long)
    # share[v]: of the next tokens, those that are v
    share = torch.bincount(following, minlength=1).to(torch.float32) / max(len(following), 1)
    sums, jsd, log_y = 0, [], []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            h = translated(translation, read_residuals(llm, arch))
            at_a_time = max(1, rows_of_logits(llm, h[-1]) // len(h))
            for start in range(first, len(ids), at_a_time):
                some = [residual[start : start + at_a_time].to(h[-1].device) for residual in h]
                logits = unembed(llm, arch, torch.stack(some, dim=1).flatten(0, 1)).unflatten(0, (-1, len(h)))
                following, share = following.to(logits.device), share.to(logits.device)  # copied once
                for few in logits.split(max(1, logits_in_cache(logits) // logits[0].numel())):
                    found = distances(few, all_measures)
                    sums += found.sum(1)
                    if all_measures:
                        jsd.append(found[KEYS.index("res_jsd")])
                own = distribution(logits[: len(following) - start, -1])[1]
                log_y.append(own.gather(1, following[start : start + len(own), None]).sum())
                log_y.append((own[:, : len(share)] @ share).sum())  # Σ_v share[v] log y[v]: expected over shuffles
            sums, log_y = sums.cpu(), torch.stack(log_y).cpu().view(-1, 2).sum(0)
            jsd = torch.cat(jsd).cpu() if jsd else None
    return sums, -log_y / max(len(following), 1), jsd


def distances(logits, all_measures=True):
    """What KEYS names of n tokens, all or the first two [len(KEYS) or 2, n, L], from the logits of their
    h_0..h_L [n, L + 1, V]."""
    y, log_y = distribution(logits[:, -1:])
    of_model = y, log_y, log_y.topk(min(5, log_y.shape[-1])).indices
    of_layers = logits[:, :-1].split(max(1, logits_in_cache(logits) // logits[:, 0].numel()), dim=1)
    found = torch.cat([_between(distribution(few), of_model, all_measures) for few in of_layers], dim=2)
    kl, entropy, jsd, *ranks = found
    rank, overlap = ranks[0], (torch.stack(ranks) <= 5).float().mean(0)
    if not all_measures:
        return torch.stack([kl, overlap])
    settled = jsd.cummin(1).values <= 0.5  # at this block or an earlier one
    found = [kl, overlap, rank <= 1, 1 / rank, rank <= 3, rank <= 5, rank <= 10, entropy, jsd, settled]
    return torch.stack([distance.float() for distance in found])


def _between(of_lens, of_model, all_measures):
    """KL, entropy, JSD (both 0 without all measures) and the ranks of the model's top five tokens [3 + 5, n, k].

    k layers' distributions (p, log p) [n, k, V] are compared with the model's, (y, log y) [n, 1, V], and its top five
    [n, 1, 5]. `distribution` keeps p and y above 0, as 0 · inf is NaN. log p is overwritten, as few copies fit the
    cache.
    """
    (p, log_p), (y, log_y, five) = of_lens, of_model
    kl = (log_p - log_y).mul_(p).sum(-1)
    of_five, above = log_p.gather(2, five.expand(-1, log_p.shape[1], -1)), torch.empty_like(log_p)
    n_above = [torch.gt(log_p, x, out=above).sum(-1) for x in of_five.split(1, dim=-1)]  # sums of bools are slow
    entropy = jsd = torch.zeros_like(kl)
    if all_measures:
        entropy, log_mean = -(p * log_p).sum(-1), (p + y).div_(2).log_()
        to_mean = log_p.sub_(log_mean).mul_(p).sum(-1) + torch.sub(log_y, log_mean, out=log_mean).mul_(y).sum(-1)
        jsd = to_mean / (2 * math.log(2))
    return torch.stack([kl, entropy, jsd, *(1 + n for n in n_above)])
