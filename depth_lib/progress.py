"""How far a probe has come: a bar for who watches, and a word to whoever listens after each prompt."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

from tqdm.auto import tqdm

_LISTENER = contextvars.ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Callable[[str, int, int, str], None]) -> Iterator[None]:
    """In this block, `steps` calls listener(label, done, total, unit) before each item and after the last."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def steps(items: Sequence, label: str, unit: str = "prompt") -> Iterator:
    """The items one after the other; a single one has no bar, and what is piped has none either."""
    listener = _LISTENER.get() or (lambda *_: None)
    bar = tqdm(items, desc=label, unit=unit, disable=None if len(items) > 1 else True, leave=False)
    for done, item in enumerate(bar):
        listener(label, done, len(items), unit)
        yield item
    listener(label, len(items), len(items), unit)
