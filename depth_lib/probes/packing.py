"""One clean prefix and many changed suffixes as one sequence, so that a shared prefix is computed once."""

import torch


def pack(starts, end):
    """Tokens 0..max(starts)−1, then for each t in starts the suffix t..end−1, laid side by side.

    Returns a dict: `order` [N], the token at each place (also its position id); `suffixes`, one slice of places per t;
    `prefix`, the number of prefix places; `visible` [N, N], True where a query place may look at a key place: the
    prefix is causal, and suffix t sees tokens 0..t−1 of the prefix and itself. With one start this is the plain
    sequence and `visible` is None: an ordinary causal mask.
    """
    prefix = max(starts)
    order, suffixes = list(range(prefix)), []
    for t in starts:
        suffixes.append(slice(len(order), len(order) + end - t))
        order += range(t, end)
    visible = None
    if len(starts) > 1:
        visible = torch.zeros(len(order), len(order), dtype=torch.bool)
        visible[:prefix, :prefix] = torch.ones(prefix, prefix, dtype=torch.bool).tril()
        for t, places in zip(starts, suffixes, strict=True):
            visible[places, :t] = True
            visible[places, places] = torch.ones(end - t, end - t, dtype=torch.bool).tril()
    return {"order": order, "suffixes": suffixes, "prefix": prefix, "visible": visible}


def packs(starts, end, arch):
    """`pack` for all starts, in the groups that are least arithmetic together.

    Each has its own where the family cannot pack: positions tied to the mask, or a sliding window that is shorter.
    """
    starts = sorted(starts)
    if not arch["packs"] or (arch["window"] is not None and end > arch["window"]):
        return [pack([t], end) for t in starts]
    cheapest = [(0, [])]  # for the first n starts: cost and groups, each of neighbours
    for n in range(1, len(starts) + 1):
        choices, n_places = [], starts[n - 1]
        for i in range(n - 1, -1, -1):
            n_places += end - starts[i]
            choices.append((cheapest[i][0] + _cost(n_places, arch), i))
        cost, i = min(choices)
        cheapest.append((cost, [*cheapest[i][1], starts[i:n]]))
    return [pack(group, end) for group in cheapest[-1][1]]


def _cost(n_places, arch):
    """Time of a block on one sequence, in units of 4 d FLOPs of a matrix product: about 14 d² weights a place, and for
    each pair of places d, which attention takes at half that rate."""
    return (n_places + 30) * 7 * arch["width"] + 2 * n_places**2


def additive(visible, dtype):
    """The 4-D attention mask [1, 1, N, N] of `visible`: 0 where a place may be seen, the least number elsewhere."""
    if visible is None:
        return None
    mask = torch.zeros(visible.shape, dtype=dtype)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]
