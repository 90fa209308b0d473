"""Orders in which a model's blocks can run: lists of block numbers, one after the other on the residual stream."""

import reprlib
from collections.abc import Sequence

Order = list[int]


def sizes_of(sizes: Sequence[int] | str, n_layers: int) -> list[int]:
    """Numbers of consecutive blocks, ascending: a list, "doubling" (1, 2, 4 … up to half of them) or "all" (1..L − 1).

    "refined" is what `block_removal` begins with, "doubling". Raises ValueError for a number that is not in 1..L − 1,
    or if there is none.
    """
    if n_layers == 1:
        raise ValueError("a model of one block has none to remove.")
    if isinstance(sizes, int):
        raise ValueError(f"sizes={sizes!r}; give a list of numbers: sizes=[{sizes}].")
    if sizes in ("doubling", "refined"):
        return [2**k for k in range((n_layers // 2).bit_length())]
    if sizes == "all":
        return list(range(1, n_layers))
    if isinstance(sizes, str) or not sizes or not all(type(n) is int and 1 <= n < n_layers for n in sizes):
        raise ValueError(f'sizes={sizes!r}; give numbers from 1 to {n_layers - 1}, "refined", "doubling" or "all".')
    return sorted({*sizes})


def removals(n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """Without n consecutive blocks: 0..s − 1, s + n..L − 1, for every s and every n of `sizes`.

    >>> dl.removals(4, [2])
    [[2, 3], [0, 3], [0, 1]]

    Cost: none.
    """
    wanted = sizes_of(sizes, n_layers)
    spans = [(end - n, end) for end in range(1, n_layers + 1) for n in wanted[::-1] if n <= end]
    return [[*range(start), *range(end, n_layers)] for start, end in spans]


def repeats(n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """n consecutive blocks twice: 0..j − 1, then i..L − 1, for every i and j with j − i in `sizes`.

    >>> dl.repeats(3, [2])
    [[0, 1, 0, 1, 2], [0, 1, 2, 1, 2]]

    Cost: none.
    """
    spans = [(i, i + n) for i in range(n_layers) for n in sizes_of(sizes, n_layers) if i + n <= n_layers]
    return [[*range(j), *range(i, n_layers)] for i, j in spans]


def swaps(n_layers: int) -> list[Order]:
    """Two neighbours exchanged, l and l + 1, for every l in 0..L − 2.

    >>> dl.swaps(3)
    [[1, 0, 2], [0, 2, 1]]

    Cost: none.
    """
    return reversals(n_layers, [2]) if n_layers > 2 else [[1, 0]][: n_layers - 1]


def reversals(n_layers: int, sizes: Sequence[int] | str = "doubling") -> list[Order]:
    """n ≥ 2 consecutive blocks from the last to the first, for every start and every n of `sizes`.

    >>> dl.reversals(4, [3])
    [[2, 1, 0, 3], [0, 3, 2, 1]]

    Cost: none.
    """
    wanted = [n for n in sizes_of(sizes, n_layers) if n > 1]
    spans = [(s, s + n) for s in range(n_layers) for n in wanted if s + n <= n_layers]
    return [[*range(s), *range(s, end)[::-1], *range(end, n_layers)] for s, end in spans]


NAMED = {
    "removals": removals,
    "repeats": repeats,
    "swaps": swaps,
    "reversals": reversals,
}  # each is called with the number of blocks alone


def checked_order(order: Sequence[int], n_layers: int) -> Order:
    """The order as a list; ValueError if it has no block, or one that a model of so many does not have."""
    order = list(order)
    if not order or not all(type(l) is int and 0 <= l < n_layers for l in order):
        raise ValueError(
            f"{reprlib.repr(order)} is not an order of this model's blocks; give lists of numbers from 0 to "
            f"{n_layers - 1}."
        )
    return order


def mergekit_yaml(model_id: str, order: Sequence[int]) -> str:
    """The recipe with which mergekit writes the model with its blocks in this order (`merge_method: passthrough`).

    >>> print(dl.mergekit_yaml("owner/name", [0, 1, 2, 1, 2, 3]))
    slices:
      - sources:
          - model: owner/name
            layer_range: [0, 3]
      - sources:
          - model: owner/name
            layer_range: [1, 4]
    merge_method: passthrough

    model_id: a Hub id or folder; order: a list of block numbers. ValueError for an order without blocks. Cost: none.
    """
    slices, order = [], checked_order(order, max(order, default=0) + 1)
    for l in order:
        if slices and slices[-1].stop == l:
            slices[-1] = range(slices[-1].start, l + 1)
        else:
            slices.append(range(l, l + 1))
    sources = [f"  - sources:\n      - model: {model_id}\n        layer_range: [{s.start}, {s.stop}]\n" for s in slices]
    return f"slices:\n{''.join(sources)}merge_method: passthrough\n"
