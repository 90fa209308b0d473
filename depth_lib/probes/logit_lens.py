"""Probe 3: what the model would say if it stopped before block l (nostalgebraist 2020; Csordás et al. 2025, 3.2)."""

import torch

from .residual_stream import first, in_cache, inputs, lens


def logit_lens(llm, arch, prompts, chunk=256):
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
                    top_y = _top5(target)
                    log_y = target.log_softmax(-1)
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
    few = zip(*in_cache(logits, log_y, top_y), strict=True)
    return torch.stack([_distances_of_few(*piece) for piece in few]).sum(0)


def _distances_of_few(logits, log_y, top_y):
    """`_distances`, overwriting the logits."""
    top_p = _top5(logits)
    overlap = (top_p[:, :, None] == top_y[:, None, :]).sum() / 5
    top1 = (top_p[:, 0] == top_y[:, 0]).sum()
    p = torch.empty_like(logits)
    rank = 1 + torch.gt(logits, logits.gather(1, top_y[:, :1]), out=p).sum(-1)
    torch.softmax(logits, -1, out=p)
    first = top_p[:, :1]
    log_sum = logits.gather(1, first) - p.gather(1, first).log()
    kl = torch.linalg.vecdot(p, logits.sub_(log_sum).sub_(log_y)).sum()
    return torch.stack([kl, overlap, top1.float(), (1 / rank).sum()])


def _top5(logits, group=64):
    """Ids of the five largest logits [N, 5], largest first; they lie in the five groups with the largest maxima."""
    n_grouped = logits.shape[1] // group * group
    if n_grouped < 10 * group:
        return logits.topk(min(5, logits.shape[1])).indices
    groups = logits[:, :n_grouped].unflatten(1, (-1, group))
    best = groups.amax(-1).topk(5).indices
    ids = (best[:, :, None] * group + torch.arange(group, device=logits.device)).flatten(1)
    rest = torch.arange(n_grouped, logits.shape[1], device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids, rest], dim=1)
    return ids.gather(1, logits.gather(1, ids).topk(5).indices)
