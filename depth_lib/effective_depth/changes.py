"""How far apart the effective depths of two results are, with an interval over the prompts that both have read.

Both curves are resampled with the same draws of prompts. The interval holds every pair of depths (a, b) that three
tests at once, each at a third of the level (Bonferroni), do not rule out: that a is the first result's depth, that b is
the second's (each as in `intervals`), and, where a rule takes the first layer at which the gap to its threshold is
negative, that the gaps differ between them: a < b needs gap_a(a) < 0 <= gap_b(b - 1), so the difference of these has to
be negative. Noise that both share, such as that of hard prompts, cancels in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from .intervals import UPPER, NoInterval, basic_interval, bootstrap_gaps, possible_depths, widening
from .rules import METRICS, Metric, ratio

_TAIL = (1 - UPPER) / 3
_WHAT = {
    "cosine": "the last turn from erasing to adding comes",
    "kl": "the prediction forms",
    "overlap": "the first likely tokens appear",
}


@dataclass(frozen=True, repr=False)
class Change:
    """The change of one effective depth from the result `first` to the result `second`.

    depths: both, None where there is none; n_layers: of both models. difference: second − first, in layers or, of
    models with different numbers of them, as a share of the depth; low, high: its 95 % interval over n_prompts shared
    prompts, None where it is open or there is none; note: why. As text it is a sentence.
    """

    metric: str
    first: str
    second: str
    depths: tuple[int | None, int | None]
    n_layers: tuple[int, int]
    difference: float | None
    low: float | None = None
    high: float | None = None
    n_prompts: int = 0
    note: str = ""

    def __repr__(self) -> str:
        """Which of both forms its prediction earlier, by how much, and whether it is decided."""
        if self.difference is None:
            return f"By {self.metric} there is nothing to compare: {self.note}."
        d, (of_first, of_second) = self.difference, self.n_layers
        size, form = f"{abs(d):.0%} of the depth", "{:+.0%}"
        if of_first == of_second:
            size, form = f"{abs(d)} layer{'s' * (abs(d) != 1)}", "{:+g}"
        when = (
            f"{size} {'earlier' if d < 0 else 'later'} in {self.second} than" if d else f"as early in {self.second} as"
        )
        said = (
            f"By {self.metric} {_WHAT[self.metric]} {when} in {self.first} "
            f"(layers {self.depths[1]} of {of_second} and {self.depths[0]} of {of_first}"
        )
        if self.note:
            return f"{said}); no interval: {self.note}."
        low, high = ("open" if end is None else form.format(end) for end in (self.low, self.high))
        chance = (self.low is None or self.low <= 0) and (self.high is None or self.high >= 0)
        doubt = "; that may be chance" if chance and (d or low != high) else ""
        return f"{said}; difference [{low}, {high}], 95 % over {self.n_prompts} shared prompts){doubt}."


def depth_change(first: Mapping, second: Mapping, metric: str, names: tuple[str, str] = ("first", "second")) -> Change:
    """The change of an effective depth between two results of the same probe, with its paired interval.

    metric: "cosine", "kl" or "overlap". The interval is over prompts that both have: results without per-prompt sums,
    of other prompts or of fewer than 3 have none, and say so. Method: this module's docstring.
    """
    rule, results = METRICS[metric], (first, second)
    n_layers = len(first[rule.keys[0]]), len(second[rule.keys[0]])
    for name, result in zip(names, results, strict=True):
        if reason := rule.no_signal(result):
            return Change(metric, *names, (None, None), n_layers, None, note=f"{name} has {reason}")
    depths = rule.layer(first), rule.layer(second)
    if None in depths:
        return Change(
            metric, *names, depths, n_layers, None, note=f"no layer of {names[depths.index(None)]} satisfies the rule"
        )
    difference = _difference(*depths, n_layers)
    try:
        low, high, n_prompts = _paired_interval(rule, results, depths, n_layers)
        return Change(metric, *names, depths, n_layers, difference, low, high, n_prompts)
    except NoInterval as reason:
        return Change(metric, *names, depths, n_layers, difference, note=str(reason))


def _difference(a, b, n_layers):
    return b - a if n_layers[0] == n_layers[1] else ratio(b, n_layers[1]) - ratio(a, n_layers[0])


def _paired_interval(rule: Metric, results: tuple, depths: tuple, n_layers: tuple) -> tuple:
    """The ends of the interval, None where one is open, and the number of prompts."""
    if not same_prompts(*results):
        raise NoInterval("they have read different prompts")
    gaps, deviations, possible = [], [], []
    for result, depth in zip(results, depths, strict=True):
        gap, drawn, n_prompts = bootstrap_gaps(result, rule)  # the same draws for both
        gaps.append(gap)
        deviations.append(widening(n_prompts) * (drawn - gap))
        layers = [depth, *possible_depths(rule, *basic_interval(gap, deviations[-1], _TAIL))]
        possible.append(range(min(layers), max(layers) + 1))
    pairs = [*product(*possible)]
    if n_layers[0] == n_layers[1] and not rule.turns:
        pairs = [(a, b) for a, b in pairs if a == b or _may_differ(gaps, deviations, (a, b), int(b < a))]
    firsts, seconds = ({*layers} for layers in zip(*pairs, strict=True))
    last_first, last_second = (n - 1 for n in n_layers)  # where no layer satisfies the rule, one beyond them might
    known = [_difference(a, b, n_layers) for a, b in pairs if a not in (-1, last_first) and b not in (-1, last_second)]
    low = None if last_first in firsts or -1 in seconds else min(known)
    high = None if last_second in seconds or -1 in firsts else max(known)
    if low is None and high is None:
        raise NoInterval("the prompts rule out no layer")
    return low, high, n_prompts


def _may_differ(gaps: list, deviations: list, pair: tuple[int, int], early: int) -> bool:
    """Whether the one that is early may have crossed at its layer, and the other not yet before its own."""
    late = 1 - early
    here, there = pair[early], pair[late] - 1
    gap, moved = (of[early][..., here] - of[late][..., there] for of in (gaps, deviations))
    return bool(basic_interval(gap, moved, _TAIL)[0] < 0)


def same_prompts(first: Mapping, second: Mapping) -> bool:
    """Whether both results are of the same prompts: by their hash, or else by the number of tokens of each."""
    hashes = [result.get("meta", {}).get("prompts_hash") for result in (first, second)]
    if all(hashes):
        return hashes[0] == hashes[1]
    return np.array_equal(first.get("n_tokens", ()), second.get("n_tokens", ()))
