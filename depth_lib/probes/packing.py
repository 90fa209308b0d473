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
    """`pack` for all starts, sharing a sequence wherever that is less arithmetic than one sequence a start.

    Each has its own where the family cannot pack: positions tied to the mask, or a sliding window that is shorter.
    """
    packable = arch["packs"] and (arch["window"] is None or end <= arch["window"])
    groups = []
    for t in sorted(starts):
        if groups and packable:
            joined = t + sum(end - start for start in [*groups[-1], t])
            before = max(groups[-1]) + sum(end - start for start in groups[-1])
            if _cost(joined, arch) < _cost(before, arch) + _cost(end, arch):
                groups[-1].append(t)
                continue
        groups.append([t])
    return [pack(group, end) for group in groups]


def _cost(n_places, arch):
    """Arithmetic of a block on one sequence, in units of 4 d FLOPs: about 12 d² weights a place, d for each pair."""
    return n_places * (6 * arch["width"] + n_places)


def additive(visible, dtype):
    """The 4-D attention mask [1, 1, N, N] of `visible`: 0 where a place may be seen, the least number elsewhere."""
    if visible is None:
        return None
    mask = torch.zeros(visible.shape, dtype=dtype)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]
