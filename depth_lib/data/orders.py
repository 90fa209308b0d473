"""Orders in which a model's blocks can run, as lists of block numbers."""

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from ..params import not_among, whole

Order = list[int]
AT_MOST = 0.05  # nats per token that removing blocks may cost: a perplexity 5% higher


def sizes_of(sizes: Sequence[int] | str, n_layers: int) -> list[int]:
    """Numbers of consecutive blocks, ascending: a list, "doubling" (1, 2, 4 … up to half of them) or "all" (1..L − 1).

    "refined" is what `block_removal` begins with, "doubling". Raises ValueError for a number that is not in 1..L − 1,
    or if there is none.
    """
    if n_layers == 1:
        raise ValueError("a model with one block cannot be shortened or reordered; use a model with at least two")
    if isinstance(sizes, int):
        raise ValueError(f"sizes must be a list, got {sizes!r}; use sizes=[{sizes}]")
    named = {"doubling": [2**k for k in range((n_layers // 2).bit_length())], "all": range(1, n_layers)}
    named["refined"] = named["doubling"]
    ns = whole(named.get(sizes, []) if isinstance(sizes, str) else sizes)
    if not ns or not 1 <= min(ns) <= max(ns) < n_layers:
        problem = "is out of range" if ns else "is not a list of numbers"
        known = f'numbers from 1 to {n_layers - 1}, "refined", "doubling" or "all"'
        raise ValueError(f"sizes={sizes!r} {problem}; use {known}")
    return sorted({*ns})


def orders(kind: str, n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """Lists of block orders for `block_orders`: with blocks removed, repeated, reversed or swapped.

    >>> dl.orders("removals", 4, [2])
    [[2, 3], [0, 3], [0, 1]]
    >>> dl.orders("repeats", 3, [2])
    [[0, 1, 0, 1, 2], [0, 1, 2, 1, 2]]
    >>> dl.orders("swaps", 3)
    [[1, 0, 2], [0, 2, 1]]

    - kind: "removals" (a stretch of n blocks is left out), "repeats" (it runs twice), "reversals" (it runs last block
      first, n ≥ 2) or "swaps" (two adjacent blocks)
    - n_layers: L
    - sizes: the values of n, the number of blocks in a stretch: a list, "doubling" (1, 2, 4 … up to half of the model's
      blocks) or "all"; ignored for swaps

    Returns a list of orders, one for every start and every n.

    Raises ValueError for an unknown kind, an invalid n_layers, and sizes outside 1..L − 1.
    Cost: none.
    """
    if problem := not_among(KINDS, "kind", kind):
        raise ValueError(problem)
    if n_layers < 1:
        raise ValueError(f"n_layers must be at least 1, got {n_layers!r}")
    if kind == "swaps":
        return [[*range(l), l + 1, l, *range(l + 2, n_layers)] for l in range(n_layers - 1)]
    stretches = [(s, s + n) for s in range(n_layers) for n in sizes_of(sizes, n_layers) if s + n <= n_layers]
    if kind == "reversals":
        return [[*range(s), *range(s, e)[::-1], *range(e, n_layers)] for s, e in stretches if e - s > 1]
    if kind == "repeats":
        return [[*range(e), *range(s, n_layers)] for s, e in stretches]
    return [[*range(s), *range(e, n_layers)] for s, e in stretches]


KINDS = ("repeats", "swaps", "reversals", "removals")


def checked_order(order: Any, n_layers: int) -> Order:
    """The order as a list; ValueError if it has no block, or one that a model of so many does not have."""
    numbers = whole(order)
    if not numbers or not 0 <= min(numbers) <= max(numbers) < n_layers:
        raise ValueError(
            f"{reprlib.repr(order)} is not an order of this model's blocks; pass a list of numbers from 0 to "
            f"{n_layers - 1}"
        )
    return numbers


def checked_orders(orders: Any, n_layers: int) -> list[Order]:
    """The orders as lists; ValueError if there is none, or for one that is not an order of the model's blocks."""
    if not isinstance(orders, Iterable) or isinstance(orders, str) or whole(orders):
        problem = f"{reprlib.repr(orders)} is not a list of orders"
        raise ValueError(f"{problem}; pass a list of lists, such as [[0, 1], [1, 0]]")
    orders = list(orders)
    if not orders:
        raise ValueError("orders is empty; pass lists of block numbers, such as those from dl.orders(...)")
    return [checked_order(order, n_layers) for order in orders]
