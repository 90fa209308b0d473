"""The values over all prompts, from those of each prompt."""

import math
from statistics import NormalDist

_Z = NormalDist().inv_cdf(0.975)


def paired_change(n: int, gained: int, lost: int) -> tuple[float, float, float]:
    """The change of a share of right answers to n paired questions, and the ends of its 95% interval.

    This is a Wald interval for paired proportions, with half a question added to each of the four cells (Agresti and
    Min 2005, Statistics in Medicine 24). gained, lost: how many questions are answered rightly only after, or
    only before.
    """
    total, difference = n + 2, gained - lost
    half = _Z * math.sqrt(gained + lost + 1 - difference**2 / total) / total
    return difference / n, max(-1.0, difference / total - half), min(1.0, difference / total + half)


def token_means(sums: dict) -> dict:
    """Token-pooled means Σ sums / Σ tokens beside the per-prompt sums they come from."""
    n_tokens = sums["n_tokens"].sum()
    means = {key.removesuffix("_sums"): value.sum(0) / n_tokens for key, value in sums.items() if key.endswith("_sums")}
    return {**means, **sums}


def one_token_loss_to_nan(found: dict, prompts: list[list[int]]) -> None:
    """Make losses [P, …] NaN for prompts of one token, which nothing predicts, so that means leave them out."""
    for key in found.keys() & {"loss", "shuffled_loss"}:
        found[key][[len(ids) == 1 for ids in prompts]] = math.nan


def over_prompts(effects: dict) -> dict:
    """Maxima and means over the prompts that have a value, beside the values of each."""
    result = {key: value.amax(0) if key.startswith("max_") else value.nanmean(0) for key, value in effects.items()}
    floors = {key: value for key, value in effects.items() if key.endswith("_rounding_floor")}
    by_prompt = {f"{key}_by_prompt": value for key, value in effects.items() if key not in floors}
    return result | by_prompt | floors
