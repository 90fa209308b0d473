"""The least arithmetic each probe needs, as matrix products, and how long this machine takes for them.

Counted are the products of whole blocks on the tokens whose residual can differ from one already known, attention
between the query and key places that see each other, and the unembedding of tokens that must be measured. Not counted:
norms, activations, softmax, distances, copies, Python. A product of m rows with a [k, n] weight is 2·m·k·n FLOPs; a
pair of places costs 4·d_heads (scores, then values) in each block. Prompts go one by one, as the probes are defined.
"""

from collections import Counter
from functools import cache

import torch
from torch.utils.benchmark import Timer


def rate(x, w):
    """FLOPs a second of x @ w on this machine."""
    names = {"torch": torch, "x": x, "w": w, "out": x @ w}
    timer = Timer("torch.matmul(x, w, out=out)", globals=names, num_threads=torch.get_num_threads())
    return 2 * x.numel() * w.shape[-1] / timer.blocked_autorange(min_run_time=0.1).median


class Work:
    """Matrix products of one probe on one shape of model: rows by (rows at once, k, n), attention pairs by length."""

    def __init__(self, config):
        self.config = config
        self.rows = Counter()
        self.pairs = Counter()

    def block(self, rows, pairs, at_once, length, backward=False):
        """One block on `rows` tokens which see `pairs` places; backward: also the gradient of its input.

        With frozen weights the gradient of a linear layer is one product with the transposed weight; attention's
        needs four products a pair where forward needs two.
        """
        d, mlp, heads = self.config.hidden_size, self.config.intermediate_size, self.d_heads
        kv = heads * self.config.num_key_value_heads // self.config.num_attention_heads
        for k, n in [(d, heads), (d, kv), (d, kv), (heads, d), (d, mlp), (d, mlp), (mlp, d)]:
            self.rows[at_once, k, n] += rows
            if backward:
                self.rows[at_once, n, k] += rows
        self.pairs[length] += pairs * (3 if backward else 1)

    def unembed(self, rows, at_once, backward=False):
        """The logits of `rows` tokens; backward: also the gradient of the residuals they come from."""
        d, vocabulary = self.config.hidden_size, self.config.vocab_size
        self.rows[at_once, d, vocabulary] += rows
        if backward:
            self.rows[at_once, vocabulary, d] += rows

    @property
    def d_heads(self):
        head = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
        return head * self.config.num_attention_heads

    def flops(self):
        products = sum(2 * rows * k * n for (_, k, n), rows in self.rows.items())
        return products + sum(4 * self.d_heads * pairs for pairs in self.pairs.values())

    def seconds(self, device, dtype):
        """How long this machine takes at the rate that it has now for each shape of product."""
        at_once = 2e10 if device == "cpu" else 2e12  # FLOPs: enough rows for the full rate
        like = {"device": device, "dtype": dtype}

        @cache
        def linear(m, k, n):
            return rate(torch.randn(m, k, **like), torch.randn(n, k, **like).T)  # as a linear layer stores its weight

        total, heads = 0, self.config.num_attention_heads
        for (m, k, n), rows in self.rows.items():
            if rows:
                m = min(m, max(128, int(at_once / (2 * k * n))), 4096)
                total += 2 * rows * k * n / linear(m, k, n)
        for length, pairs in self.pairs.items():
            if pairs:
                q = torch.randn(heads, length, self.d_heads // heads, **like)
                total += 4 * self.d_heads * pairs / rate(q, q.mT)
        return total


def seen(start, end):
    """Pairs of tokens start..end−1 with all tokens up to themselves: Σ (i + 1)."""
    return sum(range(start + 1, end + 1))


def relative_contribution(config, lengths):
    """Every block once on all T tokens of every prompt; nothing behind the last block."""
    work = Work(config)
    for T in lengths:
        for _ in range(config.num_hidden_layers):
            work.block(T, seen(0, T), at_once=T, length=T)
    return work


def logit_lens(config, lengths):
    """As the relative contribution, and L + 1 unembeddings of all tokens: h_0..h_{L−1} and the final residual."""
    work = relative_contribution(config, lengths)
    for T in lengths:
        work.unembed((config.num_hidden_layers + 1) * T, at_once=T)
    return work


def layer_effects(config, lengths, positions):
    """The clean run, and for each skipped block s the later blocks s+1..L−1 on the tokens that change.

    Of one prompt's positions t, tokens 1..max(t)−1 are the same under all t (a suffix sees only tokens below its t) and
    count once, then each t has its suffix t..T−1: max(t) − 1 + Σ (T − t) tokens. Unembedded are the suffixes, clean
    from min(t) on and for s < L−1 (skipping the last block changes nothing from t on).
    All mode (positions None): T − 1 tokens, unembedded for every s and clean; token 0 never changes.
    """
    work, L = Work(config), config.num_hidden_layers
    for T, starts in zip(lengths, positions, strict=True):
        if starts is None:
            changed, pairs = T - 1, seen(1, T)
            unembedded = T + L * (T - 1)
        else:
            changed = max(starts) - 1 + sum(T - t for t in starts)
            pairs = seen(1, max(starts)) + sum(seen(t, T) for t in starts)
            unembedded = T - min(starts) + (L - 1) * sum(T - t for t in starts)
        for l in range(L):  # before block l, l blocks have been skipped in one variant each
            work.block(T + l * changed, seen(0, T) + l * pairs, at_once=T + l * changed, length=T)
        work.unembed(unembedded, at_once=unembedded)
    return work


def residual_erasure(config, places, baseline_lengths):
    """The baseline prompts, the clean run, and for every (l, t) the blocks l..L−1 on the tokens t..p.

    p is the last position that predicts: only token t and those behind it change, and nothing behind p is read, so row
    l has Σ_t (p + 1 − t) tokens. Unembedded are the predicting positions ≥ t of each (l < L, t), once clean, and u_L
    once (row L needs no block).
    """
    L, predicting = config.num_hidden_layers, [place - 1 for place in places]
    end = predicting[-1] + 1
    work = relative_contribution(config, baseline_lengths)
    rows, pairs = sum(end - t for t in range(end)), sum(seen(t, end) for t in range(end))
    for l in range(L):
        work.block(end + (l + 1) * rows, seen(0, end) + (l + 1) * pairs, at_once=end + (l + 1) * rows, length=end)
    read = L * sum(sum(p >= t for p in predicting) for t in range(end)) + len(predicting) + 1
    work.unembed(read, at_once=read)
    return work


def integrated_gradients(config, n_tokens, places, n_nodes):
    """The clean run; for each block l and node r the blocks l+1..L−1 forward and backward on the tokens up to the last
    predicting position, and the answer's unembeddings; F(b) once a block, forward only, and F(h) once.

    n_nodes [L]: the nodes of the coarsest rule that meets the tolerance; finding out which is not unavoidable.
    """
    L, end = config.num_hidden_layers, places[-1]
    work = relative_contribution(config, [n_tokens])
    work.unembed(len(places), at_once=len(places))
    for l, n in enumerate(n_nodes):
        for rows, backward in ((n, True), (1, False)):
            for _ in range(l + 1, L):
                work.block(rows * end, rows * seen(0, end), at_once=n * end, length=end, backward=backward)
            work.unembed(rows * len(places), at_once=n * len(places), backward=backward)
    return work
