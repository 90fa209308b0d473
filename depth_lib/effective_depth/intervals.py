"""One interval: leave each prompt out once (the jackknife), and take Student's t for so many prompts.

The standard error of a value computed from sums over P prompts is √((P − 1) / P · Σ (v − mean v)²), v being the values
without each prompt. Nothing is drawn at random.

An effective depth jumps, so its own error means little. Its interval is read off the band of the curve's gap to the
level: all layers that the rule may find in curves within the band. How often it covers the truth: docs/coverage.md.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from ..results.schemas import ArtifactError
from .rules import Rule, as_array

LEVEL, FEWEST = 0.95, 3
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
EQUAL = "all prompts have the same values, so the interval has no width; use different prompts"
UNPAIRED = "treated as independent samples: not known to be the same prompts"


class NoInterval(ArtifactError):
    """No interval can be computed; the message gives the reason."""


class Estimate(NamedTuple):
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def standard_error(without_each: np.ndarray) -> np.ndarray:
    """The standard error of a statistic, from its values [P, ...] without each of P prompts."""
    return np.sqrt((len(without_each) - 1) * without_each.var(0))


def half_width(without_each: np.ndarray) -> np.ndarray:
    """Half of the interval: Student's quantile times the standard error."""
    return student(len(without_each) - 1) * standard_error(without_each)


def student(free: int) -> float:
    """The quantile of Student's t where an interval ends; NaN without a degree of freedom."""
    return float(stdtrit(free, (1 + LEVEL) / 2))


class Gaps(NamedTuple):
    """The gap of a curve to its rule's level: without bias [L], and without each prompt [P, L]."""

    value: np.ndarray
    without_each: np.ndarray

    def __sub__(self, other: "Gaps") -> "Gaps":
        return Gaps(self.value - other.value, self.without_each - other.without_each)

    def __getitem__(self, layer: int) -> "Gaps":
        return Gaps(self.value[layer], self.without_each[:, layer])

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        half = half_width(self.without_each)
        return self.value - half, self.value + half


def gaps_of(result: Mapping, rule: Rule) -> Gaps:
    """The gaps of a result. NoInterval for one without sums per prompt, or of fewer than 3 prompts."""
    try:
        sums, n_tokens = rule.curve(result, "_sums").astype(float), as_array(result["n_tokens"]).astype(float)[:, None]
    except KeyError:
        raise NoInterval("the file has no sums per prompt") from None
    if len(sums) < FEWEST:
        raise NoInterval(f"at least {FEWEST} prompts are needed, got {len(sums)}")
    if not np.isfinite(sums).all():
        raise NoInterval("the sums per prompt are not finite; run the probe again")
    # in float32, as the stored means: what is exactly at the level must be there here too
    without_each = rule.gap(((sums.sum(0) - sums) / (n_tokens.sum() - n_tokens)).astype(np.float32)).astype(float)
    gap = rule.gap(rule.curve(result)).astype(float)
    gap -= (len(sums) - 1) * (without_each.mean(0) - gap)  # the bias of a level that is a noisy maximum
    return Gaps(gap, without_each)


def equal_prompts(result: Mapping, rule: Rule) -> str:
    """A note if all prompts have the same curve, so that the interval has zero width; else ""."""
    without_each = gaps_of(result, rule).without_each
    return EQUAL if (without_each == without_each[0]).all() else ""


def depth_interval(result: Mapping, rule: Rule) -> tuple[int | None, int | None]:
    """The first and the last layer that the rule may find; None for an end that the prompts do not limit.

    NoInterval for a result without sums per prompt, or of fewer than 3 prompts.
    """
    layers = _layers(result, rule, gaps := gaps_of(result, rule))
    low, high = (None if end in (-1, len(gaps.value) - 1) else end for end in (layers[0], layers[-1]))
    return low, high


def _layers(result: Mapping, rule: Rule, gaps: Gaps) -> range:
    """The layers that a rule may find, numbered as by `possible_layers`."""
    found = [int(layer) for layer in possible_layers(rule, *gaps.band())]
    found += [depth for depth in [rule.depth(result)] if depth is not None]
    return range(min(found), max(found) + 1)


def possible_layers(rule: Rule, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The layers that a rule may find in gaps between low and high [L]; -1 and L - 1 stand for none.

    The last turn may be at l where the gap may be below zero at l and not at l + 1. A layer that is surely below,
    and has one behind it that surely is not, is the earliest possible.
    """
    last = len(low) - 1
    if not rule.last_turn:
        first = (np.flatnonzero(rule.crossed(gaps)) for gaps in (low, high))
        return np.array([layers[0] if layers.size else last for layers in first])
    surely_above, surely_below = np.flatnonzero(low >= 0), np.flatnonzero(high < 0)
    forced = surely_below[surely_below < surely_above.max(initial=-1)].max(initial=-1)
    turns = np.flatnonzero((low[:-1] < 0) & (high[1:] >= 0))
    never = [-1] * bool((high >= 0).all()) + [last] * bool(forced < 0 and low[-1] < 0)
    possible = np.array([*turns, *never])
    return possible[possible >= forced]


def same_prompts(first: Mapping, second: Mapping) -> bool:
    """Whether both results are known to be of the same texts, by the hash of these in `meta`."""
    hashes = [result.get("meta", {}).get("prompts_hash") for result in (first, second)]
    return bool(hashes[0]) and hashes[0] == hashes[1]


def difference_interval(first: Mapping, second: Mapping, rule: Rule) -> tuple[float | None, float | None]:
    """The ends of the difference of two ratios, second − first; None for an end that the prompts do not limit.

    The interval holds every pair of depths (a, b) with a in the first interval and b in the second. Half widths add
    there, and the error of a difference is at most the sum of both errors, so the level needs no correction.
    If both read the same prompts, a pair must also pass a test that the gaps differ where they have to. The same prompt
    is left out of both, so that noise that both share cancels. Raises NoInterval in the same cases as
    `depth_interval`.
    """
    results, paired = (first, second), same_prompts(first, second)
    gaps = [gaps_of(result, rule) for result in results]
    n_layers = [len(of_one.value) for of_one in gaps]
    pairs = [*product(*(_layers(result, rule, of_one) for result, of_one in zip(results, gaps, strict=True)))]
    if paired and not rule.last_turn and n_layers[0] == n_layers[1]:
        pairs = [(a, b) for a, b in pairs if a == b or _may_differ(gaps, (a, b))]
    last = n_layers[0] - 1, n_layers[1] - 1
    differences = [(b + 1) / n_layers[1] - (a + 1) / n_layers[0] for a, b in pairs]
    low = None if any(a == last[0] or b == -1 for a, b in pairs) else min(differences)
    high = None if any(a == -1 or b == last[1] for a, b in pairs) else max(differences)
    return low, high


def open_ends(low: float | None, high: float | None) -> str:
    """A note on the ends of an interval that the prompts do not limit; "" if they limit both."""
    without = " and no ".join(name for name, end in (("lower", low), ("upper", high)) if end is None)
    return f"no {without} limit: the data are also consistent with no effective depth" if without else ""


def _may_differ(gaps: Sequence[Gaps], pair: tuple[int, int]) -> bool:
    """Whether the earlier depth's model may have crossed there while the other had not yet before its own."""
    early = int(pair[1] < pair[0])
    low, _ = (gaps[early][pair[early]] - gaps[1 - early][pair[1 - early] - 1]).band()
    return bool(low < 0)


def depth_score(profile: np.ndarray) -> np.ndarray:
    """Centre of mass over layers of effects [..., L], Σ l · e[l] / Σ e[l] (Csordás et al. 2025, section 4)."""
    return profile @ np.arange(profile.shape[-1]) / profile.sum(-1)


def score_interval(profiles: np.ndarray) -> Estimate:
    """The depth score of the mean profile of examples [E, L], with its interval over them."""
    affected = profiles[profiles.any(1)]  # the others move no centre
    if len(affected) < FEWEST:
        raise NoInterval(f"only {len(affected)} examples have an effect; at least {FEWEST} are needed")
    value, half = depth_score(affected.sum(0)), half_width(depth_score(affected.sum(0) - affected))
    limits = 0, profiles.shape[1] - 1
    return Estimate(float(value), *(float(np.clip(end, *limits)) for end in (value - half, value + half)))
