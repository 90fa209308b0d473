"""How far a probe has come: a bar for who watches, and a word to whoever listens after each prompt."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

from tqdm.auto import tqdm

_LISTENER = contextvars.ContextVar("listener", default=None)
_FORM = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


@contextlib.contextmanager
def heard_by(listener: Callable[[str, int, int, str, float], None]) -> Iterator[None]:
    """In this block, `steps` calls listener(label, done, total, unit, share) before each item and after the last;
    the tick of `ticked` calls it before the first piece of work and after each."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def steps(items: Sequence, label: str, unit: str = "prompt", costs: Sequence[float] | None = None) -> Iterator:
    """The items one after the other; a single one has no bar, and what is piped has none either.

    costs: what each takes beside the others, by which bar and listener judge the share that is done; default: equal.
    """
    listener = _LISTENER.get() or (lambda *_: None)
    costs = [1] * len(items) if costs is None else costs
    hidden = None if len(items) > 1 else True
    with tqdm(total=sum(costs), desc=label, disable=hidden, leave=False, bar_format=_FORM) as bar:
        for done, (item, cost) in enumerate(zip(items, costs, strict=True)):
            listener(label, done, len(items), unit, sum(costs[:done]) / sum(costs))
            yield item
            bar.update(cost)
    listener(label, len(items), len(items), unit, 1.0)


@contextlib.contextmanager
def ticked(label: str) -> Iterator[Callable[[int, int], None]]:
    """tick(cost, total), for a probe that is one piece to its caller: another `cost` of the work's `total` is done."""
    listener, done = _LISTENER.get() or (lambda *_: None), 0
    with tqdm(total=1, desc=label, disable=None, leave=False, bar_format=_FORM) as bar:

        def tick(cost: int, total: int) -> None:
            nonlocal done
            done += cost
            bar.update(done / total - bar.n)
            listener(label, 100 * done // total, 100, "part", done / total)

        tick(0, 1)
        yield tick
