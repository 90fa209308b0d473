"""How far a depth can be trusted: bootstrap intervals over prompts.

An effective depth jumps: it is the first or last layer at which noisy curves cross. The percentile bootstrap fails
there: noise makes a curve cross too early, resampling adds noise, so resamples cross earlier still, and the interval
misses the true depth.
So the interval holds every layer that the prompts do not rule out:

- it begins at the first layer that may satisfy the rule: its own 95 % bootstrap interval reaches across the threshold;
- it ends at the first layer that surely does: it crosses even in the worst case over all layers at once, by the
  bootstrap distribution of the largest studentised deviation (a simultaneous band: Beran 1988, Balanced simultaneous
  confidence sets; Davison & Hinkley 1997, Bootstrap Methods and their Application, section 4.2.4).

Deviations of resampled curves are widened by sqrt(P / (P - 1)) · t(P - 1) / z, without which the bootstrap is too
narrow for few prompts (Hesterberg 2015, What Teachers Should Know about the Bootstrap, section 4.1). In simulations
these intervals held the truth more often than in 95 % of cases, mostly in 98 to 99.7 %: they are "at least 95 %".

A depth score is a ratio of two means, skewed where examples are. Its interval is the studentised bootstrap (Davison &
Hinkley, section 5.2.1), with quantiles no narrower than Student's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .rules import METRICS, holds

DRAWS, LEVEL, SEED = 2000, 0.95, 0
UPPER = (1 + LEVEL) / 2  # the quantile at which an interval ends
FEWEST_PROMPTS = 3


class NoInterval(Exception):
    """There is nothing to compute an interval from; the message says what is missing."""


@dataclass(frozen=True)
class DepthInterval:
    """The layers that a metric's effective depth may be, given the prompts.

    low, high: the first and last of them; None where no effective depth at all fits the prompts too (a curve that
    crosses nowhere), so that this end is open. same: the share of plain bootstrap draws with the effective depth that
    all prompts give; without: the share with none. n_prompts: how many prompts were resampled.
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


def depth_interval(result: Mapping, metric: str, draws: int = DRAWS, seed: int = SEED) -> DepthInterval:
    """The bootstrap interval over prompts of one effective depth (at least 95 %), and how often draws keep the depth.

    result: what `load_artifact` or a probe returns, with `<key>_sums` [P, L] and `n_tokens` [P]; metric: "cosine", "kl"
    or "overlap". Identical prompts give low = high. NoInterval if there are no per-prompt sums (the papers' own files),
    fewer than 3 prompts, or values that are not finite. Method and sources: this module's docstring.
    """
    sums, n_tokens = _per_prompt(result, metric)
    n_prompts, n_layers = sums.shape
    curve, drawn = bootstrap_curves(sums, n_tokens, draws, seed)
    depth, drawn_depths = depths_of(metric, curve[None])[0], depths_of(metric, drawn)
    deviations = widening(n_prompts) * (drawn.astype(float) - curve)
    if metric == "cosine":
        first, last = _cosine_span(curve.astype(float), deviations)
    else:
        first, last = _crossing_span(metric, curve.astype(float), deviations)
    first, last = min(first, depth), max(last, depth)
    nowhere = (-1, n_layers - 1)
    return DepthInterval(
        low=None if first in nowhere else int(first),
        high=None if last in nowhere else int(last),
        same=float((drawn_depths == depth).mean()),
        without=float(np.isin(drawn_depths, nowhere).mean()),
        n_prompts=n_prompts,
    )


def bootstrap_curves(sums: np.ndarray, n_tokens: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The token-pooled mean curve [L] of all prompts, and [draws, L] those of prompts drawn with replacement."""
    times = _times_drawn(len(n_tokens), draws, seed)
    # In float32, as the stored means: a mean of exactly 0.3 must not be above 0.3 here and below it there.
    pooled = ((times @ sums) / (times @ n_tokens)[:, None]).astype(np.float32)
    return (sums.sum(0) / n_tokens.sum()).astype(np.float32), pooled


def depths_of(metric: str, curves: np.ndarray) -> np.ndarray:
    """The effective depth of each curve [N, L] by the rule of `metric`; where there is none, a layer beyond the rule.

    That is -1 if the cosine never is negative, else L-1: the curve crosses no earlier than at the last layer.
    """
    satisfied = holds(metric, curves, METRICS[metric].threshold or 0)
    layers, beyond = np.arange(satisfied.shape[1]), satisfied.shape[1]
    if metric == "cosine":
        last = np.where(satisfied, layers, -1).max(1, initial=-1)
        return np.where((last < 0) & (curves < 0).any(1), beyond, last)
    return np.where(satisfied, layers, beyond).min(1, initial=beyond)


def centre_of_mass(profiles: np.ndarray, draws: int = DRAWS, seed: int = SEED) -> Estimate:
    """The centre of mass over layers of the mean profile, with its interval over prompts or examples.

    profiles [N, L], none negative: the effect of each layer in each prompt. In simulations of 5 to 20 prompts the
    interval held the truth in 92 to 96 % of cases, skewed or not; of 3 prompts it holds nearly every layer.
    NoInterval as in `with_effect`.
    """
    affected = with_effect(profiles, "prompts")
    return studentised(*drawn_centres(affected, draws, seed), len(affected), (0, profiles.shape[1] - 1))


def with_effect(profiles: np.ndarray, what: str) -> np.ndarray:
    """The profiles in which any layer has an effect; the others do not move the centre. NoInterval for fewer than 3."""
    affected = profiles[profiles.any(1)]
    if len(affected) < FEWEST_PROMPTS:
        raise NoInterval(f"{len(affected)} {what} with an effect are too few; run {FEWEST_PROMPTS} or more")
    return affected


def drawn_centres(profiles: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres of mass and their standard errors, each [1 + draws]: of all profiles [N, L] first, then of each draw.

    The centre is the ratio of two sums over examples, Σ_s s·e_s and Σ_s e_s; its standard error is linearised.
    """
    n = len(profiles)
    times = np.vstack([np.ones((1, n)), _times_drawn(n, draws, seed)])
    moment, mass = profiles @ np.arange(profiles.shape[1]), profiles.sum(1)
    total = times @ mass
    centre = (times @ moment) / total
    squares = times @ moment**2 - 2 * centre * (times @ (moment * mass)) + centre**2 * (times @ mass**2)
    squares = np.where(squares > 1e-12 * (times @ moment**2), squares, 0)  # what is left of rounding
    return centre, np.sqrt(squares * n / (n - 1)) / total


def studentised(centres: np.ndarray, errors: np.ndarray, n: int, limits: tuple[float, float]) -> Estimate:
    """The studentised bootstrap interval, within limits, of the first of these values; the others are its draws.

    n: how many examples were drawn from. The quantiles are at least Student's: few examples, drawn, look alike.
    """
    value, error = float(centres[0]), float(errors[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.nan_to_num((centres[1:] - value) / errors[1:], nan=0, posinf=np.inf, neginf=-np.inf)
    below, above = np.quantile(deviations, (1 - UPPER, UPPER), method="inverted_cdf")
    student = _student(n - 1)
    if error == 0:
        return Estimate(value, value, value)
    low, high = value - max(above, student) * error, value - min(below, -student) * error
    return Estimate(value, max(low, min(limits)), min(high, max(limits)))


def widening(n_prompts: int) -> float:
    """sqrt(P / (P - 1)) · t / z: how much wider than its draws an interval from P prompts is."""
    return math.sqrt(n_prompts / (n_prompts - 1)) * _student(n_prompts - 1) / NormalDist().inv_cdf(UPPER)


def _student(v: int) -> float:
    """Student's upper quantile for v degrees of freedom, by its expansion in z (Abramowitz & Stegun 1964, 26.7.5)."""
    z = NormalDist().inv_cdf(UPPER)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def _times_drawn(n: int, draws: int, seed: int) -> np.ndarray:
    """How often each of n prompts is in each draw with replacement, [draws, n]."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), draws)


def _crossing_span(metric: str, curve: np.ndarray, deviations: np.ndarray) -> tuple[int, int]:
    """The first layer that may have crossed and the first that surely has, [L] and [draws, L] given."""
    threshold = METRICS[metric].threshold
    if metric == "overlap":
        gaps = (float(np.float32(threshold)) - curve)[:, None]  # negative where crossed
        gap_deviations = -deviations[:, :, None]
    else:  # below half of the maximum is below half of some layer: of those that are the maximum in any draw
        peaks = np.unique((curve + deviations).argmax(1))
        gaps = curve[:, None] - threshold * curve[peaks]
        gap_deviations = deviations[:, :, None] - threshold * deviations[:, None, peaks]
    may_cross = (gaps - np.quantile(gap_deviations, UPPER, axis=0) < 0).any(1)
    spread, down, _ = _simultaneous(gap_deviations)
    surely_crosses = (gaps + down * spread < 0).any(1)
    may_cross[-1] = surely_crosses[-1] = True
    return int(may_cross.argmax()), int(surely_crosses.argmax())


def _cosine_span(curve: np.ndarray, deviations: np.ndarray) -> tuple[int, int]:
    """The first and last layer after which the last turn from below zero may lie."""
    may_be_negative = curve - np.quantile(deviations, UPPER, axis=0) < 0
    may_be_positive = curve - np.quantile(deviations, 1 - UPPER, axis=0) >= 0
    spread, down, up = _simultaneous(deviations)
    negative, positive = curve + down * spread < 0, curve - up * spread >= 0
    positive_later = np.append(np.maximum.accumulate(positive[::-1])[::-1][1:], False)
    turned_after = np.flatnonzero(negative & positive_later)  # a turn surely lies at or after each of these
    earliest = turned_after[-1] if len(turned_after) else -1
    turns = np.flatnonzero(may_be_negative[:-1] & may_be_positive[1:])
    turns = list(turns[turns >= earliest])
    if may_be_positive.all():
        turns.append(-1)
    if earliest < 0 and may_be_negative[-1]:
        turns.append(len(curve) - 1)
    return (int(min(turns)), int(max(turns))) if turns else (len(curve), -1)


def _simultaneous(deviations: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The standard error at each place, and how many of them a simultaneous band reaches down and up."""
    spread = np.sqrt((deviations**2).mean(0))
    in_errors = np.divide(deviations, spread, out=np.zeros_like(deviations), where=spread > 0)
    in_errors = in_errors.reshape(len(deviations), -1)
    return spread, float(np.quantile(-in_errors.min(1), UPPER)), float(np.quantile(in_errors.max(1), UPPER))


def _per_prompt(result: Mapping, metric: str) -> tuple[np.ndarray, np.ndarray]:
    keys = METRICS[metric].keys
    if "n_tokens" not in result or not all(f"{key}_sums" in result for key in keys):
        raise NoInterval("no per-prompt sums in the file (not written by depth_lib)")
    sums = np.mean([np.asarray(result[f"{key}_sums"], dtype=float) for key in keys], axis=0)
    n_tokens = np.asarray(result["n_tokens"], dtype=float)
    if len(n_tokens) < FEWEST_PROMPTS:
        raise NoInterval(f"{len(n_tokens)} prompts are too few to resample; run {FEWEST_PROMPTS} or more")
    if not (np.isfinite(sums).all() and (n_tokens > 0).all()):
        raise NoInterval("per-prompt sums that are not finite; run the probe again")
    return sums, n_tokens
