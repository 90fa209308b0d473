"""The keys of a result and their shapes, written as "shape: key key; shape: key". A letter of a shape is a size."""

import textwrap
from collections.abc import Iterable, Mapping
from numbers import Real

from .params import listed


def shapes_of(keys: str) -> dict[str, str]:
    """key -> shape, from "shape: key key; shape: key"."""
    parts = [part.split(":") for part in keys.split(";") if part]
    return {key: shape.strip() for shape, names in parts for key in names.split()}


def lacks(keys: Iterable[str], result: Mapping) -> str | None:
    """The keys that a result does not have, in words; None if it has all."""
    if lacking := [key for key in keys if key not in result]:
        has = textwrap.shorten(", ".join(map(str, result)), 80, placeholder=" …")
        return f"it lacks {listed(lacking, 'and')} (it {f'has {has}' if has else 'is empty'})"
    return None


def misfit(shapes: Mapping[str, str], result: Mapping, sizes: dict[str, int]) -> str | None:
    """Where a result first differs from these shapes; None if it fits. "[P]" is a list.

    sizes: of each letter, as far as they are known; those found are added.
    """
    sizes |= {"1": 1, "5": 5}
    for key in filter(result.__contains__, shapes):
        value, shape = result[key], shapes[key].strip("[]").split()
        if shapes[key].startswith("[") and isinstance(value, list):
            found = [len(value)]
        elif isinstance(value, Real) or "complex" not in str(getattr(value, "dtype", "complex")):
            found = [*getattr(value, "shape", ())]
        else:
            return f"{key} is a {type(value).__name__}, not a tensor of real numbers"
        if len(shape) != len(found):
            return f"{key} has {len(found)} axes, not {len(shape)}: [{', '.join(shape)}]"
        more = [axis.endswith("+1") for axis in shape]
        wanted = [sizes.setdefault(axis[0], n - one) + one for axis, n, one in zip(shape, found, more, strict=True)]
        if found != wanted:
            return f"{key} has shape {found}, not {wanted}"
    return None
