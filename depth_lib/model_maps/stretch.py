"""Is the deep model a stretched shallow one? Four numbers from the errors of all maps, two with intervals."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

CLOSE = 0.3  # relative error within which a target layer counts as predicted
ELSEWHERE = 0.1  # of the depth: source layers further away than this are at another relative depth
N_DRAWS, LEVEL, _SEED = 1000, 0.95, 0

OF_BEST = ("rank_correlation", "distance")  # read off which source layer is the best
MEASURES = {
    "rank_correlation": "Spearman's correlation of the best source layer with the target layer (stretched: 1)",
    "distance": "mean |m*/M − l/N| of the best source layer from the diagonal, in relative depth (stretched: 0)",
    "predicted": f"share of target layers that some source layer predicts within a relative error of {CLOSE}",
    "penalty": "how much larger the error is when the map must come from another relative depth (mean over layers)",
}


def stretch(result: Mapping) -> dict[str, tuple[float, float | None, float | None]]:
    """Each of MEASURES as (value, low, high), the ends of a 95 % interval over the tested sequences of text.

    result: what linear_maps returns. The interval is a bootstrap: sequences are drawn with replacement 1000 times. What
    is read off the best source layers has none (None, None): a best layer jumps, and the bootstrap of an argmin does
    not cover the truth. Their correlation is nan where one layer is the best for all (no ranks).
    """
    sums, n_tokens = (np.asarray(result[key], dtype=float) for key in ("relative_sums", "n_tokens"))
    n = len(n_tokens)
    draws = np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), size=N_DRAWS).astype(float)
    weights = np.vstack([np.ones(n), draws])
    relative = np.tensordot(weights, sums, 1) / (weights @ n_tokens)[:, None, None]
    values = pd.DataFrame(measure(relative))  # the first row is of the sequences as they are
    ends = values[1:].quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        name: (float(values[name][0]), *((None, None) if name in OF_BEST else map(float, ends[name])))
        for name in values
    }


def measure(relative: np.ndarray) -> dict[str, np.ndarray]:
    """MEASURES of every draw: relative [B, M, N] -> name -> [B]."""
    _, n_source, n_target = relative.shape
    best = relative.argmin(1)
    depth_source, depth_target = np.linspace(0, 1, n_source), np.linspace(0, 1, n_target)
    away = np.abs(depth_source[:, None] - depth_target)
    # however few source layers there are, the nearest one counts as at the same depth
    elsewhere = away > np.maximum(ELSEWHERE, away.min(0)) + 1e-9
    near, far = (np.where(mask, relative, np.inf).min(1) for mask in (~elsewhere, elsewhere))
    return {
        "rank_correlation": _rank_correlation(best),
        "distance": np.abs(depth_source[best] - depth_target).mean(1),
        "predicted": (relative.min(1) <= CLOSE).mean(1),
        "penalty": (far - near).mean(1),
    }


def _rank_correlation(best: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row [B, N] with 0..N−1, ties at their mean rank; nan for a constant row."""
    ranks = pd.DataFrame(best.T).rank()
    return ranks.corrwith(pd.Series(np.arange(len(ranks)))).to_numpy()
