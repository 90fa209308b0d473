"""∫₀¹ f(r) dr from as few points as it takes, by bisecting the worst panels (Clenshaw and Curtis 1960).

A panel is a stretch of the path with five points, which lie closer at its ends. The polynomial through them is
integrated. Simpson's rule, from every second point, says how good that is.
"""

import math

import torch

PLACES = 0.0, 0.5 - math.sqrt(1 / 8), 0.5, 0.5 + math.sqrt(1 / 8), 1.0  # in a panel from 0 to 1
CLENSHAW_CURTIS = 1 / 30, 4 / 15, 2 / 5, 4 / 15, 1 / 30
SIMPSON = 1 / 6, 0, 2 / 3, 0, 1 / 6


def converged(sample, tolerance, eps, most):
    """The integral [T] of slopes v [T] of a function F, with dF/dr = Σ_t v_t, with an error below `tolerance`.

    sample(r) gives v [R, T] and F [R] at R points. The estimated error is the sum over panels of two numbers:

    - d² / s, or d where d > s: d is the difference from Simpson's rule, s the integral of |v − its mean|
    - 2 |m|, with m = Σ_t ∫ v_t dr − (F(end) − F(start)), in which a jump between two points shows

    It covers the true error of 99% of sums of steps and of 97% of sums of cusps (tests/probes/test_quadrature.py).
    Nothing is refined for 5 eps F, which is rounding, nor below a width of eps.

    Returns `integral` [T], `n_nodes`, `f`, F(0) and F(1), and `error`, the largest of a token with rounding added,
    relative to the largest |integral|.
    """
    known, panels, new = {}, [], [(0.0, 0.5), (0.5, 1.0)]
    while new:
        points = [r for r in dict.fromkeys(r for ends in new for r in _points(*ends)) if r not in known]
        known |= zip(points, zip(*sample(torch.tensor(points, dtype=torch.float64)), strict=True), strict=True)
        panels += [(ends, *_integrated(*ends, known)) for ends in new]
        rounding = 5 * eps * max(f.item() for _, f in known.values())
        errors = [off + 2 * max(0.0, missed - rounding) for _, _, off, missed in panels]
        integral, error = sum(panel[1] for panel in panels), sum(errors).max().item()
        largest, new = integral.abs().max().item(), []
        if error > max(tolerance * largest, rounding):  # false for NaN
            worst = torch.stack(errors).amax(1)
            for k in worst.argsort(descending=True)[: (most - len(known)) // 6].tolist():  # 6 new points each
                (start, end), middle = panels[k][0], sum(panels[k][0]) / 2
                if worst[k] >= worst.max() / 2 and middle - start >= eps:
                    new, panels[k] = [*new, (start, middle), (middle, end)], None
            panels = [panel for panel in panels if panel]
    error = (error + rounding) / largest if largest else 0.0
    f = known[0.0][1].item(), known[1.0][1].item()
    return {"integral": integral.float(), "n_nodes": len(known), "f": f, "error": error}


def _points(start, end):
    return [start + (end - start) * place for place in PLACES]


def _integrated(start, end, known):
    """A panel's integral [T], its estimated error [T] by Simpson's rule, and |m|."""
    v, f = (torch.stack(x).double() for x in zip(*(known[r] for r in _points(start, end)), strict=True))
    rule, simpson = (end - start) * torch.tensor([CLENSHAW_CURTIS, SIMPSON], dtype=torch.float64)
    integral = rule @ v
    spread = rule @ (v - integral / (end - start)).abs()
    difference = (integral - simpson @ v).abs()
    off = difference * (difference / spread.clamp_min(1e-37)).clamp_max(1)
    return integral, off, (integral.sum() - (f[-1] - f[0])).abs().item()
