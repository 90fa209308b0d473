"""A bar for who watches a probe, by tqdm; what is piped has none."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from tqdm.auto import tqdm

_FORM = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def steps(items: Sequence, label: str) -> Iterator:
    """The items one after the other under a bar; a single one has none."""
    hidden = None if len(items) > 1 else True  # None: shown on a terminal and in a notebook
    return iter(tqdm(items, desc=label, disable=hidden, leave=False, bar_format=_FORM))


@contextlib.contextmanager
def ticked(label: str) -> Iterator[Callable[[int, int], None]]:
    """tick(cost, total), for a probe that is one call: another `cost` of the work's `total` is done."""
    with tqdm(total=1, desc=label, disable=None, leave=False, bar_format=_FORM) as bar:
        yield lambda cost, total: bar.update(cost / total)
