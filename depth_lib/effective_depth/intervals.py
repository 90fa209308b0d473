"""How far an effective depth can be trusted: bootstrap intervals over prompts.

An effective depth jumps: the first or last layer at which noisy curves cross. The percentile bootstrap fails there. A
curve with noise crosses too early, its resamples, with noise twice, earlier still, and the truth lies outside
(`interval_coverage` measures it). So the interval holds every layer that the prompts do not rule out:

- it begins at the first layer that may satisfy the rule: its own 95 % bootstrap interval reaches across the threshold;
- it ends at the first layer that surely does: it crosses even in the worst case over all layers at once, by the
  bootstrap distribution of the largest studentised deviation (a simultaneous band: Beran 1988, Balanced simultaneous
  confidence sets; Davison & Hinkley 1997, Bootstrap Methods and their Application, section 4.2.4).

Deviations of resampled curves are widened by sqrt(P / (P - 1)) · t(P - 1) / z, without which the bootstrap is too
narrow for few prompts (Hesterberg 2015, What Teachers Should Know about the Bootstrap, section 4.1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .rules import METRICS

DRAWS, LEVEL, SEED = 2000, 0.95, 0
UPPER = (1 + LEVEL) / 2  # the quantile at which an interval ends
FEWEST_PROMPTS = 3


class NoInterval(Exception):
    """There is nothing to compute an interval from; the message says what is missing."""


@dataclass(frozen=True)
class DepthInterval:
    """The layers that a metric's effective depth may be, given the prompts.

    low, high: the first and last of them; None where no effective depth at all fits the prompts too (a curve that
    crosses nowhere). same: the share of plain bootstrap draws with the effective depth that all prompts give;
    without: the share with none. n_prompts: how many prompts were resampled.
    """

    low: int | None
    high: int | None
    same: float
    without: float
    n_prompts: int


def depth_interval(result: Mapping, metric: str, draws: int = DRAWS, seed: int = SEED) -> DepthInterval:
    """The 95 % bootstrap interval over prompts of one effective depth, and how often resampled prompts keep it.

    result: what `load_artifact` or a probe returns, with `<key>_sums` [P, L] and `n_tokens` [P]; metric: "cosine", "kl"
    or "overlap". Identical prompts give low = high. NoInterval if there are no per-prompt sums (the papers' own files),
    fewer than 3 prompts, or values that are not finite. Method and sources: this module's docstring.
    """
    sums, n_tokens = _per_prompt(result, metric)
    curve, drawn = bootstrap_curves(sums, n_tokens, draws, seed)
    n_prompts, n_layers = sums.shape
    depth, depths = depths_of(metric, curve[None])[0], depths_of(metric, drawn)
    widened = widening(n_prompts) * (drawn.astype(float) - curve)
    curve = curve.astype(float)
    first, last = _cosine_span(curve, widened) if metric == "cosine" else _crossing_span(metric, curve, widened)
    first, last = min(first, depth), max(last, depth)
    nothing = (-1, n_layers - 1)
    return DepthInterval(
        low=None if first in nothing else int(first),
        high=None if last in nothing else int(last),
        same=float((depths == depth).mean()),
        without=float(np.isin(depths, nothing).mean()),
        n_prompts=n_prompts,
    )


def bootstrap_curves(sums: np.ndarray, n_tokens: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The token-pooled mean curve [L] of all prompts, and [draws, L] those of prompts drawn with replacement."""
    n_prompts = len(n_tokens)
    times = np.random.default_rng(seed).multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), draws)
    # In float32, as the stored means: a mean of exactly 0.3 must not be above 0.3 here and below it there.
    pooled = ((times @ sums) / (times @ n_tokens)[:, None]).astype(np.float32)
    return (sums.sum(0) / n_tokens.sum()).astype(np.float32), pooled


def depths_of(metric: str, curves: np.ndarray) -> np.ndarray:
    """The effective depth of each curve [N, L]; L - 1 where the crossing would lie beyond, -1 where before layer 0.

    A lens that never comes near (kl, overlap) and a cosine that ends below zero have not crossed yet; a cosine that is
    never below zero has no crossing after the first layer's input.
    """
    n_layers = curves.shape[1]
    if metric == "cosine":
        hits = (curves[:, :-1] < 0) & (curves[:, 1:] >= 0)
        last = n_layers - 2 - hits[:, ::-1].argmax(1) if n_layers > 1 else np.zeros(len(curves), int)
        return np.where(hits.any(1), last, np.where(curves[:, -1] < 0, n_layers - 1, -1))
    threshold = METRICS[metric].threshold
    crossed = curves < threshold * curves.max(1, keepdims=True) if metric == "kl" else curves > threshold
    crossed[:, -1] = True
    return crossed.argmax(1)


def _crossing_span(metric: str, curve: np.ndarray, widened: np.ndarray) -> tuple[int, int]:
    """The first layer that may have crossed and the first that surely has; as gaps, negative where crossed."""
    threshold = METRICS[metric].threshold
    if metric == "overlap":
        gaps, deviations = (float(np.float32(threshold)) - curve)[:, None], -widened[:, :, None]
    else:  # below half of the maximum is below half of some layer: of those that are the maximum in any draw
        peaks = np.unique((curve + widened).argmax(1))
        gaps = curve[:, None] - threshold * curve[peaks]
        deviations = widened[:, :, None] - threshold * widened[:, None, peaks]
    may_cross = gaps - np.quantile(deviations, UPPER, axis=0) < 0
    spread, least, _ = _simultaneous(deviations)
    crosses = gaps + least * spread < 0
    found = []
    for crossed in (may_cross.any(1), crosses.any(1)):
        crossed[-1] = True
        found.append(int(crossed.argmax()))
    return found[0], found[1]


def _cosine_span(curve: np.ndarray, widened: np.ndarray) -> tuple[int, int]:
    """The first and last layer after which the last turn from below zero may lie."""
    may_be_negative = curve - np.quantile(widened, UPPER, axis=0) < 0
    may_be_positive = curve - np.quantile(widened, 1 - UPPER, axis=0) >= 0
    spread, least, most = _simultaneous(widened)
    negative, positive = curve + least * spread < 0, curve - most * spread >= 0
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
    """Each place's standard error, and how many of them the largest deviation down and up stays within."""
    spread = np.sqrt((deviations**2).mean(0))
    studentised = np.divide(deviations, spread, out=np.zeros_like(deviations), where=spread > 0)
    studentised = studentised.reshape(len(deviations), -1)
    return spread, float(np.quantile(-studentised.min(1), UPPER)), float(np.quantile(studentised.max(1), UPPER))


def _per_prompt(result: Mapping, metric: str) -> tuple[np.ndarray, np.ndarray]:
    keys = METRICS[metric].keys
    lacking = [key for key in (*(f"{key}_sums" for key in keys), "n_tokens") if key not in result]
    if lacking:
        raise NoInterval("no per-prompt sums in the file (not written by depth_lib)")
    sums = np.mean([np.asarray(result[f"{key}_sums"], dtype=float) for key in keys], axis=0)
    n_tokens = np.asarray(result["n_tokens"], dtype=float)
    if len(n_tokens) < FEWEST_PROMPTS:
        raise NoInterval(f"{len(n_tokens)} prompts are too few to resample; run {FEWEST_PROMPTS} or more")
    if not (np.isfinite(sums).all() and (n_tokens > 0).all()):
        raise NoInterval("per-prompt sums that are not finite; run the probe again")
    return sums, n_tokens


def widening(n_prompts: int) -> float:
    """sqrt(P / (P - 1)) · t / z, Student's quantile by its expansion in z (Abramowitz & Stegun 1964, 26.7.5)."""
    z, v = NormalDist().inv_cdf(UPPER), n_prompts - 1
    t = (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
    return math.sqrt(n_prompts / v) * t / z
