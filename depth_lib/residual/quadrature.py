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
    """The integral [T] of slopes v [T] of a function F, with dF/dr = Σ_t v_t, by doubling the points until the error
    is small.

    sample(r) gives v [R, T] and F [R] at R points. The estimated error is the larger of two numbers, relative to
    the largest |integral|:

    - D^1.5, where D is the largest difference from the integral with half as many points (as in QUADPACK)
    - six times the gap between the integrals' sum and F(1) − F(0), in which a jump between two points shows. With a
      factor of six the bound holds for 95 % of paths with cusps (tests/probes/test_quadrature.py)

    It stops at `tolerance`, or at 5 eps F, which is rounding. Returns `integral` [T], `n_nodes`, `f`, F(0) and
    F(1), and `error`, with rounding added.
    """
    n, (points, weights), (_, coarse_weights) = 8, clenshaw_curtis(8), clenshaw_curtis(4)
    v, f = sample(points)
    while True:
        integral, coarse = weights @ v.double(), coarse_weights @ v[::2].double()
        missed = (integral.sum() - (f[-1] - f[0])).abs().item()
        largest = integral.abs().max().item() or 1e-30
        rounding = 5 * eps * f.max().item() / largest if integral.any() else 0.0
        D = (integral - coarse).abs().max().item() / largest
        off = max(missed / largest, D * min(1.0, D) ** 0.5)
        error = max(6 * missed / largest, off)
        if not (error > tolerance and off > rounding) or 2 * n + 1 > most:  # NaN ends it too
            f = f[0].item(), f[-1].item()
            return {"integral": integral.float(), "n_nodes": n + 1, "f": f, "error": error + rounding}
        n, coarse_weights, (points, weights) = 2 * n, weights, clenshaw_curtis(2 * n)
        new_v, new_f = sample(points[1::2])
        v, f = _interleaved(v, new_v), _interleaved(f, new_f)


def _interleaved(old, new):
    """[n + 1, …] and [n, …] -> [2 n + 1, …], every second from the first."""
    both = old.new_empty(len(old) + len(new), *old.shape[1:])
    both[::2], both[1::2] = old, new
    return both
