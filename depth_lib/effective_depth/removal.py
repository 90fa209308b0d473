"""How many consecutive blocks can be removed, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..data.orders import AT_MOST
from ..results.result import fitting
from .intervals import FEWEST, Estimate, half_width
from .rules import as_array, without_gain


@dataclass
class Removable:
    """The blocks that can be removed. Printing it gives a sentence; pass it to `remove_blocks` as `s`.

    - n, s: blocks s to s + n - 1 can be removed; if no block can be, n is 0 and s is None
    - loss: the rise in nats per token on the prompts that were not used to choose the blocks, with its 95% confidence
      interval. If no block can be removed, it is that of the cheapest removal, without an interval (NaN)
    - n_layers: blocks of the model
    - at_most: the allowed rise, nats per token
    - note: why the answer is unknown, or which number of blocks was not tried, or ""
    """

    n: int
    s: int | None
    n_layers: int
    loss: Estimate
    at_most: float
    note: str = ""

    def __repr__(self) -> str:
        if np.isnan(self.loss.value):
            more = "Use more prompts, similar to the model's training data"
            return f"Cannot determine which blocks can be removed: {self.note}. {more}"
        digits = 4 if self.s is None else 3  # so that a cost just above `at_most` does not look like it
        ends = "" if np.isnan(self.loss.low) else f" [{self.loss.low:.{digits}f}, {self.loss.high:.{digits}f}]"
        cost = f"{self.loss.value:.{digits}f}{ends} nats per token"
        note = f". {self.note}" * bool(self.note)
        if self.s is None:
            none = "None of the sizes tried" if note else "No block"
            return f"{none} can be removed for {self.at_most:g} nats per token: the cheapest removal costs {cost}{note}"
        which = blocks_named(self.s, self.n).capitalize()
        return f"{which} ({self.n} of {self.n_layers}) can be removed at a cost of {cost}{note}"


def blocks_named(s: int, n: int) -> str:
    """The blocks s to s + n - 1: "block 3", "blocks 3 and 4" or "blocks 3 to 5"."""
    return f"block {s}" if n == 1 else f"blocks {s} {'and' if n == 2 else 'to'} {s + n - 1}"


def removable(result: Mapping, at_most: float = AT_MOST) -> Removable:
    """The largest number of consecutive blocks whose removal raises the loss by at most `at_most`.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.removable(dl.block_removal(llm, prompts, sizes=[1, 2]), at_most=9).n
    2

    The blocks are chosen using every second prompt, and the loss without them is measured on the others, so that the
    choice does not bias the result.

    - result: from `block_removal`, of whole blocks
    - at_most: nats per token

    Returns a Removable. Its n is 0 if no removal is cheap enough. It is also 0 if the model predicts the prompts
    little better than the same tokens in shuffled order: by less than 0.5 nats per token. It is also 0 if fewer than
    two prompts have at least two tokens, because a one-token prompt has no loss. If removing n + 1 blocks was not
    tried, its note says so; for limits other than 0.05, pass sizes="all" to `block_removal`.

    Raises ValueError for any other result.
    Cost: no forward pass.
    """
    if not {"removal_sizes", "removal_loss_by_prompt"} <= result.keys():
        raise ValueError("removable needs a block_removal result for whole blocks: dl.block_removal(llm, prompts)")
    by_prompt = as_array(fitting(result)["removal_loss_by_prompt"]).astype(float)
    by_prompt = by_prompt[np.isfinite(by_prompt).any((1, 2))]  # nothing predicts a prompt of one token
    sizes, n_layers = as_array(result["removal_sizes"]).astype(int), by_prompt.shape[-1]
    note = without_gain(result).removeprefix("no reliable depth: ")

    if not note and (n := len(by_prompt)) < 2:
        note = f"at least two prompts of two or more tokens are needed (one to choose, one to measure), got {n}"
    if note:
        return Removable(0, None, n_layers, Estimate(np.nan, np.nan, np.nan), at_most, note)
    losses = by_prompt[::2].mean(0)
    cheapest = np.nanmin(losses, 1)
    affordable = np.flatnonzero(cheapest <= at_most)
    row = affordable[sizes[affordable].argmax()] if affordable.size else int(cheapest.argmin())
    s = int(np.nanargmin(losses[row]))
    of_prompts = by_prompt[1::2, row, s]
    value, half = of_prompts.mean(), np.nan
    if len(of_prompts) >= FEWEST and np.ptp(of_prompts):
        half = half_width((of_prompts.sum() - of_prompts) / (len(of_prompts) - 1))
    n, loss = int(sizes[row]), Estimate(float(value), float(value - half), float(value + half))
    if not affordable.size:
        n, loss = 0, Estimate(float(cheapest.min()), np.nan, np.nan)  # the cost that decided
    if min(sizes[sizes > n], default=n_layers) > n + 1:
        note = f'Removing {n + 1} was not tried; use dl.block_removal(llm, prompts, sizes="all")'
    return Removable(n, s if n else None, n_layers, loss, at_most, note)
