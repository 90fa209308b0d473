"""What a result of `block_orders` says of each stretch of blocks that is repeated, reversed or removed."""

from collections.abc import Mapping

import pandas as pd

from ..data.orders import removals, repeats, reversals
from ..results.study import Study
from .rules import AT_MOST, as_array


def order_losses(result: Mapping) -> pd.DataFrame:
    """A row per order that changes one stretch of n blocks from s on: kind ("removals", "repeats",
    "reversals"; a reversal of n = 2 is a swap), s, n, and loss, the mean rise of the next token's loss in nats. Other
    orders are left out."""
    orders, stretches, n_layers = as_array(result["orders"]).astype(int), {}, _n_layers(result)
    for make in (removals, repeats, reversals):
        for n in range(1, n_layers):
            stretches |= {tuple(order): (make.__name__, s, n) for s, order in enumerate(make(n_layers, [n]))}
    losses = {tuple(row[row >= 0]): loss for row, loss in zip(orders, as_array(result["order_loss"]), strict=True)}
    rows = [(*stretches[order], loss) for order, loss in losses.items() if order in stretches]
    return pd.DataFrame(rows, columns=["kind", "s", "n", "loss"])


def loss_map(result: Mapping, kind: str) -> pd.DataFrame:
    """The losses of one kind, a row per n that was tried and a column per s; NaN where there is no such stretch."""
    losses = order_losses(result)
    losses = losses[losses.kind == kind].pivot(index="n", columns="s", values="loss")
    return losses.reindex(columns=range(_n_layers(result)))


def _n_layers(result):
    """Of the model; results of before it was stored have an order with the last block."""
    return int(result["n_layers"][0]) if "n_layers" in result else int(as_array(result["orders"]).max()) + 1


def stretches(study: Study) -> pd.DataFrame:
    """The largest stretch of each run that may be reversed, for at most 0.05 nats, and the best one to repeat: columns
    model, dataset, stretch, s, n, loss."""
    frames = [pd.DataFrame(columns=["model", "dataset", "stretch", "s", "n", "loss"])]
    for (dataset, model), result in study.of("block_orders").items():
        losses = order_losses(result).sort_values("loss")
        free = losses[(losses.kind == "reversals") & (losses.loss <= AT_MOST)].nlargest(1, "n")
        best = losses[losses.kind == "repeats"].head(1)
        both = pd.concat([free.assign(stretch="largest reversed"), best.assign(stretch="best repeated")])
        frames.append(both.assign(model=model, dataset=dataset)[frames[0].columns])
    return pd.concat(frames[1:] or frames, ignore_index=True)
