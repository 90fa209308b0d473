"""What it costs to run a model's blocks in another order: some removed, repeated, exchanged or reversed.

The obvious loop, with y the output of the model as it is (tests/oracles/orders.py):

    for each order:
        x = h_0;  for l in order: x = block l of x
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here an order begins where it differs from 0..L − 1, and all orders that wait for a block share a call (`stream.run`).
Sources: Lad et al. 2024 (arXiv 2406.19384); Sun et al. 2024 (2407.09298, "Painters").
"""

import torch

from ..residual.residual_stream import inputs
from ..residual.stream import Row, Stream, output_changes


def block_orders(llm, arch, prompts, orders, budget):
    """Run the blocks in each of these orders, and measure the change of the output at all tokens.

    prompts: token ids, one list per prompt; orders: K lists of block numbers; budget: tokens in one call of a block, or
    None. Returns `loss` [P, K] (mean over the predicting tokens; 0 for a prompt of one token), `kl` and `top1` [P, K]
    (over all).
    """
    results = []
    for ids in prompts:
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                damage = order_damage(Stream(llm, arch, ids, budget), orders)
        results.append(damage_of_prompt(damage))
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def order_damage(stream, orders, read=None):
    """The four numbers of `damage` of each order at the positions `read` (default: all) [4, K, len(read)]."""
    read = range(len(stream.ids)) if read is None else read
    rows = []
    for order in orders:
        start = next((place for place, l in enumerate(order) if l != place), len(order))
        rows.append(Row(start, order[start:], read))
    return torch.stack(output_changes(stream, rows, damage=True), dim=1)


def damage_of_prompt(damage):
    """`loss`, `kl` and `top1` [K] of the four numbers of `damage` at all tokens of a prompt [4, K, T]."""
    _, kl, loss, top_changes = damage
    return {"loss": loss.sum(-1) / max(1, loss.shape[-1] - 1), "kl": kl.mean(-1), "top1": 1 - top_changes.mean(-1)}
