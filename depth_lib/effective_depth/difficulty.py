"""Do harder questions use more depth? The depth score of each level, and its slope (Csordás et al. 2025, section 4)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from .intervals import Estimate, NoInterval, depth_score, score_interval, standard_error, student
from .rules import as_array

EFFECTS = {"layer": "on later layers", "output": "on the output"}


def importance(result: Mapping, effect: str) -> np.ndarray:
    """How much each skipped layer matters to each example, [E, L].

    effect: "output", the effect on the output, or "layer", the mean effect on later layers,
    Σ_{l>s} D[s, l] / max(L − 1 − s, 1). result: from `depth_by_difficulty`.
    """
    effects = as_array(result[f"{effect}_effect"]).astype(float)
    if effect == "output":
        return effects
    later = np.maximum(np.arange(effects.shape[-1])[::-1], 1)
    return np.triu(effects, 1).sum(-1) / later


def by_level(result: Mapping, values: np.ndarray) -> dict[int, np.ndarray]:
    """level -> values of its examples."""
    levels = as_array(result["level"])
    return {int(level): values[levels == level] for level in np.unique(levels)}


def depth_scores(result: Mapping) -> pd.DataFrame:
    """The depth score of each difficulty level, and its slope over the levels: a row per effect and level.

    result: from `depth_by_difficulty`. Columns:

    - effect: "layer" or "output"
    - level, examples: the level, and the number of its examples
    - score, low, high: the depth score in layers, with its 95% confidence interval over examples
    - slope, slope_low, slope_high: layers per level, the same in all rows of an effect
    - note: why the interval is missing

    The length of a question is not controlled for: harder questions are often longer.
    """
    frames = []
    for effect in EFFECTS:
        groups = by_level(result, importance(result, effect))
        frame = pd.DataFrame({"effect": effect, "level": [*groups], "examples": [*map(len, groups.values())]})
        found = [_score(group) for group in groups.values()]
        frame[["score", "low", "high"]] = [estimate for estimate, _ in found]
        frame["note"] = [note for _, note in found]
        frame["slope"], frame["slope_low"], frame["slope_high"] = slope(groups, frame)
        frames.append(frame[[*frame.columns.drop("note"), "note"]])
    return pd.concat(frames, ignore_index=True)


def _score(group: np.ndarray) -> tuple[Estimate, str]:
    """The score of a level with its interval, or without it and why."""
    try:
        return score_interval(group), ""
    except NoInterval as reason:
        total = group.sum(0)
        return Estimate(float(depth_score(total)) if total.any() else np.nan, np.nan, np.nan), str(reason)


def slope(groups: Mapping[int, np.ndarray], scores: pd.DataFrame) -> Estimate:
    """The least-squares slope; each level's score has its own error. NaN for a single level, or without intervals."""
    if len(groups) < 2:
        return Estimate(np.nan, np.nan, np.nan)
    levels = scores.level - scores.level.mean()
    weights = (levels / (levels**2).sum()).to_numpy()
    value = float(weights @ scores.score)
    if scores.low.isna().any():
        return Estimate(value, np.nan, np.nan)
    affected = [group[group.any(1)] for group in groups.values()]
    errors = [standard_error(depth_score(group.sum(0) - group)) for group in affected]
    half = student(sum(map(len, affected)) - len(affected)) * float(np.linalg.norm(weights * errors))
    return Estimate(value, value - half, value + half)
