"""∫₀¹ v(r) dr of the slopes v [T] of a function F along a path, dF/dr = Σ_t v_t: a loop, or as few points as it takes.

The papers' loop is `left_ends`: the mean of v(k / 256) over k = 0..255. `panels` gets a better integral from fewer
points, and says how good it is:

1. A panel is a stretch of the path with 7 points (Gauss's) or 15 (Kronrod's, among them these 7). The polynomial
   through them is integrated; the first panel is the whole path.
2. Its error is estimated in two ways: d is the difference from a coarser rule on the same points; m is F from one
   point to the next minus the polynomial's integral. m detects jumps between the points; d detects parts that cancel
   in their sum.
3. The two panels with the largest errors get 15 points, or are cut, until the estimated error is small enough.

In half precision F and v are rounded so coarsely that d and m are mostly rounding. There the rounding is measured at
two points, or seven where panels are refined, of two other paths, which are equal up to rounding, and only what is
larger than twice that counts as error of a panel. What m misses, jumps, has either sign, so it is added in squares.

The rules are QUADPACK's qk15 (Piessens et al. 1983). Both functions are generators, so that the points of many paths
can share a forward pass: they yield (points, path), path 0 or one of those that are rounded otherwise, 1 and 2, are
sent (v [R, T], F, a list of R), and return a dict.
"""

import math

import torch

# Kronrod's nodes in (−1, 0] with their weights, and Gauss's weights of every second one
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
_KRONROD = (
    0.022935322010529224,
    0.06309209262997856,
    0.10479001032225019,
    0.14065325971552592,
    0.1690047266392679,
    0.19035057806478542,
    0.20443294007529889,
    0.20948214108472782,
)
_GAUSS = (0.0, 0.1294849661688697, 0.0, 0.27970539148927664, 0.0, 0.3818300505053501189, 0.0, 0.4179591836734694)

# The variance that rounded weights add to that of rounded activations, which alone is measured: the median of the 20
# blocks of a trained and a random model (0.01 to 0.8), each with its float32 weights rounded to bfloat16 and not
OF_WEIGHTS = 0.1


def left_ends(steps):
    """The papers' rule, the mean over `steps` left ends: `integral` [T], `n_nodes`, and `f`, F(0) and F(1)."""
    v, f = yield [1.0, *(k / steps for k in range(steps))], 0
    return {"integral": v[1:].mean(0), "n_nodes": steps, "f": (f[1], f[0])}


def panels(tolerance, eps, largest_f=1, limit=256):
    """Panels that are refined until no part's estimated error is above tolerance · the largest |integral|.

    A panel is not refined for less than 2.5 · eps · F, eps being the machine epsilon of the model's dtype, or in half
    precision for less than rounding makes of the integral; nor below a width of eps: points closer than that are told
    apart by their rounding alone. largest_f: the largest F there can be. At most `limit` points.

    Returns `integral` [T], `n_nodes`, the points taken, `f`, F(0) and F(1), and relative to the largest |integral|
    `quadrature`, the largest estimated error of the panels, `rounding`, and `error`, the root of their squares' sum.
    """
    rules, half = gauss_kronrod(), eps > 1e-4
    seven = rules[7]["nodes"]
    known, again, done, pieces = {}, {}, [], [(0.0, 1.0, 7)]
    share, common, rounding = 0.0, 0.0, 0.0
    if half:
        limit -= 2 * len(seven)
    while pieces:
        points = _unknown(pieces, known, rules)
        v, f = yield points, 0
        known.update(zip(points, zip(v, f, strict=True), strict=True))
        if half and len(again) < 14:  # more points where there will be many
            some = seven if again else seven[2:5:2]
            share, common = yield from _rounding(some, known, again)
        done += [_panel(piece, known, rules, share, largest_f) for piece in pieces]
        integral = sum(panel["integral"] for panel in done)
        if half:  # errors of panels are as independent as rounding is
            rounding = _of_integral(done, share, common)
            error = sum(panel["error"] ** 2 for panel in done).sqrt().max().item()
            error = math.hypot(error, _incompleteness(done, known, share, largest_f, rounding))
        else:
            error = sum(panel["error"] for panel in done).max().item()
        scale = integral.abs().max().item()
        pieces = []
        if error > max(tolerance * scale, rounding):  # false for NaN
            least = rounding if half else 2.5 * eps * max(f for _, f in known.values())
            for panel in sorted(done, key=lambda panel: -panel["worst"])[:2]:
                if panel["worst"] > (max(least, tolerance * scale) if pieces else least):
                    room = limit - len(known) - len(_unknown(pieces, known, rules))
                    finer = _finer(panel, known, rules, room, eps)
                    done = [other for other in done if other is not panel or not finer]
                    pieces = pieces + finer
    scale = max(scale, eps * max(f for _, f in known.values())) or 1.0  # less cannot be told from rounding of F
    return {
        "integral": integral,
        "n_nodes": len(known) + len(again),
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


def _rounding(points, known, again):
    """The share of v that is rounding, and how much of its variance all points have in common, 0 to 1.

    v is measured at some points of paths 1 and 2 as well, which are rounded otherwise; again: {(path, r): v}, what is
    known of them. The share is the standard deviation over the paths relative to the mean, the median over the points,
    so that one near a jump, which is elsewhere on another path, does not count.
    """
    for path in (1, 2):
        unknown = [r for r in points if (path, r) not in again]
        v, _ = yield unknown, path
        again.update(zip([(path, r) for r in unknown], v, strict=True))
    v = torch.stack([torch.stack([known[r][0], again[1, r], again[2, r]]) for r in points])
    mean = v.mean(1, keepdim=True)
    off = (v - mean) / mean.norm(dim=-1, keepdim=True).clamp_min(1e-37)
    variance = off.pow(2).sum((1, 2)) / 2
    off = (off / variance.sqrt().clamp_min(1e-37)[:, None, None])[variance <= 4 * variance.median()]
    n, of_mean = len(off), off.mean(0).pow(2).sum().item() / 2  # 1 if the points have all in common, or 1 / n
    common = (n * of_mean - 1) / (n - 1) if n > 1 else 1.0
    return variance.median().sqrt().item(), min(max(common, 0.0), 1.0)


def _of_integral(done, share, common):
    """What rounding makes of the integral: what the points have in common stays, and the rest averages out.

    Of n equal points a part of 1 / n is left of a variance; here they count by their weight and the size of v.
    """
    sizes = torch.cat([panel["sizes"] for panel in done])
    averaged = (sizes.pow(2).sum() / sizes.sum().pow(2).clamp_min(1e-37)).item()
    absolute = sum(panel["absolute"] for panel in done).max().item()
    return share * absolute * (OF_WEIGHTS + common + (1 - common) * averaged) ** 0.5


def _incompleteness(done, known, share, largest_f, rounding):
    """How far the integrals are from F(1) − F(0) in their sum, beyond rounding, as the error of the largest."""
    f_b, f_x = known[0.0][1], known[1.0][1]
    missing = sum(panel["integral"].sum() for panel in done).item() - (f_x - f_b)
    absolute = sum(panel["absolute"] for panel in done)
    part = (absolute.max() / _length(absolute)).item()
    beyond = missing**2 - (share * f_x * (1 - f_x / largest_f)) ** 2 - (rounding / (part or 1)) ** 2
    return part * max(beyond, 0.0) ** 0.5


def _length(absolute):
    """‖∫|v|‖. Errors of tokens are as large as their |v| and their signs are random, so that a sum of errors, e, has
    the parts e · ∫|v_t| / ‖∫|v|‖."""
    return absolute.norm().clamp_min(1e-37)


def _panel(piece, known, rules, share, largest_f):
    """A piece with its points, its integral [T] and what is wrong with it: the estimated error [T], the largest of them
    as `worst`, and `missed`, |m| from one point to the next.

    With s the integral of |v − its mean|, the error is s · (d / s)^1.5, QUADPACK's: a rule is that much better than the
    coarser one that it is compared with. It is at least max s · (M / max s)^1.5 with M = 1.5 Σ |m| (or M, where that is
    less) and at least |Σ m|. In half precision twice the rounding of d and m is taken off first, in squares, `share` of
    v (see `_rounding`), and of F, a sum of probabilities p, share · Σ p (1 − p), as rounded logits make it, taking the
    p for equal; and Σ m is one more error, of which each token has its part.
    """
    points, rule = _points(piece, rules), rules[piece[2]]
    f = torch.tensor([known[r][1] for r in points], dtype=torch.float32)
    values, width = torch.stack([known[r][0] for r in points[1:-1]]), piece[1] - piece[0]
    with torch.autocast("cpu", enabled=False):  # a server's would round these products to bfloat16
        integral, coarse = width * (rule["fine"] @ values), width * (rule["coarse"] @ values)
        spread = (width * (rule["fine"] @ (values - integral / width).abs())).clamp_min(1e-37)
        difference = (integral - coarse).abs()
        missed = width * (rule["gaps"] @ values.sum(1)) - f.diff()
        total, missed = missed.sum().abs(), missed.abs()
        length = values.norm(dim=1)
        if share:
            of_f = (share * f * (1 - f / largest_f).clamp_min(0)).square()
            of_v = (share * width * length).square()
            difference = _beyond(difference, (rule["fine"] - rule["coarse"]).square() @ of_v)
            total = _beyond(total, of_f[0] + of_f[-1] + rule["fine"].square() @ of_v)
            missed = _beyond(missed, of_f[1:] + of_f[:-1] + rule["gaps"].square() @ of_v)
        absolute = width * (rule["fine"] @ values.abs())
    error = spread * (difference / spread).pow(1.5)
    if share:
        error = (error.square() + (total * absolute / _length(absolute)).square()).sqrt()
    else:
        unseen, largest = 1.5 * missed.sum(), spread.max()
        error = error.clamp_min(torch.maximum(unseen * (unseen / largest).clamp_max(1).sqrt(), total))
    return {
        "piece": piece,
        "points": points,
        "integral": integral,
        "absolute": absolute,
        "sizes": width * rule["fine"] * length,
        "error": error,
        "worst": error.max().item(),
        "missed": missed.tolist(),
    }


def _beyond(x, variance):
    """What of |x| stands out of twice the rounding: the root of what is left of the square."""
    return (x.square() - 4 * variance).clamp_min(0).sqrt()


def _finer(panel, known, rules, room, narrowest, share=0.7):
    """The pieces that refine a panel with at most `room` new points, none narrower than `narrowest`; none if none can.

    If a narrow stretch has 70 % of what is missed: cut around the shortest such; else 15 nodes for 7; or else halves.
    """
    (start, end, n), points, missed = panel["piece"], panel["points"], panel["missed"]
    width, low, high = min(
        (points[j] - points[i], points[i], points[j])
        for i in range(len(missed))
        for j in range(i + 1, len(points))
        if not sum(missed[i:j]) < share * sum(missed)
    )
    middle, ways = (start + end) / 2, []
    if sum(missed) and width < 0.4 * (end - start):
        cuts = sorted({start, low, high, end})
        ways.append([(a, b, 7) for a, b in zip(cuts[:-1], cuts[1:], strict=True)])
    elif n == 7:
        ways.append([(start, end, 15)])
    ways.append([(start, middle, 7), (middle, end, 7)])
    for pieces in ways:
        if len(_unknown(pieces, known, rules)) <= room and min(b - a for a, b, _ in pieces) >= narrowest:
            return pieces
    return []


def gauss_kronrod():
    """The two rules for panels of 7 and of 15 nodes, by their number of nodes n.

    Each a dict of `nodes`, floats in (0, 1), and weights: `fine` [n], the rule's own; `coarse` [n], those of what it is
    compared with (Gauss's for 15 nodes, the parabola through every second node for 7); `gaps` [n + 1, n], of the
    integrals of the polynomial through the nodes from one point to the next, the ends among them.
    """
    nodes = [(1 + x) / 2 for x in _NODES]
    nodes += [1 - x for x in reversed(nodes[:-1])]
    kronrod, gauss = ([w / 2 for w in (*half, *reversed(half[:-1]))] for half in (_KRONROD, _GAUSS))
    parabola = [0.0] * 7
    parabola[1::2] = _weights(nodes[3::4], [0.0, 1.0])[0].tolist()
    rows = (nodes[1::2], gauss[1::2], parabola), (nodes, kronrod, gauss)
    return {
        len(x): {
            "nodes": x,
            "fine": torch.tensor(w, dtype=torch.float32),
            "coarse": torch.tensor(c, dtype=torch.float32),
            "gaps": _weights(x, [0.0, *x, 1.0]),
        }
        for x, w, c in rows
    }


def _weights(nodes, ends):
    """[len(ends) − 1, n]: weights of the integrals from one end to the next of the polynomial through n nodes."""
    n = len(nodes)
    at_ends = _legendre(torch.tensor(ends, dtype=torch.float64), n + 1)
    before = torch.cat([-torch.ones(len(ends), 1, dtype=torch.float64), at_ends[:, : n - 1]], 1)
    integrals = (at_ends[:, 1:] - before) / (4 * torch.arange(n) + 2)  # of each polynomial, up to a constant
    return (integrals.diff(dim=0) @ torch.linalg.inv(_legendre(torch.tensor(nodes, dtype=torch.float64), n))).float()


def _legendre(r, n):
    """The first n Legendre polynomials of [0, 1] at r [R], as [R, n]."""
    x = 2 * r - 1
    polynomials = [torch.ones_like(x), x]
    for k in range(1, n - 1):
        polynomials.append(((2 * k + 1) * x * polynomials[k] - k * polynomials[k - 1]) / (k + 1))
    return torch.stack(polynomials, 1)
