"""Is the deep model a stretched shallow one? Four numbers from the errors of all maps."""

import warnings
from collections.abc import Mapping

import numpy as np
from scipy.stats import spearmanr

CLOSE = 0.3  # relative error within which a target layer counts as predicted
ELSEWHERE = 0.1  # of the depth: source layers further away than this are at another relative depth

MEASURES = {
    "rank_correlation": "Spearman's correlation of the best source layer with the target layer (stretched: 1)",
    "distance": "mean |m*/M − l/N| of the best source layer from the diagonal, in relative depth (stretched: 0)",
    "predicted": f"share of target layers that some source layer predicts within a relative error of {CLOSE}",
    "penalty": "how much larger the error is when the map must come from another relative depth (mean over layers)",
}


def stretch(result: Mapping) -> dict[str, float]:
    """Each of MEASURES. result: what linear_maps returns. The correlation is nan where one layer is the best for all.

    There are no intervals over texts: a best layer jumps, and what differs more are other models.
    """
    relative = np.asarray(result["relative"], dtype=float)
    depth_source, depth_target = (np.linspace(0, 1, n) for n in relative.shape)
    best = relative.argmin(0)
    away = np.abs(depth_source[:, None] - depth_target)
    # however few source layers there are, the nearest one counts as at the same depth
    elsewhere = away > np.maximum(ELSEWHERE, away.min(0)) + 1e-9
    near, far = (np.where(mask, relative, np.inf).min(0) for mask in (~elsewhere, elsewhere))
    with warnings.catch_warnings(action="ignore"):  # of one best layer for all
        correlation = spearmanr(best, np.arange(len(best))).statistic
    return {
        "rank_correlation": float(correlation),
        "distance": float(np.abs(depth_source[best] - depth_target).mean()),
        "predicted": float((relative.min(0) <= CLOSE).mean()),
        "penalty": float((far - near).mean()),
    }
