"""One clean prefix and many changed suffixes as one sequence, so that a shared prefix is computed once."""

import torch

from .residual_stream import forget


class Places:
    """Indices into a sequence, copied once to each device that asks for them."""

    def __init__(self, places):
        self.places = torch.tensor(places, dtype=torch.long)
        self._copies = {}

    def on(self, device):
        if device not in self._copies:
            self._copies[device] = self.places.to(device)
        return self._copies[device]


class Pack:
    """Tokens 0..max(starts) − 1, then for each t of `starts` the suffix t..end − 1, side by side: N places.

    tokens: the token at each place, which is its position id too; prefix: how many places come before the first suffix;
    suffixes: for each t a range of places. With one start this is the plain sequence.
    """

    def __init__(self, starts, end):
        self.starts, self.end, self.prefix, self.suffixes = starts, end, max(starts), []
        self.n_places, self._places = self.prefix, None
        for t in starts:
            self.suffixes.append(range(self.n_places, self.n_places + end - t))
            self.n_places += end - t

    @property
    def tokens(self):
        """Made anew each time: a long prompt has thousands of packs, most of which wait for their pass."""
        return [*range(self.prefix), *(token for t in self.starts for token in range(t, self.end))]

    def of(self, values, start=0):
        """The values of a prompt's tokens [T, d] at the places from `start` on [N − start, d]."""
        if len(self.starts) == 1:
            return values[start : self.n_places]
        self._places = self._places or Places(self.tokens)
        return values.index_select(0, self._places.on(values.device)[start:])


def mask_of(pack, dtype):
    """[N, N] of a pack, what is added to the score of a query place for a key place, 0 where it may look: the prefix is
    causal, and suffix t sees tokens 0..t−1 of the prefix and itself."""
    mask = torch.full((pack.n_places, pack.n_places), torch.finfo(dtype).min, dtype=dtype)
    for t, places in [(0, range(pack.prefix)), *zip(pack.starts, pack.suffixes, strict=True)]:
        own = slice(places.start, places.stop)
        mask[own, :t] = 0
        mask[own, own].triu_(1)
    return mask


def packs(starts, end, arch, most=None):
    """A `Pack` for all starts, or several of consecutive ones: those that cost least in all.

    most: places that a pack of several has at most (None: any number). Each start is alone where the family cannot
    pack: positions computed from the mask, or a shorter sliding window.
    """
    starts = sorted(starts)
    if not arch["packs"] or (arch["window"] is not None and end > arch["window"]):
        return [Pack([t], end) for t in starts]
    best = [(0, 0)]  # of the first n starts: what they cost, and how many of them the packs before the last one have
    for n in range(1, len(starts) + 1):
        n_places, choices = starts[n - 1], []
        for i in range(n - 1, -1, -1):
            n_places += end - starts[i]
            if choices and most is not None and n_places > most:
                break
            choices.append((best[i][0] + _cost(n_places, arch), i))
        best.append(min(choices))
    found, n = [], len(starts)
    while n:
        i = best[n][1]
        found.insert(0, Pack(starts[i:n], end))
        n = i
    return found


def _cost(n_places, arch):
    """Time of a block on one sequence, in units of 4 d FLOPs of a matrix product: 7 d per place, for about 14 d²
    weights, 2 per pair of places, as attention is half as fast, and that of 30 places more for each sequence."""
    return (n_places + 30) * 7 * arch["width"] + 2 * n_places**2


def packed_inputs(ids, pack, dtype):
    """Model inputs for a pack of the prompt with these token ids, one row; dtype: that of the residuals. To be made for
    the pack that runs: a long prompt has hundreds."""
    encoding = {"input_ids": torch.tensor([[ids[i] for i in pack.tokens]])}
    if len(pack.suffixes) > 1:
        encoding["attention_mask"] = mask_of(pack, dtype)[None, None]
        encoding["position_ids"] = torch.tensor([pack.tokens])
    return encoding


def batch_of(llm, encoding, arch, n_rows):
    """One row's inputs for a batch of n_rows; as they are for one that grows to it."""
    forget(llm, arch)
    return encoding if arch["grows"] else {key: x.expand(n_rows, *x.shape[1:]) for key, x in encoding.items()}
