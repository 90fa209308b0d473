"""Probe 1: how much each block adds to the residual stream, and in which direction (Csordás et al. 2025, 3.1)."""

import torch
from torch.nn.functional import cosine_similarity

from .residual_stream import contributions, first, inputs


def relative_contribution(llm, arch, prompts):
    """Sums over the tokens of each prompt of the norms, norm ratios and cosines of a_l, m_l and h_l.

    With h_{l+1} = h_l + a_l + m_l and r_l what the MLP reads (h_l + a_l, or h_l in parallel blocks):
    rc_att = ‖a‖ / ‖h‖, rc_mlp = ‖m‖ / ‖r‖, rc_layer = ‖a + m‖ / ‖h‖, att_cos = cos(a, h), mlp_cos = cos(m, r),
    layer_cos = cos(a + m, h), io_cos = cos(h_l, h_{l+1}).

    prompts: token ids, one list a prompt. Returns `<key>_sums` [P, L] (norm_residual_sums [P, L + 1]) and `n_tokens`
    [P].
    """
    sums = []
    for ids in prompts:
        curves = {}
        with torch.no_grad():
            with llm.trace(inputs(ids), use_cache=False) as tracer:
                rows = [_block_sums(block, arch) for block in llm.blocks]
                h = first(llm.blocks[-1].output)[0].float()
                for key in rows[0]:
                    curves[key] = torch.stack([row[key].cpu() for row in rows])
                curves["norm_residual"] = torch.cat([curves["norm_residual"], h.norm(dim=-1).sum().cpu()[None]])
                tracer.stop()
        sums.append(curves)
    result = {f"{key}_sums": torch.stack([curves[key] for curves in sums]) for key in sums[0]}
    result["n_tokens"] = torch.tensor([float(len(ids)) for ids in prompts])
    return result


def _block_sums(block, arch):
    """The sums over tokens of every measure at one block, as scalars."""
    h, a, m = contributions(block, arch)
    read = h if arch["parallel"] else h + a
    measures = {
        "rc_att": _ratio(a, h),
        "rc_mlp": _ratio(m, read),
        "rc_layer": _ratio(a + m, h),
        "att_cos": cosine_similarity(a, h, dim=-1, eps=1e-6),
        "mlp_cos": cosine_similarity(m, read, dim=-1, eps=1e-6),
        "layer_cos": cosine_similarity(a + m, h, dim=-1, eps=1e-6),
        "io_cos": cosine_similarity(h, h + a + m, dim=-1, eps=1e-6),
        "norm_att": a.norm(dim=-1),
        "norm_mlp": m.norm(dim=-1),
        "norm_residual": h.norm(dim=-1),
    }
    return {key: measure.sum() for key, measure in measures.items()}


def _ratio(x, y):
    return x.norm(dim=-1) / y.norm(dim=-1).clamp_min(1e-6)
