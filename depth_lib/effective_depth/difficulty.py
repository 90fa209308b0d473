"""The depth score by level of difficulty, and its slope: do harder questions use more depth?"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..params import not_among
from ..results.study import Study
from .intervals import DRAWS, SEED, Estimate, NoInterval, drawn_centres, studentised, with_effect
from .rules import depth_score

EFFECTS = ("layer", "output")
_ON = {"layer": "later layers", "output": "the output"}


@dataclass(frozen=True)
class Difficulty:
    """The depth score of each level, in layers, and its slope over the levels, layers per level.

    effect: "layer", on later layers, or "output". without_first: the slope of the score over layers 1..L − 1, since
    layer 0 has much of the effect in many models; None where these have none. As text it is the answer in one line.
    """

    effect: str
    scores: dict[int, Estimate]
    slope: Estimate
    without_first: Estimate | None

    def __str__(self) -> str:
        """Do harder questions use more depth?"""
        answer = "Whether harder questions use more depth is not decided"
        signs = [one and int(one.low > 0) - int(one.high < 0) for one in (self.slope, self.without_first)]
        if signs[0]:
            answer = f"Harder questions use {'more' if signs[0] > 0 else 'less'} depth"
            if signs[1] != signs[0]:
                others = "move the other way" if signs[1] else "may not move at all"
                answer = f"What moves with the level is the share of layer 0; the other layers {others}"
        ends = "[{0.low:+.2f}, {0.high:+.2f}]".format
        later = "unknown" if not self.without_first else f"{self.without_first.value:+.2f} {ends(self.without_first)}"
        return (
            f"{answer}: by the effect on {_ON[self.effect]} the depth score moves by {self.slope.value:+.2f} layers a "
            f"level (levels {min(self.scores)} to {max(self.scores)}), 95 % interval {ends(self.slope)}; without layer "
            f"0: {later}. Harder questions are often longer; length is not controlled for."
        )


def importance(result: Mapping, effect: str) -> np.ndarray:
    """How much each skipped layer matters to each example, [E, L].

    effect "layer": e_s = Σ_{l>s} D[s, l] / max(L − 1 − s, 1), the mean effect on later layers; "output": o[s].
    result: what `depth_by_difficulty` returns.
    """
    effects = np.asarray(result[f"{effect}_effect"], dtype=float)
    if effect == "output":
        return effects
    n_layers = effects.shape[-1]
    return np.triu(effects, 1).sum(-1) / np.maximum(n_layers - 1 - np.arange(n_layers), 1)


def by_level(result: Mapping, values: np.ndarray) -> dict[int, np.ndarray]:
    """level -> values [E, ...] of its examples, easy levels first."""
    levels = np.asarray(result["level"])
    return {int(level): values[levels == level] for level in np.unique(levels)}


def depth_scores(result: Mapping, effect: str = "layer", draws: int = DRAWS) -> Difficulty:
    """Depth score d = Σ_s s·e_s / Σ_s e_s of each level, e the mean importance of its examples, and the slope of d.

    The slope is that of the least-squares line through the levels' scores, of all layers and without layer 0. Harder
    questions are often longer, and length alone may move a score: that is not taken out. Intervals: examples are drawn
    with replacement within each level, deviations studentised (see `intervals`); examples without any effect change no
    score and are left out. How often the intervals cover the truth: docs/coverage.md.

    result: what `depth_by_difficulty` returns or `load_artifact` reads; effect: "layer" or "output". Raises NoInterval
    for a single level, or fewer than 3 examples of one that have an effect. Source: Csordás et al. 2025, section 4; the
    slope is ours.
    """
    if problem := not_among(EFFECTS, "effect", effect):
        raise ValueError(problem)
    groups = by_level(result, importance(result, effect))
    if len(groups) < 2:
        raise NoInterval(f"one level of difficulty, {', '.join(map(str, groups))}, has no slope; measure two or more")
    scores, slope = _scores_and_slope(groups, draws)
    try:
        _, without_first = _scores_and_slope({level: values[:, 1:] for level, values in groups.items()}, draws)
    except NoInterval:
        without_first = None
    return Difficulty(effect, scores, slope, without_first)


def _scores_and_slope(groups, draws):
    """The score of each level, and its slope; groups: level -> importance of its examples [examples, layers]."""
    affected = [with_effect(values, f"examples of level {level}") for level, values in groups.items()]
    drawn = [drawn_centres(values, draws, SEED + k) for k, values in enumerate(affected)]  # each level draws its own
    limits = 0, affected[0].shape[1] - 1
    scores = {
        level: studentised(*centres, len(values), limits)
        for level, centres, values in zip(groups, drawn, affected, strict=True)
    }
    centres, errors = np.array(drawn).swapaxes(0, 1)
    from_mean = np.array(list(groups)) - np.mean(list(groups))
    weights = from_mean / (from_mean**2).sum()
    n = sum(map(len, affected)) - len(affected) + 1
    return scores, studentised(weights @ centres, np.sqrt(weights**2 @ errors**2), n, (-np.inf, np.inf))


def scores_by_level(study: Study) -> pd.DataFrame:
    """The depth score of every level in a study's results of `depth_by_difficulty`, and whether it rises.

    Columns: model, dataset, effect ("layer" or "output"), level, examples, score, score_low and score_high (its 95 %
    interval); and, the same for all levels of an effect, slope, slope_low, slope_high, slope_without_layer_0 and the
    answer, a sentence, or why there is no interval.
    """
    return pd.DataFrame(
        [
            {"model": model, "dataset": dataset, "effect": effect} | row
            for (dataset, model), result in study.of("depth_by_difficulty").items()
            for effect in EFFECTS
            for row in score_rows(result, effect)
        ]
    )


def score_rows(result: Mapping, effect: str) -> list[dict]:
    """A result's rows of `scores_by_level` for an effect; the ends of an interval are None where there is none."""
    groups = by_level(result, importance(result, effect))
    try:
        found = depth_scores(result, effect)
        scores = {level: (score.value, score.low, score.high) for level, score in found.scores.items()}
        slope, answer = (found.slope.value, found.slope.low, found.slope.high), str(found)
        later = found.without_first and found.without_first.value
    except NoInterval as reason:
        scores = {level: (depth_score(values.mean(0)), None, None) for level, values in groups.items()}
        slope, later, answer = (None, None, None), None, f"{reason}."
    of_all = dict(zip(("slope", "slope_low", "slope_high"), slope, strict=True))
    of_all |= {"slope_without_layer_0": later, "answer": answer}
    return [
        {"level": level, "examples": len(groups[level])}
        | dict(zip(("score", "score_low", "score_high"), score, strict=True))
        | of_all
        for level, score in scores.items()
    ]
