"""Contributions and logit lens by their definitions, one prompt and one full forward at a time."""

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, log_softmax

from tests.oracles.streams import block_states, is_parallel, lens, norm, residuals

TINY = 1e-6


@torch.no_grad()
def relative_contribution(model, prompts, firsts=None):
    """Norm ratios and cosines of what attention, MLP and block add, mean over the tokens of `prompts`, lists of ids,
    from the place in `firsts` on (default: all)."""
    sums, n_tokens, maxima = {}, 0, {}
    firsts = [0] * len(prompts) if firsts is None else firsts
    for input_ids, begin in zip(prompts, firsts, strict=True):
        h, a, m = (x[:, begin:] for x in residuals(model, input_ids)[:3])
        before = h[:-1]
        mlp_reads = before if is_parallel(model) else before + a
        per_token = {
            "rc_att": norm(a) / norm(before).clamp(min=TINY),
            "rc_mlp": norm(m) / norm(mlp_reads).clamp(min=TINY),
            "rc_layer": norm(a + m) / norm(before).clamp(min=TINY),
            "att_cos": cosine_similarity(a, before, dim=-1, eps=TINY),
            "mlp_cos": cosine_similarity(m, mlp_reads, dim=-1, eps=TINY),
            "layer_cos": cosine_similarity(a + m, before, dim=-1, eps=TINY),
            "io_cos": cosine_similarity(before, h[1:], dim=-1, eps=TINY),
            "norm_att": norm(a),
            "norm_mlp": norm(m),
            "norm_residual": norm(h),
        }
        for key in ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp"):
            largest = per_token[key].amax(dim=-1)
            maxima[f"max_{key}"] = torch.maximum(largest, maxima.get(f"max_{key}", largest))
        per_token["angular"] = torch.stack([torch.stack([_angle(x, y) for y in h]) for x in h])
        whole = h[-1] - h[0]
        per_token["progress"] = ((h - h[0]) * whole).sum(dim=-1) / (whole * whole).sum(dim=-1)
        for key, value in per_token.items():
            sums[key] = sums.get(key, 0) + value.sum(dim=-1)
        n_tokens += len(input_ids) - begin
    first_change = 1 - cosine_similarity(
        *(x for h in [residuals(model, prompts[0])[0][:, firsts[0] :]] for x in (h[:-1], h[1:])), dim=-1
    )
    return {key: total / n_tokens for key, total in sums.items()} | maxima | {"first_change": first_change}


def _angle(x, y):
    """Angle between vectors in units of pi, by the formula that keeps its digits when they are nearly parallel."""
    x, y = (v / norm(v).clamp(min=1e-30)[..., None] for v in (x, y))
    return 2 * torch.atan2(norm(x - y), norm(x + y)) / torch.pi


@torch.no_grad()
def logit_lens(model, prompts, firsts=None):
    """How far the lens at each block's input is from the final distribution, mean over the tokens of `prompts` from the
    place in `firsts` on (default: all)."""
    sums, n_tokens = {}, 0
    for input_ids, begin in zip(prompts, [0] * len(prompts) if firsts is None else firsts, strict=True):
        h, logits = block_states(model, input_ids)
        h, logits = h[:, begin:], logits[begin:]
        log_y = log_softmax(logits, -1)
        y, top = log_y.exp(), log_y.argmax(-1, keepdim=True)
        settled = torch.zeros(len(input_ids) - begin, dtype=torch.bool)
        for layer in range(len(h) - 1):
            log_p = log_softmax(lens(model, h[layer]), -1)
            p = log_p.exp()
            rank = 1 + (log_p > log_p.gather(-1, top)).sum(-1)
            log_mean = (p / 2 + y / 2).log()
            jsd = ((p * (log_p - log_mean)).sum(-1) + (y * (log_y - log_mean)).sum(-1)) / 2 / np.log(2)
            settled = settled | (jsd <= 0.5)
            five, true_five = (x.topk(5).indices.tolist() for x in (log_p, log_y))
            per_token = {
                "res_kl_divs": (p * (log_p - log_y)).sum(-1),
                "res_overlaps": torch.tensor([len(set(a) & set(b)) / 5 for a, b in zip(five, true_five, strict=True)]),
                "res_top1": log_p.argmax(-1) == top[:, 0],
                "res_mrr": 1 / rank,
                "res_in_top3": rank <= 3,
                "res_in_top5": rank <= 5,
                "res_in_top10": rank <= 10,
                "res_entropy": -(p * log_p).sum(-1),
                "res_jsd": jsd,
                "res_settled": settled,
            }
            for key, values in per_token.items():
                sums.setdefault(key, torch.zeros(len(h) - 1).to(h))[layer] += values.to(h).sum()
        n_tokens += len(input_ids) - begin
    return {key: total / n_tokens for key, total in sums.items()}


@torch.no_grad()
def settling(model, input_ids, begin, g=0.5):
    """The first layer whose lens is within g bits of the output, of each token from `begin` on; L where none is."""
    h, logits = block_states(model, input_ids)
    layers = []
    for t in range(begin, len(input_ids)):
        y, c = torch.softmax(logits[t], -1), len(h) - 1
        for layer in reversed(range(len(h) - 1)):
            p = torch.softmax(lens(model, h[layer, t : t + 1])[0], -1)
            mean = (p + y) / 2
            divergence = [(x * (x / mean).log2()).nan_to_num().sum() for x in (p, y)]
            c = layer if sum(divergence) / 2 <= g else c
        layers.append(c)
    return layers
