"""A progress bar for a probe, by tqdm: on a terminal, in a notebook, and in a run's log."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TextIO

from tqdm import tqdm as plain
from tqdm.auto import tqdm

LOG = "DEPTH_LIB_LOG"  # the file for a run's bars


def steps(items: Sequence, label: str) -> Iterator:
    """The items one by one, under a bar if there are several."""
    return iter(_bar(label, iterable=items) if len(items) > 1 else items)


@contextlib.contextmanager
def ticked(label: str) -> Iterator[Callable[[float], object]]:
    """tick(share), for a probe that is one call: this further share of its work is done."""
    with _bar(label, total=1) as bar:
        yield bar.update
        bar.update(max(0, bar.total - bar.n))  # shares may add up to slightly less than 1


def _bar(label: str, **how: Any) -> plain:
    how |= {"desc": label, "leave": False, "bar_format": "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"}
    path = os.environ.get(LOG, "")
    if os.path.exists(path):
        return plain(**how, file=_opened(path), mininterval=1)
    return tqdm(**how, disable=None)  # shown on a terminal and in a notebook


@cache
def _opened(path: str) -> TextIO:
    return open(path, "a", encoding="utf-8")
