"""How often the intervals cover the truth, in simulations: `python -m tests.effective_depth.coverage` prints
the first part of docs/coverage.md, in some minutes of one core."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.effective_depth.intervals import depth_interval, difference_interval
from depth_lib.effective_depth.rules import RULES

N_LAYERS = 28
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
SHARED = {"hardly": 0.1, "mostly": 0.9}  # of the noise's variance, by two models that read the same prompts
Found = tuple[bool, float]  # whether an interval covers the truth, and its width in shares of the layers


def noise(draw: np.random.Generator, shape: Sequence[int], along: float, skewed: bool = False) -> np.ndarray:
    """Standard normal or lognormal noise, whose correlation falls by this factor with each layer of the last axis."""
    values = draw.standard_normal(shape)
    for l in range(1, shape[-1]):
        values[..., l] = along * values[..., l - 1] + np.sqrt(1 - along**2) * values[..., l]
    return (np.exp(0.8 * values) - np.exp(0.32)) / 1.3 if skewed else values


def result_of(rule: str, curves: np.ndarray, prompts_hash: str = "") -> dict:
    """A probe's result in which each prompt has its own curve, [P, L], and 50 tokens."""
    sums = torch.as_tensor(50 * np.asarray(curves), dtype=torch.float32)
    result = {f"{key}_sums": sums for key in RULES[rule].keys} | {"n_tokens": torch.full((len(sums),), 50.0)}
    result |= {key: (sums.double().sum(0) / (50 * len(sums))).float() for key in RULES[rule].keys}
    return result | {"meta": {"prompts_hash": prompts_hash}}


def depth_of(rule: str, curve: np.ndarray) -> int:
    """The effective depth of a curve; -1 or L - 1 where there is none."""
    found = RULES[rule].layer(RULES[rule].gap(np.float32(curve)))
    return found if found is not None else -1 if RULES[rule].last_turn else N_LAYERS - 1


def spread(curve: np.ndarray) -> float:
    return NOISE * abs(curve).mean()


def shifted(curve: np.ndarray, layers: int) -> np.ndarray:
    """A curve whose every crossing comes so many layers earlier."""
    return np.concatenate([curve[layers:], np.repeat(curve[-1:], layers)])


def _covers(ends: tuple[float | None, float | None], truth: float, limits: tuple[float, float]) -> Found:
    low, high = (end if end is not None else limit for end, limit in zip(ends, limits, strict=True))
    return bool(low - 1e-9 <= truth <= high + 1e-9), high - low


def depth_cells(rule: str, curve: np.ndarray, n_prompts: int, repeats: int) -> list[Found]:
    """The share of intervals of one depth that cover the true one, and their mean width, by kind of noise."""
    cells = []
    for kind in itertools.product((0, 0.9), (False, True)):
        draw, found = np.random.default_rng(n_prompts), []
        for _ in range(repeats):
            prompts = curve + spread(curve) * noise(draw, (n_prompts, N_LAYERS), *kind)
            ends = depth_interval(result_of(rule, prompts), RULES[rule])
            hit, width = _covers(ends, depth_of(rule, curve), (-1, N_LAYERS - 1))
            found.append((hit, width / N_LAYERS))
        cells.append(tuple(np.mean(found, 0)))
    return cells


def difference_cells(rule: str, curve: np.ndarray, n_prompts: int, repeats: int, shared: float) -> list[Found]:
    """As `depth_cells`, the difference to a model that is three layers earlier; its noise is shared in part.

    shared: 0 for models that read different prompts.
    """
    other, cells = shifted(curve, 3), []
    truth = (depth_of(rule, other) - depth_of(rule, curve)) / N_LAYERS
    for kind in itertools.product((0, 0.9), (False, True)):
        draw, found = np.random.default_rng(n_prompts), []
        for _ in range(repeats):
            common, *own = noise(draw, (3, n_prompts, N_LAYERS), *kind)
            prompts = [
                of_model + spread(curve) * (np.sqrt(shared) * common + np.sqrt(1 - shared) * mine)
                for of_model, mine in zip((curve, other), own, strict=True)
            ]
            results = [result_of(rule, one, "same" if shared else str(k)) for k, one in enumerate(prompts)]
            found.append(_covers(difference_interval(*results, RULES[rule]), truth, (-1, 1)))
        cells.append(tuple(np.mean(found, 0)))
    return cells


def scores_covered(n_examples: int, skewed: bool, repeats: int) -> np.ndarray:
    """The shares of intervals that cover the true depth score of three levels, and the true slope; and their widths.

    Examples differ in size and form; skewed ones have a lognormal weight on layer 0, of which a few have much.
    """
    draw, found = np.random.default_rng(n_examples), []
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
        none = np.ones((len(effects), 12, 12))
        result = {"level": np.repeat(levels, n_examples), "output_effect": effects, "layer_effect": none}
        rows = depth_scores(result).query("effect == 'output'")
        ends = [*zip(rows.low, rows.high, strict=True), (rows.slope_low.iloc[0], rows.slope_high.iloc[0])]
        found.append([(low <= truth <= high, high - low) for (low, high), truth in zip(ends, truths, strict=True)])
    return np.mean(found, 0)


def cell(cells: Iterable[Found]) -> str:
    """Mean share (lowest share), mean width."""
    shares, widths = zip(*cells, strict=True)
    return f"{100 * np.mean(shares):.0f} ({100 * np.min(shares):.0f}), {np.mean(widths):.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows])


def depths_table(repeats: int) -> str:
    numbers = (3, 5, 10, 30)
    rows = [
        [rule, curve, *(cell(depth_cells(rule, CURVES[curve][rule], n, repeats)) for n in numbers)]
        for rule in RULES
        for curve in CURVES
    ]
    return table(["rule", "curve", *(f"{n} prompts" for n in numbers)], rows)


def differences_table(repeats: int) -> str:
    names = {"different prompts": 0} | {f"same prompts, noise {name} shared": share for name, share in SHARED.items()}
    rows = [
        [rule, curve, *(cell(difference_cells(rule, CURVES[curve][rule], 10, repeats, s)) for s in names.values())]
        for rule in RULES
        for curve in CURVES
    ]
    return table(["rule", "curve", *names], rows)


def scores_table(repeats: int) -> str:
    rows = []
    for skewed, n in itertools.product((False, True), (5, 10, 20)):
        *scores, slope = scores_covered(n, skewed, repeats)
        rows.append(["skewed" if skewed else "even", n, cell(scores), cell([slope])])
    return table(["examples", "per level", "score", "slope"], rows)


DOCUMENT = """# How often the intervals cover the truth

These tables are printed by `python -m tests.effective_depth.coverage`. The true value of each simulated study is known.
Each cell gives the percentage of 95% confidence intervals that cover it: the mean over kinds of noise, and in
parentheses the lowest. The number after the comma is the mean width of the intervals.

All intervals come from the jackknife: each prompt is left out once, and Student's t accounts for the number of prompts.

**One depth**, {depths} studies for each kind of noise (normal or lognormal, independent or correlated from layer to
layer). Curves have 28 layers and noise with a standard deviation of a quarter of their mean size. Widths are shares of
the number of layers.

{depths_table}

**The difference of two models**, {differences} studies each, 10 prompts. The second model's depth is three
layers earlier than the first's. Where both read the same prompts, the same prompt is left out of both.

{differences_table}

**A depth score** and its slope over three difficulty levels, {scores} studies each; width in layers. If a few
examples dominate (skewed: a lognormal weight on layer 0), the intervals cover the truth in only 88 to 92% of the
studies.

{scores_table}
"""

if __name__ == "__main__":
    numbers = {"depths": 200, "differences": 200, "scores": 400}
    tables = {f"{name}_table": globals()[f"{name}_table"](repeats) for name, repeats in numbers.items()}
    print(DOCUMENT.format(**numbers, **tables), end="")
