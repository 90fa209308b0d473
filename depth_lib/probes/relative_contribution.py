"""Probe 1: how much each block adds to the residual stream, and in which direction (Csordás et al. 2025, 3.1).

The obvious loop, with h_{l+1} = h_l + a_l + m_l and r_l what the MLP reads: h_l + a_l, or h_l in parallel blocks
(tests/oracles/curves.py):

    for each prompt, token and block l:
        rc_att = ‖a‖ / ‖h‖       rc_mlp = ‖m‖ / ‖r‖       rc_layer = ‖a + m‖ / ‖h‖
        att_cos = cos(a, h)      mlp_cos = cos(m, r)      layer_cos = cos(a + m, h)      io_cos = cos(h, h + a + m)

Norms that are divided by are at least 1e-6.

Here it is one forward pass per prompt, and all tokens of a block at once.
"""

import torch

from .residual_stream import contributions, exact, inputs, last_block, leaving

WITH_MAXIMUM = ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp")


def relative_contribution(llm, arch, prompts):
    """Sums over the tokens of each prompt of the norms, norm ratios and cosines above, and of `_geometry`'s angles.

    prompts: token ids, one list per prompt. Returns `<key>_sums` [P, L] (norm_residual_sums [P, L + 1]), the largest
    value of a token `max_<key>_by_prompt` for the norms, rc_att and rc_mlp, the `<key>_sums` of `_geometry`,
    `angular_last` [P, L + 1, L + 1] of the last tokens, `n_tokens` [P] and `change`, 1 − io_cos of every token of all
    prompts, one after the other [T₁ + … + T_P, L].
    """
    results, changes = [], []
    for ids in prompts:
        h, measures = _measured(llm, arch, ids)
        per_token = {key: torch.stack([block[key] for block in measures]) for key in measures[0]}
        per_token["norm_residual"] = torch.cat([per_token["norm_residual"], h[-1].norm(dim=-1)[None]])
        result = {f"{key}_sums": values.sum(-1) for key, values in per_token.items()}
        result |= {f"max_{key}_by_prompt": per_token[key].amax(-1) for key in WITH_MAXIMUM}
        results.append(result | _geometry(h))
        changes.append(1 - per_token["io_cos"].T)
    stacked = {key: torch.stack([result[key] for result in results]) for key in results[0]}
    if not arch["parts"]:  # what a block adds is known, but not what attention and MLP do
        stacked |= {key: value * torch.nan for key, value in stacked.items() if "att" in key or "mlp" in key}
    n_tokens = torch.tensor([len(ids) for ids in prompts], dtype=torch.float32)
    return stacked | {"n_tokens": n_tokens, "change": torch.cat(changes)}


def _measured(llm, arch, ids):
    """h_0..h_L [T, d], float32 on the CPU, and of each block what `_measures` returns."""
    residuals, measures = [], []
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            for block in llm.blocks:
                h, a, m = contributions(block, arch)
                residuals.append(h[0].cpu())
                measures.append(_measures(h[0], a[0], m[0], arch["parallel"]))
            residuals.append(leaving(last_block(llm, arch))[0].float().cpu())
            tracer.stop()
    return residuals, measures


def _measures(h, a, m, parallel):
    """Every measure [T] at one block, from h, a and m [T, d]."""
    read = h if parallel else h + a
    layer = a + m
    after = h + layer
    norm_h, norm_a, norm_m, norm_read, norm_layer = (x.norm(dim=-1) for x in (h, a, m, read, layer))
    measures = {
        "rc_att": norm_a / norm_h.clamp_min(1e-6),
        "rc_mlp": norm_m / norm_read.clamp_min(1e-6),
        "rc_layer": norm_layer / norm_h.clamp_min(1e-6),
        "att_cos": _cosine(a, h, norm_a, norm_h),
        "mlp_cos": _cosine(m, read, norm_m, norm_read),
        "layer_cos": _cosine(layer, h, norm_layer, norm_h),
        "io_cos": _cosine(h, after, norm_h, after.norm(dim=-1)),
        "norm_att": norm_a,
        "norm_mlp": norm_m,
        "norm_residual": norm_h,
    }
    return {key: value.cpu() for key, value in measures.items()}


def _cosine(x, y, norm_x, norm_y):
    with exact(x):
        product = torch.linalg.vecdot(x, y)
    return product / (norm_x.clamp_min(1e-6) * norm_y.clamp_min(1e-6))


def _geometry(residuals):
    """Angles and progress of a prompt's residuals, L + 1 tensors h_l [T, d], summed over tokens.

    angular = arccos(cos(h_l, h_k)) / π [L + 1, L + 1], and `angular_last` of the last token; progress =
    ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖² [L + 1]; turn = arccos(cos(h_{l+1} − h_l, h_{l+2} − h_{l+1})) / π [L − 1], 1/2
    where a block adds nothing. All follow from the inner products of all pairs, in float64, which keeps nearly parallel
    neighbours apart.
    """
    totals = {}
    for some in zip(*(h.split(16) for h in residuals), strict=True):  # 16 tokens at a time, as stacking copies them
        h = torch.stack(some, dim=1).double()
        with exact(h):
            products = h @ h.mT  # [t, L + 1, L + 1]
        own, with_next, with_second = (products.diagonal(k, 1, 2) for k in (0, 1, 2))
        norms = own.sqrt()
        angular = _angle(products / (norms[:, :, None] * norms[:, None]).clamp_min(1e-12))
        angular.diagonal(dim1=1, dim2=2).zero_()
        # ⟨h_l − h_0, h_L − h_0⟩, and of the steps h_{l+1} − h_l the norms and the products of neighbours
        moved = products[:, :, -1] - products[:, 0, -1:] - products[:, 0] + products[:, 0, :1]
        steps = (own[:, 1:] - 2 * with_next + own[:, :-1]).clamp_min(0).sqrt()
        of_neighbours = with_next[:, 1:] - own[:, 1:-1] - with_second + with_next[:, :-1]
        turn = _angle(of_neighbours / (steps[:, 1:] * steps[:, :-1]).clamp_min(1e-12))
        sums = {"angular": angular, "progress": moved / moved[:, -1:].clamp_min(1e-12), "turn": turn}
        for key, values in sums.items():
            totals[f"{key}_sums"] = totals.get(f"{key}_sums", 0) + values.sum(0)
    return {key: value.float() for key, value in (totals | {"angular_last": angular[-1]}).items()}


def _angle(cosines):
    """In units of π."""
    return cosines.clamp(-1, 1).arccos() / torch.pi
