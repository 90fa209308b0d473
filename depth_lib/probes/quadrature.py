"""∫₀¹ v(r) dr of the slopes v [T] of a function F along a path, dF/dr = Σ_t v_t: a loop, or as few points as it takes.

The papers' loop is `left_ends`: the mean of v(k / 256) over k = 0..255. `increments` needs no slopes, only F where one
token is a step ahead of the others or behind them. `panels` gets a better integral from fewer points than the loop, and
says how good it is:

1. A panel is a stretch of the path with its two ends and 7 points (Gauss's) or 15 (Kronrod's, among them these 7).
   The polynomial through the 7 or 15 is integrated; the first panel is the whole path.
2. Its error is estimated in two ways: d is the difference from a coarser rule on the same points; m is F from one
   point to the next minus the polynomial's integral. m detects jumps between the points; d detects parts that cancel
   in their sum.
3. The two panels with the largest errors get 15 points, or are cut, until the estimated error is small enough.

The rules are QUADPACK's qk15 (Piessens et al. 1983). The three functions are generators, so that the points of many
paths can share a forward pass: they yield points (r, t, s), where token t is at s and all others are at r, are sent
(v [R, T], F, a list of R), and return a dict.
"""

import torch

# Kronrod's 15 nodes of [−1, 1] that are not above 0; every second one is Gauss's
_NODES = (
    -0.9914553711208126,
    -0.9491079123427585,
    -0.8648644233597691,
    -0.7415311855993944,
    -0.5860872354676911,
    -0.4058451513773972,
    -0.2077849550078985,
    0.0,
)


def left_ends(steps):
    """The papers' rule, the mean over `steps` left ends: `integral` [T], `n_nodes`, and `f`, F(0) and F(1)."""
    v, f = yield _together([1.0, *(k / steps for k in range(steps))])
    return {"integral": v[1:].mean(0), "n_nodes": steps, "f": (f[1], f[0])}


def increments(steps, n_tokens):
    """What F changes by when token t alone takes each of K steps, from where all tokens are before it, and to where
    they are after it: the mean of both, summed over the steps, which converges to the integral as K⁻².

    With D half of how far the two differ, summed over the steps for the worst token, and m what a step misses of F's
    change, the error is D or 2 Σ |m|, whichever is less, but at least |Σ m| and, after QUADPACK, what D is if each
    token's share of it in a step is made as much smaller as its root is than its increment's.

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


def panels(tolerance, eps, limit):
    """Panels that are refined until no token's estimated error is above tolerance · the largest |integral|.

    Up to 5 · eps · F, eps being the machine epsilon of the model's dtype, is rounding: no panel is refined for it, nor
    below a width of eps, and the stated error is no less. At most `limit` points.

    Returns `integral` [T], `n_nodes`, the points taken, `f`, F(0) and F(1), and the largest estimated `error` of a
    token relative to the largest |integral|.
    """
    rules, known, done, pieces = gauss_kronrod(), {}, [], [(0.0, 1.0, 7)]
    while pieces:
        points = _unknown(pieces, known, rules)
        v, f = yield _together(points)
        known.update(zip(points, zip(v, f, strict=True), strict=True))
        rounding = 5 * eps * max(f for _, f in known.values())
        done += [_panel(piece, known, rules, rounding) for piece in pieces]
        integral = sum(panel["integral"] for panel in done)
        error, stated = (sum(panel[key] for panel in done).max().item() for key in ("error", "stated"))
        largest = integral.abs().max().item()
        pieces = []
        if error > max(tolerance * largest, rounding):  # false for NaN
            done, pieces = _refined(done, known, rules, rounding, tolerance * largest, limit, eps)
    return {
        "integral": integral,
        "n_nodes": len(known),
        "f": (known[0.0][1], known[1.0][1]),
        "error": (stated + rounding) / largest if largest > rounding else stated / (rounding or 1.0),
    }


def _unknown(pieces, known, rules):
    """The points of pieces that are not among the known ones, each once."""
    points = [r for piece in pieces for r in _points(piece, rules)]
    return [r for r in dict.fromkeys(points) if r not in known]


def _points(piece, rules):
    """The ends of a piece (start, end, number of nodes) and its nodes between them."""
    start, end, n = piece
    return [start, *(start + (end - start) * x for x in rules[n]["nodes"]), end]


def _panel(piece, known, rules, rounding):
    """A piece with its integral [T] and what is wrong with it: the estimated error [T] that is refined, the largest of
    them as `worst`, and the `stated` one [T]; `missed`, |m| from one point to the next."""
    points, rule = _points(piece, rules), rules[piece[2]]
    f = torch.tensor([known[r][1] for r in points], dtype=torch.float32)
    values, width = torch.stack([known[r][0] for r in points[1:-1]]), piece[1] - piece[0]
    with torch.autocast("cpu", enabled=False):  # a server's would round these products to bfloat16
        integral, coarse = width * (rule["fine"] @ values), width * (rule["coarse"] @ values)
        spread = (width * (rule["fine"] @ (values - integral / width).abs())).clamp_min(1e-37)
        missed = width * (rule["gaps"] @ values.sum(1)) - f.diff()
    beyond = [(x.abs() - rounding).clamp_min(0).sum() for x in (missed, missed.sum())]
    of_rule, least = _errors((integral - coarse).abs(), spread, *beyond, 1.5)
    error = torch.maximum(of_rule, least)
    stated = torch.minimum(error, sum(_errors((integral - coarse).abs(), spread, *beyond, 2.25)))
    return {
        "piece": piece,
        "integral": integral,
        "error": error,
        "stated": stated,
        "worst": error.max().item(),
        "missed": missed.abs().tolist(),
    }


def _errors(difference, spread, missed, in_all, power):
    """Two estimates of a panel's error: one of each token's [T], and one of the worst token's.

    With s the integral of |v − its mean|, the first is s · (d / s)^power, or d where d > s: a rule is that much better
    than the coarser one that it is compared with. The second is max s · (M / max s)^power with M = 1.5 Σ |m| (or M,
    where that is less), or 2 |Σ m| if that is more, each less its rounding: |Σ m| is the error of the tokens' sum, and
    where a step is narrower than the distance between the points m does not alternate in sign, a token may be off
    by all of it, and others that are off the other way hide a part.

    Panels are refined by the larger of the two with QUADPACK's power, 1.5. The stated error is their sum with power
    2.25, if that is less: it bounds the true one of all sums of steps, at a fifth of what power 1.5 states, and of 95 %
    of the sums of cusps |r − c|^p, of 3000 each (tests/probes/test_quadrature.py has 900).
    """
    unseen, largest = 1.5 * missed, spread.max()
    least = torch.maximum(unseen * (unseen / largest).clamp_max(1).pow(power - 1), 2 * in_all)
    return difference * (difference / spread).clamp_max(1).pow(power - 1), least


def _refined(done, known, rules, least, wanted, limit, narrowest):
    """The panels that are kept, and the pieces that replace the two with the largest errors: the first where it is off
    by more than `least`, the second where it is also off by more than `wanted`."""
    pieces = []
    for panel in sorted(done, key=lambda panel: -panel["worst"])[:2]:
        if panel["worst"] > (max(least, wanted) if pieces else least):
            room = limit - len(known) - len(_unknown(pieces, known, rules))
            for finer in _finer_panels(panel, rules):
                if len(_unknown(finer, known, rules)) <= room and min(b - a for a, b, _ in finer) >= narrowest:
                    done = [other for other in done if other is not panel]
                    pieces = pieces + finer
                    break
    return done, pieces


def _finer_panels(panel, rules, share=0.7):
    """The pieces that may replace a panel, what is best first: cut around the shortest stretch that has 70 % of what is
    missed, if that is narrow; else 15 nodes for 7; or else halves."""
    (start, end, n), points, missed = panel["piece"], _points(panel["piece"], rules), panel["missed"]
    width, low, high = min(
        (points[j] - points[i], points[i], points[j])
        for i in range(len(missed))
        for j in range(i + 1, len(points))
        if not sum(missed[i:j]) < share * sum(missed)
    )
    middle = (start + end) / 2
    halves = [(start, middle, 7), (middle, end, 7)]
    if sum(missed) and width < 0.4 * (end - start):
        cuts = sorted({start, low, high, end})
        return [[(a, b, 7) for a, b in zip(cuts[:-1], cuts[1:], strict=True)], halves]
    return [[(start, end, 15)], halves] if n == 7 else [halves]


def gauss_kronrod():
    """The two rules for panels of 7 and of 15 nodes, by their number of nodes n.

    Each a dict of `nodes`, floats in (0, 1), and weights: `fine` [n], the rule's own; `coarse` [n], those of what it is
    compared with (Gauss's for 15 nodes, the parabola through every second node for 7); `gaps` [n + 1, n], of the
    integrals of the polynomial through the nodes from one point to the next, the ends among them.
    """
    nodes = [(1 + x) / 2 for x in _NODES]
    nodes += [1 - x for x in reversed(nodes[:-1])]
    rules = {}
    for x in nodes[1::2], nodes:
        coarse = torch.zeros(len(x), dtype=torch.float32)
        coarse[1::2] = _weights(x[1::2], [0.0, 1.0])[0]
        fine, gaps = _weights(x, [0.0, 1.0])[0], _weights(x, [0.0, *x, 1.0])
        rules[len(x)] = {"nodes": x, "fine": fine, "coarse": coarse, "gaps": gaps}
    return rules


def _weights(nodes, ends):
    """[len(ends) − 1, n]: weights of the integrals from one end to the next of the polynomial through n nodes."""
    nodes, ends = (2 * torch.tensor(x, dtype=torch.float64)[:, None] - 1 for x in (nodes, ends))
    k = torch.arange(len(nodes), dtype=torch.float64)
    integrals = ends ** (k + 1) / (2 * k + 2)  # of the k-th power over [0, r], up to a constant
    return (integrals.diff(dim=0) @ torch.linalg.inv(nodes**k)).float()
