"""What it costs to remove consecutive blocks, or several attentions or MLPs, as if they had been deleted.

The obvious loop, with y the output of the full model (tests/oracles/removal.py):

    for each n and s:
        run the model, but block s + n reads h_s
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here all (s, n) are rows of a batch, each of which joins it before block s + n (see `growing_batch`).
"""

import torch

from .clean_run import CleanRun
from .growing_batch import Row, growing_batch

AT_MOST = 0.05  # nats per token that removing blocks may cost: a perplexity 5 % higher


def block_removal(llm, arch, prompts, removed, part, budget):
    """Remove some blocks, or attention or MLP of them (`part`), and measure the change of the output at all tokens.

    prompts: token ids, one list per prompt; removed: R lists of blocks, whole ones consecutive; budget: tokens in one
    forward pass, or None. Returns `loss` [P, R] (mean over the predicting tokens), `kl` and `top1` [P, R] (over all),
    `angular` [P, L + 1, L + 1], arccos(cos(h_l, h_k)) / π of the last token, and `influence` [P, L], the mean of
    1 − cos(h_l, h_{l+1}).
    """
    results = [_of_prompt(llm, arch, ids, removed, part, budget) for ids in prompts]
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _of_prompt(llm, arch, ids, removed, part, budget):
    clean = CleanRun(llm, arch, ids, budget)
    rows = [_row(clean, blocks, part) for blocks in removed]
    changes, _ = growing_batch(clean, rows, part, damage=True)
    _, kl, loss, top_changes = torch.stack(changes, dim=1)
    last = torch.stack([x[-1].double().cpu() for x in clean.h])
    cosines = [
        torch.cosine_similarity(x.float(), y.to(x).float(), dim=-1).mean()
        for x, y in zip(clean.h[:-1], clean.h[1:], strict=True)
    ]
    return {
        "loss": loss.sum(-1) / max(1, len(ids) - 1),
        "kl": kl.mean(-1),
        "top1": 1 - top_changes.mean(-1),
        "angular": (torch.cosine_similarity(last, last[:, None], dim=-1).clamp(-1, 1).arccos() / torch.pi).float(),
        "influence": 1 - torch.stack(cosines).cpu(),
    }


def _row(clean, blocks, part):
    """The run without these blocks, or without this part of them."""
    read = range(len(clean.ids))
    if part != "layer":
        return Row(min(blocks), read, silent=dict.fromkeys(blocks, slice(None)))

    def replace(h, before):
        h[:] = clean.h[min(blocks)].to(h)

    return Row(max(blocks) + 1, read, replace)
