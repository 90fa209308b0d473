"""The depth score by level of difficulty, and whether it rises: does a harder question use more depth?"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import DRAWS, FEWEST_PROMPTS, SEED, UPPER, NoInterval, bootstrap_curves, widening
from .rules import Curve, depth_score

EFFECTS = ("layer", "output")
_ON = {"layer": "later layers", "output": "the output"}
_OF_SLOPE = {"": "value", "_low": "low", "_high": "high"}


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval over examples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Difficulty:
    """The depth score of each level, in layers, and its slope over the levels, layers a level.

    effect: "layer", on later layers, or "output". As text it is the answer in one line.
    """

    effect: str
    scores: dict[int, Estimate]
    slope: Estimate

    def __str__(self) -> str:
        """Do harder questions use more depth?"""
        answer = "Whether harder questions use more depth is not decided"
        if self.slope.low > 0:
            answer = "Harder questions use more depth"
        elif self.slope.high < 0:
            answer = "Harder questions use less depth"
        levels = f"{min(self.scores)} to {max(self.scores)}"
        return (
            f"{answer}: by the effect on {_ON[self.effect]} the depth score "
            f"moves by {self.slope.value:+.2f} layers a level (levels {levels}), 95 % interval "
            f"[{self.slope.low:+.2f}, {self.slope.high:+.2f}]."
        )


def importance(result: Mapping, effect: str) -> np.ndarray:
    """How much each skipped layer matters to each example, [E, L].

    effect "layer": e_s = Σ_{l>s} D[s, l] / max(L − 1 − s, 1), the mean effect on later layers; "output": o[s].
    result: what `depth_by_difficulty` returns. ValueError for any other effect.
    """
    if effect not in EFFECTS:
        raise ValueError(f'effect {effect!r} is not known; use "layer" or "output".')
    effects = np.asarray(result[f"{effect}_effect"], dtype=float)
    if effect == "output":
        return effects
    n_layers = effects.shape[-1]
    return np.triu(effects, 1).sum(-1) / np.maximum(n_layers - 1 - np.arange(n_layers), 1)


def importance_by_level(result: Mapping, effect: str) -> dict[int, np.ndarray]:
    """level -> `importance` of its examples [examples, L], easy levels first."""
    level, values = np.asarray(result["level"]), importance(result, effect)
    return {int(one): values[level == one] for one in np.unique(level)}


def depth_scores(result: Mapping, effect: str = "layer", draws: int = DRAWS, seed: int = SEED) -> Difficulty:
    """Depth score d = Σ_s s·e_s / Σ_s e_s of each level, e the mean importance of its examples, and the slope of d.

    The slope is that of the least-squares line through the levels' scores. Intervals: examples are drawn with
    replacement within each level, deviations widened for their number as in `intervals`, percentiles taken; examples
    without any effect change no score and are left out. In simulations of 3 levels of 3 to 20 examples a score's
    interval held the truth in 85 to 92 % of cases where examples are skewed (a lognormal weight on layer 0; centres and
    sizes drawn from gamma distributions), the slope's in 94 to 98 %.

    result: what `depth_by_difficulty` returns or `load_artifact` reads. Raises NoInterval for a single level, or fewer
    than 3 examples of one that have an effect. Source: Csordás et al. 2025, section 4; the slope is ours.
    """
    groups = importance_by_level(result, effect)
    if len(groups) < 2:
        raise NoInterval(f"one level of difficulty, {', '.join(map(str, groups))}, has no slope; measure two or more")
    scores, deviations = {}, []
    for k, (level, values) in enumerate(groups.items()):
        affected = values.any(1)  # an example without any effect moves no quotient of sums
        if not affected.any():
            raise NoInterval(f"skipping a layer has no {effect} effect on examples of level {level}")
        values, of = values[affected], "" if affected.all() else f" with an effect on {_ON[effect]}"
        if len(values) < FEWEST_PROMPTS:
            raise NoInterval(f"{len(values)} examples of level {level}{of} are too few; run {FEWEST_PROMPTS} or more")
        mean, drawn = bootstrap_curves(values, np.ones(len(values)), draws, seed + k)  # each level its own draws
        score = depth_score(mean)
        deviations.append(widening(len(values)) * (_scores(drawn) - score))
        scores[level] = _estimate(score, deviations[-1])
    levels = np.array(list(scores), dtype=float)
    weights = (levels - levels.mean()) / ((levels - levels.mean()) ** 2).sum()
    slope = weights @ [score.value for score in scores.values()]
    return Difficulty(effect, scores, _estimate(float(slope), weights @ np.stack(deviations)))


def scores_by_level(study: Mapping) -> pd.DataFrame:
    """The depth score of every level in a study's results of `depth_by_difficulty`, and whether it rises.

    Columns: model, dataset, effect ("layer" or "output"), level, examples, score, score_low and score_high (its 95 %
    interval);
    and, the same for all levels of an effect, slope, slope_low, slope_high and the answer, a sentence, or why there is
    no interval. study: a `Study`.
    """
    rows = []
    for (dataset, model, probe), result in study.items():
        for effect in EFFECTS if probe == "depth_by_difficulty" else ():
            try:
                found = depth_scores(result, effect)
                slope, answer = found.slope, str(found)
            except NoInterval as reason:
                found, slope, answer = None, None, f"{reason}."
            for level, values in importance_by_level(result, effect).items():
                score = found.scores[level] if found else Estimate(depth_score(values.mean(0)), None, None)
                row = {"model": model, "dataset": dataset, "effect": effect, "level": level, "examples": len(values)}
                row |= {"score": score.value, "score_low": score.low, "score_high": score.high}
                row |= {f"slope{name}": getattr(slope, of, None) for name, of in _OF_SLOPE.items()}
                rows.append({**row, "answer": answer})
    return pd.DataFrame(rows)


def _scores(curves: Curve) -> np.ndarray:
    """The depth score of each curve [N, L]."""
    curves = np.asarray(curves, dtype=float)
    return curves @ np.arange(curves.shape[1]) / curves.sum(1)


def _estimate(value: float, deviations: np.ndarray) -> Estimate:
    low, high = (float(value + np.quantile(deviations, q)) for q in (1 - UPPER, UPPER))
    return Estimate(value, min(low, value), max(high, value))
