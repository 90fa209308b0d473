"""What a result of `block_orders` says of each stretch of blocks that is repeated, reversed or removed."""

from collections.abc import Mapping

import pandas as pd

from .rules import as_array


def order_losses(result: Mapping) -> pd.DataFrame:
    """A row per order that changes one stretch of n blocks from s on: kind ("repeat", "reversal", which of n = 2 is a
    swap, or "removal"), s, n, and loss, the mean rise of the next token's loss in nats. Other orders are left out."""
    orders = [[int(l) for l in row if l >= 0] for row in as_array(result["orders"])]
    n_layers, rows = max(map(max, orders)) + 1, []
    for order, loss in zip(orders, as_array(result["order_loss"]), strict=True):
        same = next((place for place, l in enumerate(order) if l != place), len(order))
        n = abs(len(order) - n_layers)
        if len(order) < n_layers:
            kind, s, changed = "removal", same, [*range(same), *range(same + n, n_layers)]
        elif n:
            kind, s, changed = "repeat", same - n, [*range(same), *range(same - n, n_layers)]
        else:
            kind, s, n = "reversal", same, order[same] + 1 - same if same < n_layers else 0
            changed = [*range(s), *range(s, s + n)[::-1], *range(s + n, n_layers)]
        if n and order == changed:
            rows.append((kind, s, n, loss))
    return pd.DataFrame(rows, columns=["kind", "s", "n", "loss"])


def loss_map(result: Mapping, kind: str) -> pd.DataFrame:
    """The losses of one kind, a row per n that was tried and a column per s; NaN where there is no such stretch."""
    losses = order_losses(result)
    n_layers = int(as_array(result["orders"]).max()) + 1
    return losses[losses.kind == kind].pivot(index="n", columns="s", values="loss").reindex(columns=range(n_layers))
