"""How often the intervals cover the truth, in simulations: `python -m tests.effective_depth.coverage` prints
the first part of docs/coverage.md, in about ten minutes of one core."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch

from depth_lib.effective_depth.difficulty import depth_scores
from depth_lib.effective_depth.intervals import depth_interval
from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS
from depth_lib.report.conclusions import changes

DRAWS, N_MODELS, N_LAYERS = 500, 12, 28
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


def changes_covered(
    metric: str, before: np.ndarray, after: np.ndarray, n_prompts: int, shared: float, repeats: int, along: float
) -> dict[str, tuple[float, float]]:
    """The share of intervals of a change that cover the true one, and the share that are closed, by question.

    12 models read two datasets. In Task all models have the curve `before` on the first one and `after` on the second;
    in Training six models have each, in Size they alternate. shared: of the noise's variance, what all models have in
    common on a dataset. Studies in which a run has no depth are left out, as a run without one is not compared.
    """
    draw, covered = np.random.default_rng(n_prompts), {}
    models = pd.DataFrame({"model": [f"m{k}" for k in range(N_MODELS)], "doublings": np.arange(N_MODELS) % 4})
    models["training"] = np.where(np.arange(N_MODELS) < N_MODELS // 2, "base", "instruct")
    designs = {
        "task": ("dataset", ("x", "y"), ["model"], lambda runs: runs.dataset == "y"),
        "training": ("training", ("base", "instruct"), ["dataset"], lambda runs: runs.training == "instruct"),
        "size": ("doublings", (), ["dataset"], lambda runs: runs.doublings >= 2),
    }
    for question, (column, groups, same, is_after) in designs.items():
        n_datasets = 1 + (question == "task")
        runs = pd.concat([models.assign(dataset=dataset) for dataset in ("x", "y")[:n_datasets]])
        runs = runs.assign(metric=metric, layers=N_LAYERS)
        curves = np.where(is_after(runs).to_numpy()[:, None], after, before)
        deviation = np.array([spread(curve) for curve in curves])[:, None, None]
        truth = (depths_of(metric, curves) + 1) / N_LAYERS
        if question == "size":
            true = np.polyfit(runs.doublings, truth, 1)[0]
        else:
            true = truth[is_after(runs)].mean() - truth[~is_after(runs)].mean()
        hits = []
        while len(hits) < repeats:
            own, common = (
                noise(draw, (n_datasets, n, n_prompts, N_LAYERS), along).repeat(N_MODELS // n, axis=1)
                for n in (N_MODELS, 1)
            )
            noises = np.concatenate(np.sqrt(1 - shared) * own + np.sqrt(shared) * common)
            prompts = curves[:, None] + deviation * noises
            depths = depths_of(metric, prompts.mean(1))
            if ((depths >= 0) & (depths < N_LAYERS - 1)).all():
                names = zip(runs.dataset, runs.model, itertools.repeat(METRICS[metric].probe))
                study = {name: result_of(metric, one) for name, one in zip(names, prompts, strict=True)}
                (found,) = changes(study, runs.assign(ratio=(depths + 1) / N_LAYERS), column, groups, same, DRAWS)
                is_open = found["low"] is None
                hits.append((is_open or found["low"] - 1e-9 <= true <= found["high"] + 1e-9, not is_open))
        covered[question] = tuple(np.mean(hits, axis=0))
    return covered


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


def changes_table(repeats: int, numbers: Sequence[int] = (3, 5, 10)) -> str:
    def shares(n_prompts, shared):
        kinds = ("steep", "steep", 0.9), ("slow", "slow", 0.9), ("steep", "slow", 0)
        found = [
            changes_covered(metric, CURVES[before][metric], CURVES[after][metric], n_prompts, shared, repeats, along)
            for metric, (before, after, along) in itertools.product(PAPER_METRICS, kinds)
        ]
        by_question = {question: [one[question] for one in found] for question in found[0]}
        closed = np.mean([share for pairs in by_question.values() for _, share in pairs])
        return [*([share for share, _ in pairs] for pairs in by_question.values()), f"{100 * closed:.0f}"]

    rows = [[n, f"{shared:.0%}", *shares(n, shared)] for n in numbers for shared in (0, 0.5, 0.9)]
    return table(["prompts", "shared noise", "task", "training", "size", "closed intervals"], rows)


def scores_table(repeats: int) -> str:
    rows = []
    for skewed, n in itertools.product((False, True), (5, 10, 20)):
        *scores, slope = scores_covered(n, skewed, repeats)
        rows.append(["skewed" if skewed else "even", n, scores, [slope]])
    return table(["examples", "per level", "score", "slope"], rows)


DOCUMENT = """# How often the intervals cover the truth

Printed by `python -m tests.effective_depth.coverage`. Curves over 28 layers with a known depth and
noise of a standard deviation of a quarter of the curve's mean size; the share of simulated studies whose 95 % interval
covers the truth, in percent: the mean, and in parentheses the lowest.

**One depth**, {depths} studies each: noise normal and lognormal, independent and correlated from layer to layer (0.9).

{depths_table}

**A change** between models or datasets, as the report states it, {changes} studies of each question, rule and kind of
curve: 12 models whose curves cross steeply, slowly, or change from one to the other, with noise that is correlated from
layer to layer (0.9) or not, of whose variance all models share a part, since they read the same prompts.

{changes_table}

These intervals cover every combination of the runs' depths at once, so they are wide, and where a depth's own interval
is open so is theirs, which counts as covering: noise that all models share, and crossings that noise moves to earlier
layers, do not average out over models.

**A depth score** and its slope over three levels of difficulty, {scores} studies each. Where a few examples weigh
most (skewed: a lognormal weight on layer 0), the intervals cover the truth less often than in 95 % of the studies.

{scores_table}
"""

if __name__ == "__main__":
    numbers = {"depths": 200, "changes": 100, "scores": 400}
    tables = {f"{name}_table": globals()[f"{name}_table"](repeats) for name, repeats in numbers.items()}
    print(DOCUMENT.format(**numbers, **tables), end="")
