"""What it costs to remove consecutive blocks, or several attentions or MLPs, as if they had been deleted.

The obvious loop, with y the output of the full model (tests/oracles/removal.py):

    for each n and s:
        run the model, but block s + n reads h_s
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here removing blocks is running the others in their order (see `block_orders`).
"""

import torch

from ..residual.distributions import output_change
from ..residual.residual_stream import final_residual, inputs, silence, skip_head
from ..residual.stream import Stream
from .block_orders import damage_of_prompt, order_damage

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
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            stream = Stream(llm, arch, ids, budget)
            h, n_rows, damage = stream.h, stream.n_rows, None
            if part == "layer":
                damage = order_damage(stream, [[l for l in range(arch.n_layers) if l not in gone] for gone in removed])
            last = torch.stack([x[-1].cpu().double() for x in h])
            cosines = [
                torch.cosine_similarity(x.float(), y.to(x).float(), dim=-1).mean().cpu()
                for x, y in zip(h, h[1:], strict=False)
            ]
    if damage is None:
        some = [removed[start : start + n_rows] for start in range(0, len(removed), n_rows)]
        damage = torch.cat([_without_parts(llm, arch, ids, gone, part) for gone in some], dim=1)
    return damage_of_prompt(damage) | {
        "angular": (torch.cosine_similarity(last, last[:, None], dim=-1).clamp(-1, 1).arccos() / torch.pi).float(),
        "influence": 1 - torch.stack(cosines),
    }


def _without_parts(llm, arch, ids, removed, part):
    """The four numbers of `damage` [4, R, T] if this part of each of these blocks adds nothing."""
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids, batch=1 + len(removed)), use_cache=False):
            shape = (1 + len(removed), len(ids), arch.width)
            for l, block in enumerate(llm.blocks):
                silence(block, arch, shape, part, [(k, slice(None)) for k, gone in enumerate(removed, 1) if l in gone])
            final = final_residual(llm, arch)
            damage = output_change(llm, arch, final, [*ids[1:], -1])
            skip_head(llm, arch, final)
    return damage
