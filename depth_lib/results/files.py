"""What an artifact holds on the disk: plain values and tensors, read back without running code."""

import datetime
import enum
import io
import os
import pickle
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

# Every character that ends a line somewhere, that cannot be seen, or that utf-8 cannot hold.
_INVISIBLE = re.compile(r"[\\␣\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")
_ESCAPES = {"\\": "\\\\", " ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNESCAPES = {escape: character for character, escape in _ESCAPES.items()}


def escape_token(token: str) -> str:
    r"""One token as one visible line, reversibly: a space is ␣, a line feed \n, a backslash \\, others \uXXXX."""
    return _INVISIBLE.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), token)


def unescape_token(line: str) -> str:
    """The token that `escape_token` wrote as this line."""
    return re.sub(
        r"\\u([0-9a-f]{4})|\\.|␣",
        lambda match: chr(int(match[1], 16)) if match[1] else _UNESCAPES.get(match[0], match[0]),
        line,
    )


def plain(value: Any, name: str = "meta") -> Any:
    """The value as None, bool, number, string, list or dict of these; TypeError names what is none of them."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, str | os.PathLike | torch.device):
        return str(value)
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(entry, f"{name}.{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{name}[{i}]") for i, entry in enumerate(value)]
    raise TypeError(f"{name} is a {type(value).__name__}; store a string, a number, or a list or dict of them")


def storable(key: str, value: Any) -> Any:
    """A tensor on the CPU with a storage of its own (a view would store everything it looks into), or plain."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return plain(value, key)


def parse(content: bytes) -> tuple[dict, str | None]:
    """The dict of plain tensors in a .pt file's bytes, or {} and why it is none; code in a pickle is never run."""
    if not content:
        return {}, "it is empty"
    try:
        result = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (torch raises a dozen kinds for damaged files)
        code = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        return {}, f"it asks to load {code[1]}, which is not a plain tensor" if code else "it is truncated or damaged"
    if not isinstance(result, dict) or not all(isinstance(key, str) for key in result):
        return {}, f"it holds a {type(result).__name__}, not a dict of named tensors"
    if not isinstance(result.get("meta", {}), dict):
        return {}, "its meta is not a dict"
    return dict(result), None
