"""A bar for who watches a probe, by tqdm; what is piped has none. Of a sweep's run it goes into the run's log."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TextIO

from tqdm import tqdm as plain
from tqdm.auto import tqdm

LOG = "DEPTH_LIB_LOG"  # of a sweep's run: the file that its bars are written to
_FORM = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def steps(items: Sequence, label: str) -> Iterator:
    """The items one after the other under a bar; a single one has none."""
    return iter(_bar(label, iterable=items, **({} if len(items) > 1 else {"disable": True})))


@contextlib.contextmanager
def ticked(label: str) -> Iterator[Callable[[float], None]]:
    """tick(share), for a probe that is one call: another share of its work is done."""
    with _bar(label, total=1) as bar:
        yield bar.update


def _bar(label: str, **how: object) -> plain:
    path = os.environ.get(LOG, "")
    if os.path.exists(path):
        shown = {"disable": False, "file": _opened(path), "mininterval": 1}
        return plain(desc=label, leave=False, bar_format=_FORM, **shown | how)
    # disable=None: shown on a terminal and in a notebook
    return tqdm(desc=label, leave=False, bar_format=_FORM, **{"disable": None} | how)


@cache
def _opened(path: str) -> TextIO:
    return open(path, "a", encoding="utf-8")
