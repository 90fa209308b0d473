"""What it costs to run a model's blocks in another order: some removed, repeated, exchanged or reversed.

The obvious loop, with y the output of the model as it is (tests/oracles/orders.py):

    for each order:
        x = h_0;  for l in order: x = block l of x
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

A pass runs blocks in ascending order, and a row of it may join late, pass blocks by and leave early. So an order is cut
into `ascents`: without its beginning, which the clean run has, a removal or a repetition is one, an exchange of two
neighbours two, a reversal of n blocks n. The first ascents of all orders share passes, then the second ones, and so on
(see `growing_batch`).

Sources: Lad et al. 2024 (arXiv 2406.19384); Sun et al. 2024 (2407.09298, "Painters").
"""

from itertools import pairwise

import torch

from .clean_run import CleanRun
from .growing_batch import Row, growing_batch


def block_orders(llm, arch, prompts, orders, budget):
    """Run the blocks in each of these orders, and measure the change of the output at all tokens.

    prompts: token ids, one list per prompt; orders: K lists of block numbers; budget: tokens in one forward pass, or
    None. Returns `loss` [P, K] (mean over the predicting tokens; 0 for a prompt of one token), `kl` and `top1` [P, K]
    (over all).
    """
    results = [damage_of_prompt(order_damage(CleanRun(llm, arch, ids, budget), orders)) for ids in prompts]
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def damage_of_prompt(damage):
    """`loss`, `kl` and `top1` [K] of the four numbers of `damage` at all tokens of a prompt [4, K, T]."""
    _, kl, loss, top_changes = damage
    return {"loss": loss.sum(-1) / max(1, loss.shape[-1] - 1), "kl": kl.mean(-1), "top1": 1 - top_changes.mean(-1)}


def order_damage(clean, orders, read=None):
    """The four numbers of `damage` of each order at the positions `read` (default: all) [4, K, len(read)]."""
    read = range(len(clean.ids)) if read is None else read
    reached, ahead = [], []  # of each order: the residuals that it has come to, in the end the four numbers
    for order in orders:
        same = next((place for place, l in enumerate(order) if l != place), len(order))
        reached.append(clean.h[same])
        ahead.append(ascents(order[same:]))
    running = list(range(len(orders)))
    while running:
        rows = {k: _row(clean, reached[k], ahead[k], read) for k in running}
        running.sort(key=lambda k: rows[k].joins)
        results, _ = growing_batch(clean, [rows[k] for k in running], damage=True)
        for k, result in zip(running, results, strict=True):
            reached[k], ahead[k] = result, ahead[k][1:]
        running = [k for k in running if rows[k].leaves is not None]
    return torch.stack(reached, dim=1)


def ascents(order):
    """The order in stretches of ascending numbers, each of which one pass can run: [[0, 2], [1, 3]] of [0, 2, 1, 3]."""
    cuts = [place for place, (l, following) in enumerate(pairwise(order), 1) if following <= l]
    return [order[start:end] for start, end in pairwise([0, *cuts, len(order)]) if start < end]


def _row(clean, state, ahead, read):
    """The first of these ascents, run from `state` [T, d] on. It ends with the model if it is the last and does so."""
    n_layers = clean.arch.n_layers
    blocks = ahead[0] if ahead else []
    joins, end = (blocks[0], blocks[-1] + 1) if blocks else (n_layers, n_layers)

    def continue_from(h, before):
        h.copy_(state)

    return Row(
        joins,
        read,
        None if state is clean.h[joins] else continue_from,  # the order 0..L − 1 changes nothing, in any dtype
        passed_by={*range(joins, end)} - {*blocks},
        leaves=None if len(ahead) <= 1 and end == n_layers else end,
    )
