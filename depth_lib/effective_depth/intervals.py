"""Bootstrap confidence intervals of depths over prompts.

An effective depth is the first or last layer at which noisy curves cross a threshold, so it jumps. Its percentile
bootstrap misses the true depth: noise makes a curve cross too early, and resampling adds noise. So the curve's gap to
the threshold is resampled at each layer instead (the basic bootstrap: Davison & Hinkley 1997, Bootstrap Methods and
their Application, section 5.2). The depth's interval begins at the first layer where the gap's 95 % interval includes
values beyond zero, and ends at the first where it includes no others.

Deviations of resampled curves are widened by sqrt(P / (P - 1)) · t(P - 1) / z, without which the bootstrap is too
narrow for few prompts (Hesterberg 2015, What Teachers Should Know about the Bootstrap, section 4.1).

A depth score is a ratio of two means, skewed where examples are. Its interval is the studentised bootstrap (Davison &
Hinkley, section 5.2.1), with quantiles no narrower than Student's.

How often these intervals cover the truth in simulations: docs/coverage.md, written by
`python -m tests.effective_depth.coverage`.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from ..params import not_among
from .rules import METRICS, PAPER_METRICS, Metric

DRAWS, LEVEL, SEED = 2000, 0.95, 0
UPPER = (1 + LEVEL) / 2  # the quantile at which an interval ends
FEWEST_PROMPTS = 3
_Z = float(ndtri(UPPER))


class NoInterval(Exception):
    """There is nothing to compute an interval from; the message says what is missing."""


@dataclass(frozen=True)
class DepthInterval:
    """A 95 % confidence interval of a metric's effective depth over prompts.

    low, high: its first and last layer; None: the interval includes curves that cross nowhere, so this end is open.
    same: the fraction of plain bootstrap draws with the effective depth of all prompts together; without: the fraction
    with none. n_prompts: how many prompts were resampled.
    """

    low: int | None
    high: int | None
    same: float
    without: float
    n_prompts: int


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval over prompts or examples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def depth_interval(result: Mapping, metric: str, draws: int = DRAWS) -> DepthInterval:
    """The 95 % bootstrap interval over prompts of one effective depth, and how many draws have the same depth.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.depth_interval(dl.logit_lens(llm, prompts), "kl")
    DepthInterval(low=1, high=2, same=1.0, without=0.0, n_prompts=3)

    result: what `load_artifact` or a probe returns, with `<key>_sums` [P, L] and `n_tokens` [P]; metric: "cosine", "kl"
    or "overlap". Identical prompts give low = high. ValueError for another metric or another probe's result, NoInterval
    if there are no per-prompt sums (the papers' own files), fewer than 3 prompts, values that are not finite, or no
    signal (`Metric.no_signal`). Method, sources and coverage: this module's docstring.
    Cost: no forward pass; `draws` means over prompts.
    """
    if problem := not_among(PAPER_METRICS, "metric", metric):
        raise ValueError(problem)
    rule = METRICS[metric]
    if not any(key.startswith(rule.keys) for key in result):
        rule.arguments(result)  # which says whose result it should be
    if reason := rule.no_signal(result):
        raise NoInterval(reason)
    gap, drawn_gaps, n_prompts = bootstrap_gaps(result, rule, draws)
    (depth,), drawn_depths = rule.depths(gap[None]), rule.depths(drawn_gaps)
    band = basic_interval(gap, widening(n_prompts) * (drawn_gaps - gap), 1 - UPPER)
    possible = [depth, *possible_depths(rule, *band)]
    nowhere = (-1, len(gap) - 1)
    low, high = (None if end in nowhere else int(end) for end in (min(possible), max(possible)))
    return DepthInterval(
        low=low,
        high=high,
        same=float((drawn_depths == depth).mean()),
        without=float(np.isin(drawn_depths, nowhere).mean()),
        n_prompts=n_prompts,
    )


def bootstrap_gaps(result: Mapping, rule: Metric, draws: int = DRAWS) -> tuple[np.ndarray, np.ndarray, int]:
    """The gap of the curve of all prompts [L], those of the draws [draws, L], and the number of prompts.

    NoInterval without sums per prompt, of too few prompts, or of values that are not finite.
    """
    try:
        sums = rule.curve([np.asarray(result[f"{key}_sums"], dtype=float) for key in rule.keys])
        n_tokens = np.asarray(result["n_tokens"], dtype=float)
    except KeyError:
        raise NoInterval("no per-prompt sums in the file (not written by depth_lib)") from None
    if len(n_tokens) < FEWEST_PROMPTS:
        raise NoInterval(f"too few prompts to resample: {len(n_tokens)}; run {FEWEST_PROMPTS} or more")
    if not np.isfinite(sums).all():
        raise NoInterval("per-prompt sums that are not finite; run the probe again")
    gap, drawn = (rule.gap(curves).astype(float) for curves in bootstrap_curves(sums, n_tokens, draws))
    return gap, drawn, len(n_tokens)


def basic_interval(values: np.ndarray, deviations: np.ndarray, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the basic bootstrap intervals of values, from the deviations [draws, ...] of their draws."""
    below, above = np.quantile(deviations, (tail, 1 - tail), axis=0)
    return values - above, values - below


def bootstrap_curves(sums: np.ndarray, n_tokens: np.ndarray, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """The token-pooled mean curve [L] of all prompts, and [draws, L] those of prompts drawn with replacement."""
    times = _times_drawn(len(n_tokens), draws)
    # In float32, as the stored means: a mean of exactly 0.3 must not be above 0.3 here and below it there.
    pooled = ((times @ sums) / (times @ n_tokens)[:, None]).astype(np.float32)
    return (sums.sum(0) / n_tokens.sum()).astype(np.float32), pooled


def centre_of_mass(profiles: np.ndarray) -> Estimate:
    """The centre of mass over layers of the mean profile, with its interval over prompts or examples.

    profiles [N, L], none negative: the effect of each layer in each prompt. Of 3 prompts the interval covers nearly
    every layer. NoInterval as in `with_effect`.
    """
    affected = with_effect(profiles, "prompts")
    return studentised(*drawn_centres(affected), len(affected), (0, profiles.shape[1] - 1))


def with_effect(profiles: np.ndarray, what: str) -> np.ndarray:
    """The profiles in which any layer has an effect; the others do not move the centre. NoInterval for fewer than 3."""
    affected = profiles[profiles.any(1)]
    if len(affected) < FEWEST_PROMPTS:
        raise NoInterval(f"too few {what} with an effect: {len(affected)}; run {FEWEST_PROMPTS} or more")
    return affected


def drawn_centres(profiles: np.ndarray, draws: int = DRAWS, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Centres of mass and their standard errors, each [1 + draws]: of all profiles [N, L] first, then of each draw.

    The centre is the ratio of two sums over examples, Σ_s s·e_s and Σ_s e_s; its standard error is linearised.
    """
    n = len(profiles)
    times = np.vstack([np.ones((1, n)), _times_drawn(n, draws, seed)])
    moment, mass = profiles @ np.arange(profiles.shape[1]), profiles.sum(1)
    total = times @ mass
    centre = (times @ moment) / total
    squares = times @ moment**2 - 2 * centre * (times @ (moment * mass)) + centre**2 * (times @ mass**2)
    squares[squares <= 1e-12 * (times @ moment**2)] = 0  # what is left of rounding
    return centre, np.sqrt(squares * n / (n - 1)) / total


def studentised(centres: np.ndarray, errors: np.ndarray, n: int, limits: tuple[float, float]) -> Estimate:
    """The studentised bootstrap interval, within limits, of the first of these values; the others are its draws.

    n: how many examples were drawn from. The quantiles are at least Student's: few examples, drawn, look alike.
    """
    value, error = float(centres[0]), float(errors[0])
    if error == 0:
        return Estimate(value, value, value)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = (centres[1:] - value) / errors[1:]
    deviations[np.isnan(deviations)] = 0
    below, above = np.quantile(deviations, (1 - UPPER, UPPER), method="inverted_cdf")
    least = student(n - 1)
    low, high = value - max(above, least) * error, value - min(below, -least) * error
    return Estimate(value, max(low, limits[0]), min(high, limits[1]))


def widening(n_prompts: int) -> float:
    """sqrt(P / (P - 1)) · t / z: how much wider than its draws an interval from P prompts is."""
    return math.sqrt(n_prompts / (n_prompts - 1)) * student(n_prompts - 1) / _Z


def student(v: int) -> float:
    """Student's upper quantile for v degrees of freedom."""
    return float(stdtrit(v, UPPER))


@functools.lru_cache(8)
def _times_drawn(n: int, draws: int, seed: int = SEED) -> np.ndarray:
    """How often each of n prompts is in each draw with replacement, [draws, n]."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), draws)


def possible_depths(rule: Metric, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Layers that the depth may be, numbered as in `Metric.depths`: the first and the last of them matter.

    low, high [L]: the ends of the band of the gap.
    """
    if not rule.turns:
        return rule.depths(np.stack([low, high]))
    surely_above, surely_below = np.flatnonzero(low >= 0), high < 0
    earliest = max(np.flatnonzero(surely_below[: max(surely_above, default=0)]), default=-1)
    turns = (low[:-1] < 0) & (high[1:] >= 0)
    possible = np.flatnonzero(np.array([(high >= 0).all(), *turns, earliest < 0 and low[-1] < 0])) - 1
    return possible[possible >= earliest]
