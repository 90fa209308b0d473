"""∫₀¹ f(r) dr from points that can be used again when there are twice as many (Clenshaw and Curtis 1960).

f is taken for the sum Σ a_j T_j of Chebyshev polynomials that has its values at n + 1 points, and that is integrated.
With n doubled every second point is an old one, and the old integral says how good the new one is.
"""

import math

import torch


def clenshaw_curtis(n):
    """n + 1 points of [0, 1], their ends among them, and weights: ∫₀¹ f dr ≈ Σ w f(r). n: even; both float64."""
    k, j = torch.arange(n + 1, dtype=torch.float64), torch.arange(0, n + 1, 2, dtype=torch.float64)
    of_degree = 1 / (1 - j**2)  # half of ∫ T_j over [−1, 1]; 0 for odd j
    of_degree[[0, -1]] /= 2
    weights = 2 / n * (torch.cos(math.pi / n * k[:, None] * j) * of_degree).sum(1)
    weights[[0, -1]] /= 2
    return (1 - torch.cos(math.pi / n * k)) / 2, weights


def converged(sample, tolerance, eps, most):
    """The integral [T] of the slopes v [T] of a function F, dF/dr = Σ_t v_t, by doubling the points until it is good.

    sample(r): v [R, T] and F [R] at R points. With D the largest difference of an integral from that of half as many
    points, relative to the largest, its error is D^1.5 (as in QUADPACK), or
    by how much its sum misses F(1) − F(0), whichever is more: a jump between the points shows in the second.
    It is good if that is at most `tolerance` of the largest |integral|, or 5 eps F, which is rounding.

    Returns `integral` [T], `n_nodes`, `f`, F(0) and F(1), and `error`, relative to the largest |integral|.
    """
    n, (points, weights) = 8, clenshaw_curtis(8)
    v, f = sample(points)
    while True:
        integral, coarse = (w @ x.double() for w, x in ((weights, v), (clenshaw_curtis(n // 2)[1], v[::2])))
        differ, missed = (integral - coarse).abs().max().item(), (integral.sum() - (f[-1] - f[0])).abs().item()
        largest, rounding = integral.abs().max().item(), 5 * eps * f.max().item()
        error = max(differ * min(1.0, differ / max(largest, 1e-30)) ** 0.5, missed)
        if error <= max(tolerance * largest, rounding) or 2 * n > most:
            found = {"integral": integral.float(), "n_nodes": n + 1, "f": (f[0].item(), f[-1].item())}
            return found | {"error": (error + rounding) / max(largest, rounding, 1e-30)}
        n, (points, weights) = 2 * n, clenshaw_curtis(2 * n)
        new_v, new_f = sample(points[1::2])
        v, f = _interleaved(v, new_v), _interleaved(f, new_f)


def _interleaved(old, new):
    """[n + 1, …] and [n, …] -> [2 n + 1, …], every second from the first."""
    both = old.new_empty(len(old) + len(new), *old.shape[1:])
    both[::2], both[1::2] = old, new
    return both
