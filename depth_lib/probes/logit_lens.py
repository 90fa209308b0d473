"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2)."""

import torch

from .residual_stream import first, inputs, lens


def logit_lens(llm, arch, prompts, chunk=64):
    """Sums over the tokens of each prompt of the distance between the lens at h_l and the model's own prediction.

    With p_l = softmax(lens(h_l)), l = 0..L−1, and y the final distribution: res_kl_divs = KL(p_l ‖ y),
    res_overlaps = |top5(p_l) ∩ top5(y)| / 5, res_top1 = [top1(p_l) = top1(y)], res_mrr = 1 / rank of top1(y) under p_l.

    prompts: token ids, one list a prompt; chunk: tokens unembedded at a time. Returns `<key>_sums` [P, L] and
    `n_tokens` [P].
    """
    sums = []
    for ids in prompts:
        with torch.no_grad():
            with llm.trace(inputs(ids), use_cache=False) as tracer:
                residuals = [block.input[0].clone() for block in llm.blocks]
                final = first(llm.blocks[-1].output)[0]
                curves = torch.zeros(4, len(residuals))
                for start in range(0, len(ids), chunk):
                    piece = slice(start, start + chunk)
                    target = lens(llm, arch, final[piece])
                    log_y, top_y = target.log_softmax(-1), target.topk(min(5, target.shape[-1])).indices
                    for l, h in enumerate(residuals):
                        curves[:, l] += _distances(lens(llm, arch, h[piece].to(final.device)), log_y, top_y).cpu()
                tracer.stop()
        sums.append(curves)
    keys = ("res_kl_divs", "res_overlaps", "res_top1", "res_mrr")
    result = {f"{key}_sums": torch.stack([curves[k] for curves in sums]) for k, key in enumerate(keys)}
    result["n_tokens"] = torch.tensor([float(len(ids)) for ids in prompts])
    return result


def _distances(logits, log_y, top_y):
    """The four distances of logits [N, V] to the final distribution, each summed over the N tokens: [4]."""
    log_p = logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_y)).sum()
    top_p = logits.topk(top_y.shape[-1]).indices
    overlap = (top_p[:, :, None] == top_y[:, None, :]).sum() / 5
    top1 = (top_p[:, 0] == top_y[:, 0]).sum()
    rank = 1 + (logits > logits.gather(1, top_y[:, :1])).sum(-1)
    return torch.stack([kl, overlap, top1.float(), (1 / rank).sum()])
