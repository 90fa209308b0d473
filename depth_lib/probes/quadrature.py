"""∫₀¹ v(r) dr of the slopes v [T] of a function F along a path, dF/dr = Σ_t v_t.

- `left_ends`: the papers' loop, the mean of v(k / 256) over k = 0..255.
- `panels`: Gauss–Kronrod quadrature; the panel with the largest error is halved until the error is small enough.
- `increments`: no slopes, only F where one token is a step ahead of the others or behind them.

All three are generators, and whoever runs the model decides which points share a pass: they yield points (r, t, s),
where token t is at s and all others are at r, are sent (v [R, T], F, a list of R), and return a dict.
"""

import torch

# qk15 of QUADPACK (Piessens et al. 1983): nodes of [−1, 1] from −1 to 0, with Kronrod's and Gauss's weights
_HALF = (
    (-0.9914553711208126, 0.0229353220105292, 0.0),
    (-0.9491079123427585, 0.0630920926299786, 0.1294849661688697),
    (-0.8648644233597691, 0.1047900103222502, 0.0),
    (-0.7415311855993944, 0.1406532597155259, 0.2797053914892767),
    (-0.5860872354676911, 0.1690047266392679, 0.0),
    (-0.4058451513773972, 0.1903505780647854, 0.3818300505051189),
    (-0.2077849550078985, 0.2044329400752989, 0.0),
    (0.0, 0.2094821410847278, 0.4179591836734694),
)
RULE = [*_HALF, *((-x, kronrod, gauss) for x, kronrod, gauss in reversed(_HALF[:-1]))]


def left_ends(steps):
    """The papers' rule, the mean over `steps` left ends: `integral` [T], `n_nodes`, and `f`, F(0) and F(1)."""
    v, f = yield _together([1.0, *(k / steps for k in range(steps))])
    return {"integral": v[1:].mean(0), "n_nodes": steps, "f": (f[1], f[0])}


def increments(steps, n_tokens):
    """What F changes by when token t alone takes each of K steps, from where all tokens are before it, and to where
    they are after it: the mean of both, summed over the steps, which converges to the integral as K⁻².

    With D_k half of how far the two differ in step k, S_k the mean of their sizes and m_k what the step misses of F's
    change, the error is the largest of |Σ m|, Σ D √(D / S) and the lesser of Σ D and 2 Σ |m|; D and S of the worst
    token.

    Returns `integral` [T], `n_steps`, `f`, F(0) and F(1), and the largest estimated `error` of a token relative to the
    largest |integral|.
    """
    r = [k / steps for k in range(steps + 1)]
    ends = [pair for a, b in zip(r[:-1], r[1:], strict=True) for pair in ((a, b), (b, a))]
    _, f = yield _together(r) + [(others, t, alone) for others, alone in ends for t in range(n_tokens)]
    f = torch.tensor(f, dtype=torch.float64)
    path, (ahead, behind) = f[: steps + 1], f[steps + 1 :].view(steps, 2, n_tokens).unbind(1)
    ahead, behind = ahead - path[:-1, None], path[1:, None] - behind
    integral, missed = (ahead + behind).sum(0) / 2, (ahead + behind).sum(1) / 2 - path.diff()
    differ, size = (ahead - behind).abs() / 2, (ahead.abs() + behind.abs()).clamp_min(1e-37) / 2
    bounds = differ.sum(0).max(), 2 * missed.abs().sum()
    error = max(min(bounds), missed.sum().abs(), (differ * (differ / size).sqrt()).sum(0).max())
    largest = integral.abs().max()
    return {
        "integral": integral.float(),
        "n_steps": steps,
        "f": (path[0].item(), path[-1].item()),
        "error": (error / largest).item() if largest > 0 else 0.0,
    }


def _together(points):
    """Points where all tokens are at the same r."""
    return [(r, 0, r) for r in points]


class Panel:
    """A stretch of the path, from `start` to `end`: its `integral` [T] by Kronrod's rule, and the `error` [T] of that.

    The error is the difference from Gauss's rule on every second node or, if that is more, what the sum over tokens
    misses of F's rise: a jump between the nodes.
    """

    def __init__(self, start, end, v, rise, rounding):
        self.start, self.end = start, end
        with torch.autocast("cpu", enabled=False):  # a server's would round these products to bfloat16
            _, kronrod, gauss = torch.tensor(RULE, dtype=torch.float32).T * (end - start) / 2
            self.integral = kronrod @ v
            missed = (self.integral.sum() - rise).abs() - rounding
            self.error = torch.maximum((self.integral - gauss @ v).abs(), missed)


def panels(tolerance, eps, limit):
    """Panels of 15 nodes and their ends, halved until no token's error is above tolerance · the largest |integral|.

    Up to 5 · eps · F, eps being the machine epsilon of the model's dtype, is rounding: no panel is halved for it, nor
    below a width of eps, and the stated error is no less. At most `limit` points.

    Returns `integral` [T], `n_nodes`, the points taken, `f`, F(0) and F(1), and the largest estimated `error` of a
    token relative to the largest |integral|.
    """
    f, done, wanted = {}, [], [(0.0, 1.0)]
    while wanted:
        points = [start + (end - start) * (1 + x) / 2 for start, end in wanted for x, *_ in RULE]
        ends = [r for r in dict.fromkeys(sum(wanted, ())) if r not in f]
        v, values = yield _together(points + ends)
        f.update(zip(points + ends, values, strict=True))
        rounding = 5 * eps * max(f.values())
        for (start, end), of_panel in zip(wanted, v.split(len(RULE)), strict=False):  # the ends' slopes are not used
            done.append(Panel(start, end, of_panel, f[end] - f[start], rounding))
        integral, error = sum(panel.integral for panel in done), sum(panel.error for panel in done).max().item()
        largest, wanted = integral.abs().max().item(), []
        worst = max(done, key=lambda panel: panel.error.max())
        steep = worst.error.max() > rounding and worst.end - worst.start > 2 * eps
        if steep and error > tolerance * largest and len(f) + 2 * len(RULE) < limit:  # false for NaN
            middle = (worst.start + worst.end) / 2
            done.remove(worst)
            wanted = [(worst.start, middle), (middle, worst.end)]
    return {
        "integral": integral,
        "n_nodes": len(f),
        "f": (f[0.0], f[1.0]),
        "error": (error + rounding) / largest if largest > rounding else error / (rounding or 1.0),
    }
