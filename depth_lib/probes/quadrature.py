"""∫₀¹ v(r) dr of the slopes v [T] of a function F along a path, dF/dr = Σ_t v_t: a loop, or as few points as it takes.

The papers' loop is `left_ends`: the mean of v(k / 256) over k = 0..255. `panels` gets a better integral from fewer
points, and says how good it is:

1. A panel is a stretch of the path with its two ends and 7 points (Gauss's) or 15 (Kronrod's, among them these 7).
   The polynomial through the 7 or 15 is integrated; the first panel is the whole path.
2. Its error is estimated in two ways: d is the difference from a coarser rule on the same points; m is F from one
   point to the next minus the polynomial's integral. m detects jumps between the points; d detects parts that cancel
   in their sum.
3. The two panels with the largest errors get 15 points, or are cut, until the estimated error is small enough.

In half precision d and m are mostly rounding, which is measured and taken off: slopes are measured again at a few of
the points on paths 1 and 2, which are rounded otherwise but equal in exact arithmetic. How much they differ at a point
is the rounding of a slope; how much their mean over the points differs is the rounding of the integral. What d has
beyond twice the rounding of a slope is the panels' error, and what all m of a panel have in their sum, if one of them
is beyond three times its rounding: a jump lies between two points, while rounding of F at the ends is in the sum alone.
Errors have random signs, so they are added in squares over panels. The largest of many tokens' errors is taken to be
their 3-norm, since the largest of n equal random errors is about the cube root of n times as large as one.

The rules are QUADPACK's qk15 (Piessens et al. 1983). Both functions are generators, so that the points of many paths
can share a forward pass: they yield (points, path), path 0 or one of those that are rounded otherwise, 1 and 2, are
sent (v [R, T], F, a list of R), and return a dict.
"""

import math

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
    v, f = yield [1.0, *(k / steps for k in range(steps))], 0
    return {"integral": v[1:].mean(0), "n_nodes": steps, "f": (f[1], f[0])}


def panels(tolerance, eps, largest_f=1, limit=256):
    """Panels that are refined until no token's estimated error is above tolerance · the largest |integral|.

    A panel is not refined for less than 2.5 · eps · F, eps being the machine epsilon of the model's dtype, nor below a
    width of eps: points closer than that are told apart by their rounding alone. In half precision no panel is refined
    for less than the rounding of the integral, nor once six rounds have not taken a fifth off the error. largest_f: the
    largest F there can be. At most `limit` points.

    Returns `integral` [T], `n_nodes`, the points taken, `f`, F(0) and F(1), and relative to the largest |integral|
    `quadrature`, the largest estimated error of the panels, `rounding`, and `error`, the root of their squares' sum.
    """
    rules, half = gauss_kronrod(), eps > 1e-4
    seven, known, moved, done, pieces = rules[7]["nodes"], {}, {}, [], [(0.0, 1.0, 7)]
    of_slope, of_mean, rounding, errors = 0.0, 0.0, 0.0, []
    if half:
        limit -= 2 * len(seven)
    while pieces:
        points = _unknown(pieces, known, rules)
        v, f = yield points, 0
        known.update(zip(points, zip(v, f, strict=True), strict=True))
        if half and len(errors) in (0, 3):  # two nodes at first, all seven where there are many points
            of_slope, of_mean = yield from _rounding(seven if moved else seven[2:5:2], known, moved)
        done += [_panel(piece, known, rules, of_slope, largest_f) for piece in pieces]
        integral = sum(panel["integral"] for panel in done)
        largest = integral.abs().max().item()
        if half:
            error, rounding = _combined(done, known, of_slope, of_mean, largest_f)
            least = rounding
        else:
            error = sum(panel["error"] for panel in done).max().item()
            least = 2.5 * eps * max(f for _, f in known.values())
        pieces, errors = [], [*errors, error]
        futile = half and len(errors) > 6 and error > 0.8 * min(errors[:-6])
        if error > max(tolerance * largest, rounding) and not futile:  # false for NaN
            done, pieces = _refined(done, known, rules, least, tolerance * largest, limit, eps)
    scale = max(largest, eps * max(f for _, f in known.values())) or 1.0  # less cannot be told from rounding of F
    return {
        "integral": integral,
        "n_nodes": len(known) + len(moved),
        "f": (known[0.0][1], known[1.0][1]),
        "error": math.hypot(error, rounding) / scale,
        "quadrature": error / scale,
        "rounding": rounding / scale,
    }


def _unknown(pieces, known, rules):
    """The points of pieces that are not among the known ones, each once."""
    points = [r for piece in pieces for r in _points(piece, rules)]
    return [r for r in dict.fromkeys(points) if r not in known]


def _points(piece, rules):
    """The ends of a piece (start, end, number of nodes) and its nodes between them."""
    start, end, n = piece
    return [start, *(start + (end - start) * x for x in rules[n]["nodes"]), end]


def _rounding(points, known, moved):
    """How far slopes v are off by rounding, relative to ‖v‖: one alone, and the mean of those at all points.

    moved: {(path, r): v}, what is known of paths 1 and 2, to which these points are added. Both numbers are standard
    deviations over the three paths. A point near a jump, which is elsewhere on another path, is left out: where the
    variance is more than four times the median.
    """
    for path in (1, 2):
        unknown = [r for r in points if (path, r) not in moved]
        v, _ = yield unknown, path
        moved.update(zip([(path, r) for r in unknown], v, strict=True))
    v = torch.stack([torch.stack([known[r][0], moved[1, r], moved[2, r]]) for r in points])  # [points, paths, T]
    mean = v.mean(1, keepdim=True)
    off = (v - mean) / mean.norm(dim=-1, keepdim=True).clamp_min(1e-37)
    variance = off.square().sum((1, 2)) / 2
    kept = ~(variance > 4 * variance.median())  # all where they are NaN
    of_mean = off[kept].mean(0).square().sum() / 2
    return variance[kept].mean().sqrt().item(), of_mean.sqrt().item()


def _combined(done, known, of_slope, of_mean, largest_f):
    """The largest token's error of all panels, each of which has its own sign, and the rounding of the integral.

    What the integral misses of F(1) − F(0), beyond twice the rounding of both, is one more error.
    """
    f_b, f_x = known[0.0][1], known[1.0][1]
    absolute = sum(panel["absolute"] for panel in done)
    missed = sum(panel["integral"] for panel in done).sum() - (f_x - f_b)
    missed = _beyond(missed, (of_slope * f_x * (1 - f_x / largest_f)) ** 2 + (of_mean * absolute.norm()) ** 2)
    squares = sum(panel["error"].square() for panel in done) + _divided(missed, absolute).square()
    return squares.sqrt().norm(3).item(), of_mean * absolute.norm(3).item()


def _panel(piece, known, rules, of_slope, largest_f):
    """A piece with its points, its integral [T] and what is wrong with it: the estimated error [T], the largest of them
    as `worst`, and `missed`, |m| from one point to the next; `absolute` [T] is the integral of |v|.

    With s the integral of |v − its mean|, the error is s · (d / s)^1.5 after QUADPACK, without its factor 200: a rule
    is that much better than the coarser one that it is compared with. It is at least max s · (M / max s)^1.5 with
    M = 1.5 Σ |m| (or M, where that is less) and at least |Σ m|.

    In half precision `of_slope` is not 0, and twice the rounding of d and Σ m and three times that of each m is taken
    off first, in squares: of_slope · v and, as F is a sum of probabilities p of rounded logits, of_slope · Σ p (1 − p),
    taking the p for equal. |Σ m| is one more error then, if anything is left of an m.
    """
    points, rule = _points(piece, rules), rules[piece[2]]
    f = torch.tensor([known[r][1] for r in points], dtype=torch.float32)
    values, width = torch.stack([known[r][0] for r in points[1:-1]]), piece[1] - piece[0]
    with torch.autocast("cpu", enabled=False):  # a server's would round these products to bfloat16
        integral, coarse = width * (rule["fine"] @ values), width * (rule["coarse"] @ values)
        spread = (width * (rule["fine"] @ (values - integral / width).abs())).clamp_min(1e-37)
        absolute = width * (rule["fine"] @ values.abs())
        difference = (integral - coarse).abs()
        missed = width * (rule["gaps"] @ values.sum(1)) - f.diff()
        total, missed = missed.sum().abs(), missed.abs()
        if of_slope:
            of_f = (of_slope * f * (1 - f / largest_f).clamp_min(0)).square()
            of_v = (of_slope * width * values.norm(dim=1)).square()
            difference = _beyond(difference, (rule["fine"] - rule["coarse"]).square() @ of_v)
            total = _beyond(total, of_f[0] + of_f[-1] + rule["fine"].square() @ of_v)
            missed = _beyond(missed, of_f[1:] + of_f[:-1] + rule["gaps"].square() @ of_v, times=3)
            total = total * missed.any()
    error = spread * (difference / spread).pow(1.5)
    if of_slope:
        error = torch.hypot(error, _divided(total, absolute))
    else:
        unseen, largest = 1.5 * missed.sum(), spread.max()
        error = error.clamp_min(torch.maximum(unseen * (unseen / largest).clamp_max(1).sqrt(), total))
    return {
        "piece": piece,
        "integral": integral,
        "absolute": absolute,
        "error": error,
        "worst": error.max().item(),
        "missed": missed.tolist(),
    }


def _divided(total, absolute):
    """What each token has of an error of all tokens' sum: if errors are as large as their ∫|v| and have random signs,
    their sum is as large as the norm of ∫|v|."""
    return total * absolute / absolute.norm().clamp_min(1e-37)


def _beyond(x, variance, times=2):
    """What of |x| stands out of `times` its rounding: the root of what is left of the square."""
    return (x.square() - times**2 * variance).clamp_min(0).sqrt()


def _refined(done, known, rules, least, wanted, limit, narrowest):
    """The panels that are kept, and the pieces that replace the two with the largest errors: the first where it is off
    by more than `least`, the second where it is also off by more than `wanted`."""
    pieces = []
    for panel in sorted(done, key=lambda panel: -panel["worst"])[:2]:
        if panel["worst"] > (max(least, wanted) if pieces else least):
            room = limit - len(known) - len(_unknown(pieces, known, rules))
            for finer in _ways(panel, rules):
                if len(_unknown(finer, known, rules)) <= room and min(b - a for a, b, _ in finer) >= narrowest:
                    done = [other for other in done if other is not panel]
                    pieces = pieces + finer
                    break
    return done, pieces


def _ways(panel, rules, share=0.7):
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
