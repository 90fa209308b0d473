"""The cost of running a model's blocks in a different order: some removed, repeated, exchanged or reversed.

The obvious loop, with y the output of the model as it is (tests/oracles/orders.py):

    for each order:
        x = h_0;  for l in order: x = block l of x
        loss = mean over tokens of log y − log ȳ of the next token      kl = KL(y ‖ ȳ)      top1 = [same top token]

Here an order begins where it differs from 0..L − 1, and all orders that wait for a block share a call (`stream.run`).
Sources: Lad et al. 2024 (arXiv 2406.19384); Sun et al. 2024 (2407.09298, "Painters").
"""

from collections.abc import Sequence

import torch
from nnsight import TransformersModel

from ..data.orders import KINDS, checked_orders
from ..data.orders import orders as orders_of
from ..data.tokens import long_enough, tokenize
from ..models.check import arch_to_change
from ..residual.residual_stream import inputs
from ..residual.stream import Row, Stream, output_changes, stacked
from ..results.means import one_token_loss_to_nan, over_prompts
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def block_orders(
    llm: TransformersModel,
    prompts: list[str],
    orders: Sequence[Sequence[int]] | str = "repeats swaps reversals removals",
    remote: bool | str = False,
    budget: int | None = None,
) -> Result:
    """The cost of running the blocks in a different order: repeated, swapped, reversed or removed.

    >>> llm = dl.load_model("toy-4l")
    >>> prompts = dl.load_prompts("gsm8k", 2, source="embedded")
    >>> result = dl.block_orders(llm, prompts, [[0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 2, 3]])
    >>> result["order_loss"]  # nats per token
    tensor([0.0000, 0.6892, 0.1977])

    An order lists the blocks to run, by number. Blocks may be repeated or left out. A block keeps its own mask and
    positions.

    - llm: from `load_model`
    - prompts: list of strings
    - orders: a list of K orders, for example from `dl.orders`, or a string with kinds from `dl.orders`, separated by
      spaces, such as "swaps removals"
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns a dict of float32 tensors, means over tokens, then prompts:

    - order_loss [K]: rise in −log p(next token), nats; negative if the order predicts better
    - order_kl [K]: KL(y ‖ ȳ) in nats, where y is the output of the unchanged model and ȳ that with the order
    - order_top1 [K]: share of positions whose most likely next token stays the same
    - <key>_by_prompt [P, K]: each of these per prompt; the loss on a one-token prompt is NaN and is left out of all
      means
    - orders [K, longest]: the orders, padded with −1
    - n_layers [1]: L

    Raises ValueError for an order that is empty or has numbers outside 0..L − 1, for a prompt without tokens, and for
    prompts that all have a single token.
    Source: Lad et al. 2024 (arXiv 2406.19384); Sun et al. 2024 (2407.09298).
    Cost: a pass per prompt, and (len(order) − start) / L for each order, where start is the first position at which it
    differs from 0..L − 1.
    """
    arch, ids = arch_to_change(llm), tokenize(llm, prompts)
    long_enough(ids, 2, "a loss")
    wanted = _orders(orders, arch.n_layers)
    how = {"remote": remote, "over": "prompts", "gives": "P K: loss kl top1"}
    found = run(measure_block_orders, llm, arch, ids, wanted, budget, **how)
    one_token_loss_to_nan(found, ids)
    longest = max(map(len, wanted))
    padded = torch.tensor([[*order, *[-1] * (longest - len(order))] for order in wanted], dtype=torch.float32)
    by_prompt = {f"order_{key}": value for key, value in found.items()}
    return Result(  # without llm: its axis is not the layers
        "block_orders",
        over_prompts(by_prompt) | {"orders": padded, "n_layers": torch.tensor([arch.n_layers], dtype=torch.float32)},
    )


def _orders(orders, n_layers):
    """The orders as lists of block numbers."""
    if not isinstance(orders, str):
        return checked_orders(orders, n_layers)
    names = orders.split()
    if not names or not {*names} <= {*KINDS}:
        raise ValueError(f"orders must be lists of block numbers, or some of {', '.join(KINDS)}, got {orders!r}")
    found = [order for name in names for order in orders_of(name, n_layers)]
    if not found:
        raise ValueError(
            f"a model of {n_layers} blocks has no {' or '.join(names)} of default size; pass lists of block numbers"
        )
    return found


def measure_block_orders(llm, arch, prompts, orders, budget):
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
    return stacked(results)


def order_damage(stream, orders, read=None):
    """‖y − ȳ‖₂, KL, loss and whether the top token changes [4, K, len(read)], of each order.

    read: the positions (default: all).
    """
    read = range(len(stream.ids)) if read is None else read
    rows = []
    for order in orders:
        start = next((place for place, l in enumerate(order) if l != place), len(order))
        rows.append(Row(start, order[start:], read))
    return torch.stack(output_changes(stream, rows, damage=True), dim=1)


def damage_of_prompt(damage):
    """`loss`, `kl` and `top1` [K] of what `order_damage` found at all tokens of a prompt [4, K, T]."""
    _, kl, loss, top_changes = damage  # the last token has a loss of 0, as nothing follows it
    return {"loss": loss.sum(-1) / max(1, loss.shape[-1] - 1), "kl": kl.mean(-1), "top1": 1 - top_changes.mean(-1)}
