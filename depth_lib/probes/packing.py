"""One clean prefix and many changed suffixes as one sequence, so that a shared prefix is computed once."""

import torch

from .residual_stream import inputs


def pack(starts, end):
    """Tokens 0..max(starts)−1, then for each t of `starts` the suffix t..end−1, side by side.

    Returns (order, suffixes): the token at each of the N places, which is its position id too, and for each t a range
    of places. With one start this is the plain sequence.
    """
    order, suffixes = list(range(max(starts))), []
    for t in starts:
        suffixes.append(range(len(order), len(order) + end - t))
        order += range(t, end)
    return order, suffixes


def visible(order, suffixes):
    """[N, N] of a pack, True where a query place may look at a key place: the prefix is causal, and suffix t sees
    tokens 0..t−1 of the prefix and itself."""
    prefix = suffixes[0].start
    # the last suffix goes on where the prefix ends, and has its number
    owners = [prefix] * prefix + [order[suffix.start] for suffix in suffixes for _ in suffix]
    token, owner = torch.tensor(order), torch.tensor(owners)
    own = owner[:, None] == owner
    shared = (torch.arange(len(order)) < prefix) & (token < owner[:, None])
    return (own | shared) & (token <= token[:, None])


def packs(starts, end, arch):
    """`pack` of all starts, in the consecutive groups that cost least in all.

    Each start is alone where the family cannot pack: positions computed from the mask, or a shorter sliding window.
    """
    starts = sorted(starts)
    if not arch["packs"] or (arch["window"] is not None and end > arch["window"]):
        return [pack([t], end) for t in starts]
    best = [(0, [])]  # cost and groups of the first n starts
    for n in range(1, len(starts) + 1):
        choices, n_places = [], starts[n - 1]
        for i in range(n - 1, -1, -1):
            n_places += end - starts[i]
            choices.append((best[i][0] + _cost(n_places, arch), i))
        cost, i = min(choices)
        best.append((cost, [*best[i][1], starts[i:n]]))
    return [pack(group, end) for group in best[-1][1]]


def _cost(n_places, arch):
    """Time of a block on one sequence, in units of 4 d FLOPs of a matrix product: 7 d per place, for about 14 d²
    weights, 2 per pair of places, as attention is half as fast, and that of 30 places more for each sequence."""
    return (n_places + 30) * 7 * arch["width"] + 2 * n_places**2


def additive(seen, dtype):
    """The 4-D attention mask [1, 1, N, N] of what is `visible`: 0 there, the least number elsewhere."""
    mask = torch.zeros(seen.shape, dtype=dtype)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def packed_inputs(arch, ids, pack, n_rows, dtype):
    """Model inputs for a pack of the prompt with these token ids, for a batch of n_rows or one that grows to it; dtype:
    that of the residuals."""
    order, suffixes = pack
    batch = 1 if arch["grows"] else n_rows
    encoding = inputs([ids[i] for i in order], batch)
    if len(suffixes) > 1:  # one N by N mask at a time: a long prompt has hundreds of packs
        encoding["attention_mask"] = additive(visible(order, suffixes), dtype).expand(batch, -1, -1, -1)
        encoding["position_ids"] = torch.tensor(order).expand(batch, -1)
    return encoding
