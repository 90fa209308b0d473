"""Whether a result has the keys and shapes of its probe's row in `schemas`, and finite values."""

from collections.abc import Mapping

import torch

from .schemas import SCHEMAS


def mismatch(probe: str, result: Mapping) -> str | None:
    """The first way in which a result has not the keys and shapes of its probe."""
    schema = SCHEMAS[probe]
    sizes: dict[str, int] = {}
    for key, shape in (schema.required | schema.optional).items():
        if key not in result:
            if key in schema.required:
                return f"it has no key {key} (it has {', '.join(result) or 'none'})"
            continue
        value = result[key]
        if not isinstance(value, torch.Tensor):
            return f"{key} is a {type(value).__name__}, not a tensor"
        dims = shape.split()
        axes = list(zip(dims, value.shape, strict=False))
        if value.dim() != len(dims) or not all(_bind(dim, size, sizes) for dim, size in axes):
            known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
            return f"{key} has shape {list(value.shape)}, not [{', '.join(dims)}]" + (f" with {known}" if known else "")
    tokens = result.get("tokens")
    if schema.tokens_file and tokens is not None:
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            return "tokens is not a list of strings"
        if len(tokens) != sizes["T"]:
            return f"it has {len(tokens)} tokens, but {sizes['T']} columns"
    return None


def _bind(dim: str, size: int, sizes: dict[str, int]) -> bool:
    """Whether an axis has the size its letter stands for; the first axis with a letter decides. A letter
    is at least 1, so that only [L-1] of a model of one block is empty."""
    if dim == "1":
        return size == 1
    n = size - int(dim[1:] or 0)
    return n > 0 and sizes.setdefault(dim[0], n) == n


def not_finite(result: Mapping) -> str | None:
    """The first value that is nan or infinite; None if there is none."""
    for key, value in result.items():
        if isinstance(value, torch.Tensor) and not bool(torch.isfinite(value).all()):
            index = torch.nonzero(~torch.isfinite(value))[0].tolist()
            return f"{key} is {value[tuple(index)].item()} at index {index}"
    return None
