"""Orders in which a model's blocks can run: lists of block numbers, one after the other on the residual stream."""

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

Order = list[int]
AT_MOST = 0.05  # nats per token that removing blocks may cost: a perplexity 5 % higher


def sizes_of(sizes: Sequence[int] | str, n_layers: int) -> list[int]:
    """Numbers of consecutive blocks, ascending: a list, "doubling" (1, 2, 4 … up to half of them) or "all" (1..L − 1).

    "refined" is what `block_removal` begins with, "doubling". Raises ValueError for a number that is not in 1..L − 1,
    or if there is none.
    """
    if n_layers == 1:
        raise ValueError("a model of one block cannot lose one.")
    if isinstance(sizes, int):
        raise ValueError(f"sizes={sizes!r}; give a list of numbers: sizes=[{sizes}].")
    named = {"doubling": [2**k for k in range((n_layers // 2).bit_length())], "all": range(1, n_layers)}
    named["refined"] = named["doubling"]
    ns = named.get(sizes, []) if isinstance(sizes, str) else sizes
    if not isinstance(ns, Sequence) or not ns or not all(type(n) is int and 1 <= n < n_layers for n in ns):
        raise ValueError(f'sizes={sizes!r}; give numbers from 1 to {n_layers - 1}, "refined", "doubling" or "all".')
    return sorted({*ns})


def _stretches(n_layers, sizes):
    """(s, s + n) for every s and every n of the sizes."""
    return [(s, s + n) for s in range(n_layers) for n in sizes_of(sizes, n_layers) if s + n <= n_layers]


def removals(n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """Without n consecutive blocks: 0..s − 1, s + n..L − 1, for every s and every n of `sizes`.

    >>> dl.removals(4, [2])
    [[2, 3], [0, 3], [0, 1]]

    Cost: none.
    """
    return [[*range(s), *range(end, n_layers)] for s, end in _stretches(n_layers, sizes)]


def repeats(n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """n consecutive blocks twice: 0..j − 1, then i..L − 1, for every i and j with j − i in `sizes`.

    >>> dl.repeats(3, [2])
    [[0, 1, 0, 1, 2], [0, 1, 2, 1, 2]]

    Cost: none.
    """
    return [[*range(j), *range(i, n_layers)] for i, j in _stretches(n_layers, sizes)]


def reversals(n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """n ≥ 2 consecutive blocks from the last to the first, for every start and every n of `sizes`.

    >>> dl.reversals(4, [3])
    [[2, 1, 0, 3], [0, 3, 2, 1]]

    Cost: none.
    """
    some = [(s, end) for s, end in _stretches(n_layers, sizes) if end - s > 1]
    return [[*range(s), *range(s, end)[::-1], *range(end, n_layers)] for s, end in some]


def swaps(n_layers: int) -> list[Order]:
    """Two neighbours exchanged, l and l + 1, for every l in 0..L − 2.

    >>> dl.swaps(3)
    [[1, 0, 2], [0, 2, 1]]

    Cost: none.
    """
    return [[*range(l), l + 1, l, *range(l + 2, n_layers)] for l in range(n_layers - 1)]


NAMED = {"removals": removals, "repeats": repeats, "reversals": reversals, "swaps": swaps}


def checked_order(order: Sequence[int], n_layers: int) -> Order:
    """The order as a list; ValueError if it has no block, or one that a model of so many does not have."""
    numbers = list(order) if isinstance(order, Iterable) else []
    if not numbers or not all(type(l) is int and 0 <= l < n_layers for l in numbers):
        raise ValueError(
            f"{reprlib.repr(order)} is not an order of this model's blocks; give lists of numbers from 0 to "
            f"{n_layers - 1}."
        )
    return numbers


def listed(orders: Any) -> Any:
    """Orders of a tensor or an array as lists, others as they are."""
    return orders.tolist() if hasattr(orders, "tolist") else orders
