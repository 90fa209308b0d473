"""Probe 1: how much each block adds to the residual stream, and in which direction (Csordás et al. 2025, 3.1)."""

import torch

from .residual_stream import clean_run, exact

LARGEST = ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp")  # of which the largest token is kept


def relative_contribution(llm, arch, prompts):
    """Sums over the tokens of each prompt of the norms, norm ratios and cosines of a_l, m_l and h_l.

    With h_{l+1} = h_l + a_l + m_l and r_l what the MLP reads (h_l + a_l, or h_l in parallel blocks):
    rc_att = ‖a‖ / ‖h‖, rc_mlp = ‖m‖ / ‖r‖, rc_layer = ‖a + m‖ / ‖h‖, att_cos = cos(a, h), mlp_cos = cos(m, r),
    layer_cos = cos(a + m, h), io_cos = cos(h_l, h_{l+1}); and those of `_geometry`.

    prompts: token ids, one list a prompt. Returns `<key>_sums` [P, L] (norm_residual_sums [P, L + 1]), the largest
    value of a token `max_<key>_by_prompt` for the norms, rc_att and rc_mlp, the geometry's `<key>_sums`,
    `angular_last` [P, L + 1, L + 1] of the last tokens, `n_tokens` [P] and `change`, 1 − io_cos of every token of all
    prompts, one after the other [T₁ + … + T_P, L].
    """
    results, changes = [], []
    for ids in prompts:

        def measures(h, a, m):
            return _measures(h[0], a[0], m[0], arch["parallel"])

        clean = clean_run(llm, arch, ids, with_c=False, read=measures)
        residuals = [h[0].float().cpu() for h in clean["h"]]
        per_token = {key: torch.stack([row[key] for row in clean["read"]]) for key in clean["read"][0]}
        norm_last = residuals[-1].norm(dim=-1)[None]
        per_token["norm_residual"] = torch.cat([per_token["norm_residual"], norm_last])
        maxima = {f"max_{key}_by_prompt": per_token[key].amax(-1) for key in LARGEST}
        sums = {f"{key}_sums": values.sum(-1) for key, values in per_token.items()}
        results.append(sums | maxima | _geometry(residuals))
        changes.append(1 - per_token["io_cos"].T)
    found = {key: torch.stack([result[key] for result in results]) for key in results[0]}
    if not arch["parts"]:  # what a block adds is known, but not what attention and MLP do
        found |= {key: value * torch.nan for key, value in found.items() if {"att", "mlp"} & set(key.split("_"))}
    return found | {
        "n_tokens": torch.tensor([len(ids) for ids in prompts], dtype=torch.float32),
        "change": torch.cat(changes),
    }


def _geometry(residuals):
    """Angles and progress of a prompt's residuals, L + 1 times h_l [T, d], from the products of all pairs, which
    float64 keeps apart where neighbours are nearly parallel.

    angular = arccos(cos(h_l, h_k)) / π, [L + 1, L + 1]; progress = ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖² [L + 1];
    turn = arccos(cos(h_{l+1} − h_l, h_{l+2} − h_{l+1})) / π [L − 1]; summed over tokens, `angular_last` of the last.
    """
    sums = 0
    for pieces in zip(*(h.split(16) for h in residuals), strict=True):  # never all of them twice
        x = torch.stack(pieces, dim=1).double()
        with exact(x):
            products = x @ x.mT  # [t, L + 1, L + 1]
        angular = _angle(products, products.diagonal(dim1=1, dim2=2).sqrt())
        moved = (
            products[:, -1] - products[:, 0, -1:] - products[:, 0] + products[:, 0, :1]
        )  # of h_l − h_0 with h_L − h_0
        progress = moved / moved[:, -1:].clamp_min(1e-12)
        own, next_, second = (products.diagonal(k, 1, 2) for k in (0, 1, 2))
        steps = (own[:, 1:] - 2 * next_ + own[:, :-1]).clamp_min(0).sqrt()  # of h_{l+1} − h_l
        of_neighbours = next_[:, 1:] - own[:, 1:-1] - second + next_[:, :-1]
        turn = _arc(of_neighbours / (steps[:, 1:] * steps[:, :-1]).clamp_min(1e-12))
        found = {"angular_sums": angular.sum(0), "progress_sums": progress.sum(0), "turn_sums": turn.sum(0)}
        sums = found if sums == 0 else {key: sums[key] + value for key, value in found.items()}
    return {key: value.float() for key, value in (sums | {"angular_last": angular[-1]}).items()}


def _angle(products, norms):
    """Angles in units of π from products [t, n, n] and norms [t, n]; 1/2 where a vector is zero, 0 with itself."""
    cosines = products / (norms[:, :, None] * norms[:, None]).clamp_min(1e-12)
    angles = _arc(cosines)
    angles.diagonal(dim1=1, dim2=2).zero_()
    return angles


def _arc(cosines):
    return cosines.clamp(-1, 1).arccos() / torch.pi


def _measures(h, a, m, parallel):
    """Every measure [T] at one block."""
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
        products = torch.linalg.vecdot(x, y)
    return products / (norm_x.clamp_min(1e-6) * norm_y.clamp_min(1e-6))
