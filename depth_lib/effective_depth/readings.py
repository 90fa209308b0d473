"""Depths that the passes of relative contribution and logit lens tell besides the papers': progress and settling.

Sources: settling, the depth at which a token's prediction has formed, after the Jensen–Shannon divergence of the lens;
thresholds and names are ours.
"""

import numpy as np

from .rules import Curve, Metric, checked_curve, first

LATE = 0.85  # of the model's depth


def progress_depth(progress: Curve, threshold: float = 0.5) -> int | None:
    """The first layer whose input has gone at least half of the way from the embeddings to the final residual.

    The first l in 0..L-1 with s[l] >= threshold; progress [L + 1] is s_l = ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖², mean
    over tokens. None where only the last block gets there. ValueError if it is not finite.
    """
    return first(checked_curve("progress", progress)[:-1] >= threshold)


def settling_depth(settled: Curve, threshold: float = 0.5) -> int | None:
    """The first layer at whose input half of the tokens have settled: the median over tokens of where each does.

    A token settles at the first l with min over j <= l of JSD(p_j, y) <= 1/2 bit. settled [L] is `res_settled`, the
    share of tokens that have by layer l; the first l with settled[l] >= threshold. None where most settle behind the
    last block only. ValueError if it is not finite.
    """
    return first(checked_curve("settled", settled) >= threshold)


def settling_profile(settled: Curve) -> np.ndarray:
    """The share of tokens that settles at each of layers 0..L-1, and behind the last block, shape [L + 1].

    Its centre of mass is the mean over tokens of the settling depth, with L for those that settle last of all.
    """
    return np.diff(checked_curve("settled", settled).astype(float), prepend=0, append=1).clip(0)


def settles_late(settled: Curve) -> float:
    """The share of tokens that settle after 0.85 L, those included that settle behind the last block only."""
    curve = checked_curve("settled", settled)
    return 1 - float(curve[int(LATE * len(curve) + 1e-9)])


READINGS = {
    "progress": Metric("relative_contribution", ("progress",), progress_depth, 0.5),
    "settling": Metric("logit_lens", ("res_settled",), settling_depth, 0.5, profile=settling_profile),
}
