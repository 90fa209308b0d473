"""What it costs to remove consecutive blocks, or several attentions or MLPs, as if they had been deleted.

The obvious loop, with y the output of the full model (tests/oracles/removal.py):

    for each n and s:
        run the model, but block s + n reads h_s
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here all (s, n) are rows of one batch, each of which joins before block s + n (see `growing_batch`).
"""

import torch

from .clean_run import CleanRun
from .growing_batch import growing_batch
from .packing import Pack

AT_MOST = 0.05  # nats per token that removing blocks may cost: a perplexity 5 % higher


def block_removal(llm, arch, prompts, rows, part, budget):
    """Run each of `rows` to the end, and measure the change of the output at all tokens.

    prompts: token ids, one list per prompt; rows: (l, s, silent) in ascending order of l: before block l the row joins
    with the clean h_s, and attention or MLP (`part`) of the blocks in `silent` adds nothing to it; budget: tokens in
    one forward pass, or None. Returns `loss` [P, R] (mean over the predicting tokens), `kl` and `top1` [P, R] (over
    all), `angular` [P, L + 1, L + 1], arccos(cos(h_l, h_k)) / π of the last token, and `influence` [P, L], the mean of
    1 − cos(h_l, h_{l+1}).
    """
    results = [_of_prompt(llm, arch, ids, rows, part, budget) for ids in prompts]
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _of_prompt(llm, arch, ids, rows, part, budget):
    clean = CleanRun(llm, arch, ids, budget)
    h = clean.h

    def start(k, row, before):
        row[0] = h[rows[k][1]].to(row)

    def silence(l, joined):
        silent = [clean.in_batch + k - joined.start for k in joined if l in rows[k][2]]
        return (part, silent, slice(None)) if silent else None

    work = (Pack([len(ids)], len(ids)), [l for l, _, _ in rows], start, range(len(ids)), [*ids[1:], -1])
    (_, kl, loss, top_changes), _ = growing_batch(clean, *work, silent=silence)
    last = torch.stack([x[-1].double().cpu() for x in h])
    cosines = [
        torch.cosine_similarity(x.float(), y.to(x).float(), dim=-1).mean() for x, y in zip(h[:-1], h[1:], strict=True)
    ]
    return {
        "loss": loss.sum(-1) / max(1, len(ids) - 1),
        "kl": kl.mean(-1),
        "top1": 1 - top_changes.mean(-1),
        "angular": (torch.cosine_similarity(last, last[:, None], dim=-1).clamp(-1, 1).arccos() / torch.pi).float(),
        "influence": 1 - torch.stack(cosines).cpu(),
    }
