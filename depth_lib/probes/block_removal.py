"""What it costs to remove consecutive blocks, or several attentions or MLPs, as if they had been deleted.

The obvious loop, with y the output of the full model (tests/oracles/removal.py):

    for each n and s:
        run the model, but block s + n reads h_s
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here removing blocks is running the others in their order (see `block_orders`).
"""

import torch

from .block_orders import damage_of_prompt, order_damage
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
    if part == "layer":
        damage = order_damage(clean, [[l for l in range(arch.n_layers) if l not in blocks] for blocks in removed])
    else:
        rows = [Row(min(blocks), range(len(ids)), silent=dict.fromkeys(blocks, slice(None))) for blocks in removed]
        damage = torch.stack(growing_batch(clean, rows, part, damage=True)[0], dim=1)
    last = torch.stack([x[-1].cpu().double() for x in clean.h])
    cosines = [
        torch.cosine_similarity(x.float(), y.to(x).float(), dim=-1).mean()
        for x, y in zip(clean.h[:-1], clean.h[1:], strict=True)
    ]
    return damage_of_prompt(damage) | {
        "angular": (torch.cosine_similarity(last, last[:, None], dim=-1).clamp(-1, 1).arccos() / torch.pi).float(),
        "influence": 1 - torch.stack(cosines).cpu(),
    }
