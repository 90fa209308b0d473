"""Probe 1: how much each block adds to the residual stream, and in which direction (Csordás et al. 2025, 3.1)."""

import torch

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
    return {key: measure.sum() for key, measure in measures.items()}


def _cosine(x, y, norm_x, norm_y):
    return (x * y).sum(-1) / (norm_x.clamp_min(1e-6) * norm_y.clamp_min(1e-6))
