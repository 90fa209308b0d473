"""How often the intervals of `depth_interval` hold the truth, measured on made-up populations of prompts.

python -m depth_lib.effective_depth.coverage       writes depth_lib/effective_depth/interval_coverage.csv (minutes)

A population has a known mean curve, so a known effective depth; prompts of 40 to 200 tokens are drawn from it, each
with a curve of its own, and an interval is computed from them as from a model's results.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from .intervals import DRAWS, depth_interval, depths_of
from .rules import METRICS

N_LAYERS, REPEATS, N_PROMPTS = 28, 300, (5, 10, 30, 100)
MEASURED = Path(__file__).parent / "interval_coverage.csv"
COMMAND = "python -m depth_lib.effective_depth.coverage"

_DEPTH = np.linspace(0, 1, N_LAYERS)
# Per metric, curves as models have them: one that crosses steeply and one that lingers about its threshold.
POPULATIONS = {
    ("cosine", "steep"): 0.24 * (_DEPTH - 0.25) * (_DEPTH - 0.62) - 0.005,
    ("cosine", "lingering"): np.where(_DEPTH < 0.5, -0.01, 0.004),
    ("kl", "steep"): 0.3 + 15 / (1 + np.exp((_DEPTH - 0.8) / 0.06)),
    ("kl", "lingering"): 12 * (1 - _DEPTH) + 1,
    ("overlap", "steep"): 0.8 / (1 + np.exp((0.88 - _DEPTH) / 0.05)),
    ("overlap", "lingering"): np.where(_DEPTH < 0.5, 0.1, np.where(_DEPTH < 0.8, 0.31, 0.6)),
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


def coverage(
    metric: str, population: str, noise: str, n_prompts: int, repeats: int, draws: int = DRAWS, seed: int = 0
) -> dict:
    """The share of intervals that hold the true effective depth, and their mean width in layers.

    The noise of a prompt has a standard deviation of 0.25 mean |curve|.
    """
    curve = POPULATIONS[metric, population]
    truth = depths_of(metric, curve[None])[0]
    draw = np.random.default_rng([seed, n_prompts, *map(ord, metric + population + noise)])
    held, width = 0, 0
    for _ in range(repeats):
        n_tokens = draw.integers(40, 200, n_prompts).astype(float)
        prompts = curve + 0.25 * np.abs(curve).mean() * NOISES[noise](draw, (n_prompts, N_LAYERS))
        sums = {f"{key}_sums": prompts * n_tokens[:, None] for key in METRICS[metric].keys}
        found = depth_interval(sums | {"n_tokens": n_tokens}, metric, draws)
        low = -1 if found.low is None else found.low
        high = N_LAYERS - 1 if found.high is None else found.high
        held += low <= truth <= high
        width += high - low
    return {
        "metric": metric,
        "population": population,
        "noise": noise,
        "n_prompts": n_prompts,
        "repeats": repeats,
        "coverage": held / repeats,
        "width": width / repeats,
    }


def measured_coverage() -> pd.DataFrame:
    """What this module's command measured, a row a metric × population × noise × number of prompts."""
    return pd.read_csv(MEASURED)


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--to", type=Path, default=MEASURED)
    asked = parser.parse_args()
    rows = []
    for n_prompts, (metric, population), noise in itertools.product(N_PROMPTS, POPULATIONS, NOISES):
        rows.append(coverage(metric, population, noise, n_prompts, asked.repeats))
        print(*rows[-1].values(), flush=True)
    pd.DataFrame(rows).round(4).to_csv(asked.to, index=False)


if __name__ == "__main__":
    main()
