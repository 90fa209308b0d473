"""How often the intervals of `depth_interval` contain the truth, measured on made-up populations of prompts.

`python -m tests.benchmarks.coverage` writes interval_coverage.csv beside this file (minutes). A population has a known
mean curve, so a known effective depth; prompts of 40 to 200 tokens are drawn from it, each with a curve of its own, and
an interval is computed from them as from a model's results.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from depth_lib.effective_depth.intervals import DRAWS, depth_interval, depths_of
from depth_lib.effective_depth.rules import METRICS

N_LAYERS, REPEATS, N_PROMPTS = 28, 300, (5, 10, 30, 100)
MEASURED = Path(__file__).with_name("interval_coverage.csv")

DEPTH = np.linspace(0, 1, N_LAYERS)
# Per metric, curves as models have them: one that crosses steeply and one that lingers about its threshold.
POPULATIONS = {
    ("cosine", "steep"): 0.24 * (DEPTH - 0.25) * (DEPTH - 0.62) - 0.005,
    ("cosine", "lingering"): np.where(DEPTH < 0.5, -0.01, 0.004),
    ("kl", "steep"): 0.3 + 15 / (1 + np.exp((DEPTH - 0.8) / 0.06)),
    ("kl", "lingering"): 12 * (1 - DEPTH) + 1,
    ("overlap", "steep"): 0.8 / (1 + np.exp((0.88 - DEPTH) / 0.05)),
    ("overlap", "lingering"): np.where(DEPTH < 0.5, 0.1, np.where(DEPTH < 0.8, 0.31, 0.6)),
}
_SMOOTH = np.linalg.cholesky(
    np.exp(-0.5 * ((np.arange(N_LAYERS)[:, None] - np.arange(N_LAYERS)) / 3.5) ** 2) + 1e-8 * np.eye(N_LAYERS)
)
# How prompts differ from the mean: in every layer by itself, alike in neighbouring layers, or a few by very much.
NOISES = {
    "independent": lambda draw, shape: draw.standard_normal(shape),
    "shared": lambda draw, shape: draw.standard_normal(shape) @ _SMOOTH.T,
    "skewed": lambda draw, shape: (np.exp(0.8 * draw.standard_normal(shape)) - np.exp(0.32)) / 1.3,
}


def coverage(metric, population, noise, n_prompts, repeats):
    """The share of intervals that contain the true effective depth, and their mean width in layers.

    The noise of a prompt has a standard deviation of 0.25 mean |curve|.
    """
    curve = POPULATIONS[metric, population]
    truth = depths_of(metric, curve[None])[0]
    draw = np.random.default_rng([0, n_prompts, *map(ord, metric + population + noise)])
    contained, width = 0, 0
    for _ in range(repeats):
        n_tokens = draw.integers(40, 200, n_prompts).astype(float)
        prompts = curve + 0.25 * np.abs(curve).mean() * NOISES[noise](draw, (n_prompts, N_LAYERS))
        sums = {f"{key}_sums": prompts * n_tokens[:, None] for key in METRICS[metric].keys}
        interval = depth_interval(sums | {"n_tokens": n_tokens}, metric, DRAWS)
        low = -1 if interval.low is None else interval.low
        high = N_LAYERS - 1 if interval.high is None else interval.high
        contained += low <= truth <= high
        width += high - low
    return {"coverage": contained / repeats, "width": width / repeats}


def main():
    rows = []
    for n_prompts, (metric, population), noise in itertools.product(N_PROMPTS, POPULATIONS, NOISES):
        row = {"metric": metric, "population": population, "noise": noise, "n_prompts": n_prompts, "repeats": REPEATS}
        rows.append(row | coverage(*list(row.values())))
        print(*rows[-1].values(), flush=True)
    pd.DataFrame(rows).round(4).to_csv(MEASURED, index=False)


if __name__ == "__main__":
    main()
