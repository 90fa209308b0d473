"""Adaptive Gauss–Kronrod quadrature of the slopes of a function along a path, with an error estimate that is honest."""

import torch

# Kronrod's 8 nodes in (-1, 0] with their weights, and the weights that Gauss gives every second of them (QUADPACK qk15)
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


def gauss_kronrod():
    """Gauss's rule of 7 nodes and Kronrod's of 15, which holds them at every second place, by their number of nodes n.

    Each a dict: `nodes`, floats in (0, 1), and their weights [n]: the rule's own, `fine`, and `coarse`, those of what
    it is compared with (Gauss's for 15 nodes, the parabola through every second node for 7); `gaps` [n + 1, n], those
    of the integrals of the polynomial through all nodes from one to the next, and from and to the ends.
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
    """[len(ends) − 1, n]: of the integrals from one of the ends to the next of the polynomial through n nodes."""
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


def left_ends(steps):
    """∫₀¹ of the parts of dF/dr as the mean over so many left ends, which the papers use: a generator as `panels`."""
    slopes, f = yield [1.0, *(k / steps for k in range(steps))]
    return {"integral": slopes[1:].mean(0), "n_nodes": steps, "f": (f[1], f[0])}


def panels(tolerance, rounding, limit=256):
    """∫₀¹ of the T parts of dF/dr, each with an estimated error of at most tolerance · the largest |integral|.

    A generator: it yields points of [0, 1], a list of R, and is sent the parts of dF/dr [R, T], whose sum it is, and F,
    a list of R, at them. The two panels with the largest errors are refined together, until the estimate is small
    enough or no panel misses more than rounding · F; at most `limit` points. Returns a dict: `integral` [T], its
    largest estimated `error` relative to its largest value, `n_nodes`, the points taken, and `f`, F(0) and F(1).
    """
    rules, known, done, pieces = gauss_kronrod(), {}, [], [(0.0, 1.0, 7)]

    def new_points(pieces):
        return [r for r in dict.fromkeys(r for piece in pieces for r in _points(piece, rules)) if r not in known]

    while pieces:
        points = new_points(pieces)
        known.update(zip(points, zip(*(yield points), strict=True), strict=True))
        done += [_panel(piece, known, rules) for piece in pieces]
        integral, error = sum(panel["integral"] for panel in done), sum(panel["error"] for panel in done)
        largest, scale = error.max().item(), integral.abs().max().item()
        noise = rounding * max(f for _, f in known.values())
        refined, pieces = [], []
        if largest > tolerance * scale:  # what is no number is not
            for panel in sorted(done, key=lambda panel: -panel["worst"])[:2]:
                if panel["worst"] > (max(noise, tolerance * scale) if pieces else noise):
                    room = limit - len(known) - len(new_points(pieces))
                    finer = [finer for finer in _finer(panel) if len(new_points(finer)) <= room]
                    refined, pieces = refined + [panel] * bool(finer), pieces + (finer[0] if finer else [])
        done = [panel for panel in done if not any(panel is other for other in refined)]
    f = (known[0.0][1], known[1.0][1])
    return {"integral": integral, "error": largest and largest / scale, "n_nodes": len(known), "f": f}


def _points(piece, rules):
    """The ends of a piece (start, end, number of nodes) and its nodes between them."""
    start, end, n = piece
    return [start, *(start + (end - start) * x for x in rules[n]["nodes"]), end]


def _panel(piece, known, rules):
    """The integrals over a piece and their errors.

    With s the integral of a part's distance from its mean, d the difference between fine and coarse rule, and m what
    the polynomial through the nodes misses of F from point to point, summed: the part's error is s · (d / s)^1.5, but
    at least max s · (1.5 m / max s)^1.5 (1.5 m where that is less) and what the panel misses of F as a whole. The power
    is QUADPACK's: a rule is that much better than what it is compared with. A jump between two nodes shows in m alone,
    one of two parts that cancel in d alone.
    """
    points, rule = _points(piece, rules), rules[piece[2]]
    f = torch.tensor([known[r][1] for r in points], dtype=torch.float32)
    values, width = torch.stack([known[r][0] for r in points[1:-1]]), piece[1] - piece[0]
    with torch.autocast("cpu", enabled=False):  # a server's would round these products to bfloat16
        integral, coarse = width * (rule["fine"] @ values), width * (rule["coarse"] @ values)
        spread = (width * (rule["fine"] @ (values - integral / width).abs())).clamp_min(1e-37)
        error = spread * ((integral - coarse).abs() / spread).pow(1.5)
        missed = width * (rule["gaps"] @ values.sum(1)) - f.diff()
        unseen, largest = 1.5 * missed.abs().sum(), spread.max()
        error = error.clamp_min(torch.maximum(unseen * (unseen / largest).clamp_max(1).sqrt(), missed.sum().abs()))
    panel = {"piece": piece, "points": points, "missed": missed.abs().tolist(), "integral": integral, "error": error}
    return {**panel, "worst": error.max().item()}


def _finer(panel, share=0.7):
    """Ways to refine a panel, the best first, each a list of pieces: cut around its shortest stretch with that share of
    what is `missed`, if that is narrow; else with 15 nodes for 7; or else its halves."""
    (start, end, n), points, missed = panel["piece"], panel["points"], panel["missed"]
    width, low, high = min(
        (points[j] - points[i], points[i], points[j])
        for i in range(len(missed))
        for j in range(i + 1, len(points))
        if not sum(missed[i:j]) < share * sum(missed)
    )
    cuts = sorted({start, low, high, end})
    ways = [[(start, end, 15)]] if n == 7 else []
    if sum(missed) and width < 0.4 * (end - start):
        ways = [[(a, b, 7) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]]
    middle = (start + end) / 2
    return [*ways, [(start, middle, 7), (middle, end, 7)]]
