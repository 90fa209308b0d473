"""How often the intervals cover the truth, in simulations: `python -m tests.effective_depth.coverage` prints
the first part of docs/coverage.md, in some minutes of one core."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch

from depth_lib.effective_depth.across import _mean, _slope
from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.effective_depth.intervals import depth_interval
from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS

DRAWS, N_LAYERS = 500, 28
NOISE = 0.25  # standard deviation over prompts, in means of the curve's absolute value
DEPTH = np.linspace(0, 1, N_LAYERS)
CURVES = {
    "steep": {
        "cosine": 0.24 * (DEPTH - 0.25) * (DEPTH - 0.62) - 0.005,
        "kl": 0.3 + 15 / (1 + np.exp((DEPTH - 0.8) / 0.06)),
        "overlap": 0.8 / (1 + np.exp((0.88 - DEPTH) / 0.05)),
    },
    "slow": {
        "cosine": 0.02 * (DEPTH - 0.6),
        "kl": 12 * (1 - DEPTH) + 1,
        "overlap": np.where(DEPTH < 0.5, 0.1, np.where(DEPTH < 0.8, 0.31, 0.6)),
    },
    "flat, then steep": {
        "cosine": np.where(DEPTH < 0.6, -0.01, 0.01),
        "kl": np.where(DEPTH < 0.65, 7.2 - 1.4 * DEPTH, 16.3 - 16 * DEPTH),
        "overlap": np.where(DEPTH < 0.7, 0.2, 0.5),
    },
}


def noise(draw: np.random.Generator, shape: Sequence[int], along: float, skewed: bool = False) -> np.ndarray:
    """Standard normal or lognormal noise, whose correlation falls by this factor with each layer of the last axis."""
    values = draw.standard_normal(shape)
    for l in range(1, shape[-1]):
        values[..., l] = along * values[..., l - 1] + np.sqrt(1 - along**2) * values[..., l]
    return (np.exp(0.8 * values) - np.exp(0.32)) / 1.3 if skewed else values


def result_of(metric: str, curves: np.ndarray) -> dict:
    """A probe's result in which each prompt has its own curve, [P, L], and 50 tokens."""
    sums = torch.as_tensor(50 * np.asarray(curves), dtype=torch.float32)
    return {f"{key}_sums": sums for key in METRICS[metric].keys} | {"n_tokens": torch.full((len(sums),), 50.0)}


def depths_of(metric: str, curves: np.ndarray) -> np.ndarray:
    """The effective depth of each curve [N, L], as in `Metric.depths`."""
    rule = METRICS[metric]
    return rule.depths(rule.gap(np.float32(curves)))


def spread(curve: np.ndarray) -> float:
    return NOISE * abs(curve).mean()


def depth_shares(metric: str, curve: np.ndarray, n_prompts: int, repeats: int) -> list[float]:
    """The shares of intervals of one depth that cover the true one, by kind of noise."""
    shares = []
    for kind in itertools.product((0, 0.9), (False, True)):
        draw = np.random.default_rng(n_prompts)
        shares.append(np.mean([covers_depth(metric, curve, draw, n_prompts, *kind) for _ in range(repeats)]))
    return shares


def covers_depth(metric: str, curve: np.ndarray, draw: np.random.Generator, n_prompts: int, *kind: float) -> bool:
    prompts = curve + spread(curve) * noise(draw, (n_prompts, N_LAYERS), *kind)
    found = depth_interval(result_of(metric, prompts), metric, DRAWS)
    truth = depths_of(metric, curve[None])[0]
    return (found.low is None or found.low <= truth) and (found.high is None or truth <= found.high)


def curve_at(metric: str, places: np.ndarray) -> np.ndarray:
    """Curves whose depth is near a share of the layers, [..., L]."""
    beyond = DEPTH - places[..., None]
    if metric == "cosine":
        return 0.2 * beyond
    rise = 1 / (1 + np.exp(-beyond / 0.06))
    return 15 * (1 - rise) + 0.3 if metric == "kl" else 0.8 * rise


def ratios_at(metric: str, places: np.ndarray, draw: np.random.Generator, n_prompts: int) -> np.ndarray:
    """The measured ratio of each model with its own depth; half of the noise of their prompts is the same."""
    curves = curve_at(metric, places)
    own, common = (noise(draw, (n, n_prompts, N_LAYERS), 0.9) for n in (len(places), 1))
    deviation = NOISE * np.abs(curves).mean(-1)[:, None, None]
    prompts = curves[:, None] + deviation * (np.sqrt(0.5) * own + np.sqrt(0.5) * common)
    return (depths_of(metric, prompts.mean(1)) + 1) / N_LAYERS


def changes_covered(metric: str, n_models: int, repeats: int, n_prompts: int = 10) -> dict[str, tuple[float, float]]:
    """The share of intervals that cover the true change, and their mean width, by question.

    The models are drawn from many: their depths differ by a standard deviation of 0.08, and so do their changes by
    0.05. Task: 0.05 more on the second dataset. Size: 0.02 more per doubling, of four sizes at most.
    """
    draw, hits = np.random.default_rng(n_models), {"task": [], "size": []}
    for _ in range(repeats):
        places, moved = 0.6 + 0.08 * draw.standard_normal(n_models), 0.05 + 0.05 * draw.standard_normal(n_models)
        before, after = (ratios_at(metric, at, draw, n_prompts) for at in (places, places + moved))
        (task,) = _mean("task", metric, "x", "y", pd.Series(after - before))
        doublings = np.arange(n_models) % 4
        sized = ratios_at(metric, 0.6 + 0.02 * doublings + 0.08 * draw.standard_normal(n_models), draw, n_prompts)
        models = pd.DataFrame({"ratio": sized, "size": 2.0**doublings, "training": "base"})
        hits["task"].append((task.low <= 0.05 <= task.high, task.high - task.low))
        for size in _slope(metric, models, "blocks"):  # none of three models
            hits["size"].append((size.low <= 0.02 <= size.high, size.high - size.low))
    return {question: tuple(np.mean(one, axis=0)) for question, one in hits.items() if one}


def scores_covered(n_examples: int, skewed: bool, repeats: int) -> np.ndarray:
    """The shares of intervals that cover the true depth score of three levels, and the true slope.

    Examples differ in size and form; skewed ones have a lognormal weight on layer 0, of which a few have much.
    """
    draw, covered = np.random.default_rng(n_examples), np.zeros(4)
    levels, layers, centres = np.array([2, 3, 4]), np.arange(12), np.array([3.0, 4.0, 5.5])
    means = np.exp(-((layers - centres[:, None]) ** 2) / 8)
    expected = means + skewed * np.exp(1.5) * (layers == 0)
    truths = expected @ layers / expected.sum(1)
    truths = [*truths, np.polyfit(levels, truths, 1)[0]]
    for _ in range(repeats):
        effects = np.repeat(means, n_examples, 0) * draw.gamma(2, 0.5, (3 * n_examples, 12))
        if skewed:
            effects[:, 0] += draw.lognormal(1, 1, len(effects))
        else:
            effects *= draw.lognormal(0, 0.5, (len(effects), 1))
        result = {"level": np.repeat(levels, n_examples), "output_effect": effects}
        found = depth_scores(result, "output", draws=1000)
        estimates = [*found.scores.values(), found.slope]
        covered += [one.low <= truth <= one.high for one, truth in zip(estimates, truths, strict=True)]
    return covered / repeats


def percent(shares: Sequence[float]) -> str:
    return f"{100 * np.mean(shares):.0f} ({100 * np.min(shares):.0f})"


def table(head: Sequence[str], rows: Iterable[Sequence]) -> str:
    """In Markdown; lists are shares."""
    text = [[percent(x) if isinstance(x, list) else str(x) for x in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *text])


def depths_table(repeats: int) -> str:
    numbers = (3, 5, 10, 30)
    rows = [
        [metric, curve, *(depth_shares(metric, CURVES[curve][metric], n, repeats) for n in numbers)]
        for metric in PAPER_METRICS
        for curve in CURVES
    ]
    return table(["rule", "curve", *(f"{n} prompts" for n in numbers)], rows)


def changes_table(repeats: int, numbers: Sequence[int] = (3, 4, 6, 12)) -> str:
    rows = []
    for n in numbers:
        found = [changes_covered(metric, n, repeats) for metric in PAPER_METRICS]
        cells = []
        for question in ("task", "size"):
            pairs = [one[question] for one in found if question in one]
            cells += (
                [[share for share, _ in pairs], f"{np.mean([width for _, width in pairs]):.2f}"]
                if pairs
                else ["–", "–"]
            )
        rows.append([n, *cells])
    return table(["models", "task", "width", "size", "width"], rows)


def scores_table(repeats: int) -> str:
    rows = []
    for skewed, n in itertools.product((False, True), (5, 10, 20)):
        *scores, slope = scores_covered(n, skewed, repeats)
        rows.append(["skewed" if skewed else "even", n, scores, [slope]])
    return table(["examples", "per level", "score", "slope"], rows)


DOCUMENT = """# How often the intervals cover the truth

Printed by `python -m tests.effective_depth.coverage`. Curves over 28 layers with a known depth and
noise of a standard deviation of a quarter of the curve's mean size; the share of simulated studies whose 95 % interval
covers the truth, in percent: the mean over kinds of noise, and in parentheses the lowest.

**One depth**, {depths} studies each: noise normal and lognormal, independent and correlated from layer to layer (0.9).

{depths_table}

**A change** over models, as the report states it, {changes} studies of each rule: 28 layers, 10 prompts; half of
their noise is common to all models. Between models depth has a standard deviation of 0.08 of the layers, and what a
task changes one of 0.05. Width: how long the intervals are on average, in shares of the layers (size: per doubling).
Intervals over models do not cover the common noise: with many models and few prompts a change of task is covered less
often.

{changes_table}

**A depth score** and its slope over three levels of difficulty, {scores} studies each. Where a few examples weigh
most (skewed: a lognormal weight on layer 0), the intervals cover the truth less often than in 95 % of the studies.

{scores_table}
"""

if __name__ == "__main__":
    numbers = {"depths": 200, "changes": 200, "scores": 400}
    tables = {f"{name}_table": globals()[f"{name}_table"](repeats) for name, repeats in numbers.items()}
    print(DOCUMENT.format(**numbers, **tables), end="")
