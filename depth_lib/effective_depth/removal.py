"""How many consecutive blocks a model can do without, and how much of its depth that leaves."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .intervals import DRAWS, FEWEST_PROMPTS, SEED, UPPER, bootstrap_curves, widening
from .rules import AT_MOST, as_array, most_removed


@dataclass(frozen=True)
class Removable:
    """n blocks from block s on (0 and None: none) raise the loss by `loss` nats per token; low, high: the 95 %
    confidence interval of n over prompts, None for fewer than 3 prompts; ratio: the depth that stays, (L − n) / L."""

    n: int
    s: int | None
    loss: float
    low: int | None
    high: int | None
    ratio: float


def removable(result: Mapping, at_most: float = AT_MOST, of: float = 1.0) -> Removable:
    """The largest number of consecutive blocks that can be removed for a rise of the loss of at most `at_most`.

    result: what `block_removal` returns of whole blocks; only its sizes are considered. at_most: nats per token, or a
    share of `of` nats, such as how much higher the loss of a unigram model is than the full model's. For each n the
    cheapest start counts, chosen on these prompts, which favours removal. The interval ends at the largest n of which
    any start surely costs no more, and at the largest of which any possibly does, by each start's own basic bootstrap
    interval over prompts (as in `effective_depth/intervals.py`). KeyError for the result of a part.
    """
    loss, sizes = as_array(result["removal_loss"]), as_array(result["removal_sizes"]).astype(int)
    n = most_removed(loss, sizes, at_most * of)
    s, rise = None, 0.0
    if n:
        (of_size,) = loss[sizes == n]
        s, rise = int(np.nanargmin(of_size)), float(np.nanmin(of_size))
    low = high = None
    by_prompt = as_array(result["removal_loss_by_prompt"]).astype(float)
    if len(by_prompt) >= FEWEST_PROMPTS:
        _, drawn = bootstrap_curves(by_prompt.reshape(len(by_prompt), -1), np.ones(len(by_prompt)), DRAWS, SEED)
        deviations = widening(len(by_prompt)) * (drawn.reshape(-1, *loss.shape) - loss)
        ends = loss - np.quantile(deviations, (1 - UPPER, UPPER), axis=0)
        low, high = (most_removed(end, sizes, at_most * of) for end in ends)
    n_layers = loss.shape[1]
    return Removable(n, s, rise, low, high, (n_layers - n) / n_layers)
