"""How many consecutive blocks can be removed, and how much of the depth is left."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .intervals import DRAWS, FEWEST_PROMPTS, SEED, UPPER, student
from .rules import AT_MOST, as_array, most_removed


@dataclass(frozen=True, repr=False)
class Removable:
    """Removing n of n_layers blocks from block s on raises the loss by `loss` nats per token, at most `at_most` (n 0,
    s None: none; then `loss` is the least that any costs); low, high: the 95 % confidence interval of n over prompts,
    None for fewer than 3 prompts; sizes: the numbers of blocks that were tried. As text it is a sentence, and
    `remove_blocks` takes it."""

    n: int
    s: int | None
    loss: float
    low: int | None
    high: int | None
    n_layers: int
    at_most: float
    sizes: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """The depth that stays, (L − n) / L."""
        return (self.n_layers - self.n) / self.n_layers

    def __repr__(self) -> str:
        """Which blocks can go, and for how much."""
        tried = "all" if len(self.sizes) == self.n_layers - 1 else ", ".join(map(str, self.sizes))
        interval = "" if self.low is None else f" (95 % interval: {self.low} to {self.high} blocks)"
        what = f"None of {self.n_layers} blocks", "the cheapest costs"
        if self.s is not None:
            which = f"block {self.s}" if self.n == 1 else f"{self.s} to {self.s + self.n - 1}"
            what = f"{self.n} of {self.n_layers} blocks, {which},", "it costs" if self.n == 1 else "they cost"
        said = f"{what[0]} can go for {self.at_most:g} nats per token{interval}: {what[1]} {self.loss:.3f}"
        untried = self.n + 1 < self.n_layers and self.n + 1 not in self.sizes
        more = f', not {self.n + 1} (sizes="all" tries it)' if untried else ""
        return f"{said}; sizes tried: {tried}{more}"


def removable(result: Mapping, at_most: float = AT_MOST) -> Removable:
    """The largest number of consecutive blocks that can be removed for a rise of the loss of at most `at_most`.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.removable(dl.block_removal(llm, prompts, sizes=[1, 2]), at_most=9).n
    2

    result: what `block_removal` returns of whole blocks; only its sizes are considered. at_most: nats per token.
    For each n the cheapest start counts, chosen on these prompts, which favours removal.

    The interval begins at the largest n of which any start surely costs no more, and ends at the largest of which any
    possibly does. Surely: by the upper ends of a band that covers the losses of all n and s at once, since the cheapest
    of many starts may be cheap by chance; possibly: by Student's interval of each loss. ValueError for any other
    result.
    Cost: no forward pass; 2,000 rotations for the interval.
    """
    if not {"removal_loss", "removal_sizes", "removal_loss_by_prompt"} <= result.keys():
        raise ValueError("blocks that can go are read from what dl.block_removal(llm, prompts) returned; give that.")
    loss, sizes = as_array(result["removal_loss"]), as_array(result["removal_sizes"]).astype(int)
    n = most_removed(loss, sizes, at_most)
    s, rise = None, float(np.nanmin(loss))
    if n:
        (of_size,) = loss[sizes == n]
        s, rise = int(np.nanargmin(of_size)), float(np.nanmin(of_size))
    low = high = None
    by_prompt = as_array(result["removal_loss_by_prompt"]).astype(float)
    if len(by_prompt) >= FEWEST_PROMPTS:
        errors = by_prompt.std(0, ddof=1) / np.sqrt(len(by_prompt))
        ends = loss + _errors_at_once(by_prompt) * errors, loss - student(len(by_prompt) - 1) * errors
        low, high = (most_removed(end, sizes, at_most) for end in ends)
    return Removable(n, s, rise, low, high, loss.shape[1], at_most, tuple(sizes.tolist()))


def _errors_at_once(by_prompt: np.ndarray) -> float:
    """How many standard errors above the means over prompts [P, N, L] a 97.5 % upper bound of all of them at once is.

    The quantile of the largest of correlated t statistics, by a rotation test: with normal noise each statistic is
    √(P − 1) times the cotangent of the angle between the residuals and a random direction. Where all starts have the
    same noise it is Student's. Source: Langsrud 2005, Rotation tests, Statistics and Computing 15.
    """
    n_prompts = len(by_prompt)
    residuals = (by_prompt - by_prompt.mean(0)).reshape(n_prompts, -1)
    residuals = residuals[:, residuals.any(0) & np.isfinite(residuals[0])]
    directions = np.random.default_rng(SEED).standard_normal((DRAWS, n_prompts))
    cosines = (directions @ (residuals / np.linalg.norm(residuals, axis=0))).max(1, initial=0)
    cosine = np.quantile(cosines / np.linalg.norm(directions, axis=1), UPPER)
    return cosine * np.sqrt((n_prompts - 1) / (1 - cosine**2))
