"""The .pt files: their names and keys, an atomic write with provenance, and a checked read.

`outputs/<dataset>/<MODEL>/` holds one file per probe under the papers' own names and keys, so their notebooks read ours
and we read theirs. A file of ours also holds `meta` (what was run, where, with which versions) and per-prompt sums.
Only tensors, strings, numbers, lists and dicts are stored: `torch.load(path, weights_only=True)` reads every file.
Reading never writes, renames or runs anything; what a write would replace and is not ours is moved aside first.
"""

import importlib.metadata
import io
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files import move_aside, write_together
from .commands import makes
from .schemas import SCHEMAS, ArtifactError, MissingArtifact, mismatch, pair_of, probe_of

SCHEMA_VERSION = 1
# Every character that ends a line somewhere, that cannot be seen, or that utf-8 cannot hold.
_INVISIBLE = re.compile(r"[\\␣\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")
_ESCAPES = {"\\": "\\\\", " ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def save_artifact(path: str | Path, result: Mapping, meta: Mapping) -> Path:
    """Write a probe's result and its provenance in one step, and its tokens, one per line, beside it.

    The file appears complete or not at all: temporary file in the same folder, fsync, rename. `meta` gains `schema`,
    `probe`, `version` (of the probe) and `versions` (of packages). ArtifactError if a key is missing, has another shape
    or is not finite, or if the disk refuses. What is at `path` but unreadable or not written by depth_lib is moved
    aside with a warning, never lost.
    """
    path = Path(path)
    probe, n = probe_of(path)
    schema = SCHEMAS[probe]
    stored = {key: _storable(key, value) for key, value in result.items()}
    problem = mismatch(probe, stored) or _not_finite(stored)
    if schema.tokens_file and "tokens" not in stored:
        problem = problem or "it has no key tokens"
    if problem:
        raise ArtifactError(f"{path} was not written: {problem}; run the probe again")
    versions = {package: _version(package) for package in ("torch", "transformers", "nnsight", "depth_lib")}
    stored["meta"] = _plain(meta) | {"schema": SCHEMA_VERSION, "probe": probe, "version": schema.version}
    stored["meta"]["versions"] = versions
    contents = {}
    if schema.tokens_file:
        lines = "".join(escape_token(token) + "\n" for token in stored["tokens"])
        contents[path.with_name(schema.names(n, pair_of(path))[1])] = lines.encode()
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    contents[path] = buffer.getvalue()  # last, so that the tokens are there before the file that needs them
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_what_is_not_ours(path, list(contents))
        write_together(contents)
    except OSError as error:
        raise ArtifactError(
            f"{path} was not written: {error.strerror or error}; free the disk or choose another OUT, then run again"
        ) from error
    return path


def load_artifact(path: str | Path) -> dict:
    """Read a probe's result: its tensors, `tokens` (a list, or None) where it has a token axis, and `meta`.

    Tensors are on the CPU, without a gradient and, if they are of floating point, float32, whatever they were stored
    as: the papers' scripts leave bfloat16, parameters and GPU tensors. MissingArtifact if there is no file,
    ArtifactError for one that cannot be read as plain tensors, or has not the keys and shapes of its probe; it stays
    where it is. A file without `meta` (the papers' own) is read with a warning and `meta` = {}.
    """
    result = read_artifact(path)
    if not result["meta"]:
        warnings.warn(
            f"{path} has no meta (not written by depth_lib): its model, prompts and settings are unknown", stacklevel=2
        )
    return result


def read_artifact(path: str | Path) -> dict:
    """`load_artifact` without the warning about a missing `meta`, for callers that say it once for many files."""
    path = Path(path)
    probe, n = probe_of(path)
    schema = SCHEMAS[probe]
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise MissingArtifact(
            f"no artifact for {path.parent.parent.name} × {path.parent.name} ({path.name}); run: {makes(path)}"
        ) from None
    except OSError as error:
        raise ArtifactError(f"{path} could not be opened: {error.strerror}; check the folder, run again") from error
    result, problem = _parse(content)
    problem = problem or mismatch(probe, result)
    if problem:
        raise ArtifactError(f"{path} is no {probe} artifact: {problem}; run: {makes(path)}")
    for key, value in result.items():
        if isinstance(value, torch.Tensor):
            result[key] = value.detach().float() if value.is_floating_point() else value.detach()
    result.setdefault("meta", {})
    if schema.tokens_file and "tokens" not in result:
        n_tokens = result[next(iter(schema.required))].shape[-1]
        result["tokens"] = _papers_tokens(path.with_name(schema.names(n, pair_of(path))[1]), n_tokens)
    return result


def escape_token(token: str) -> str:
    r"""One token as one visible line, reversibly: a space is ␣, a line feed \n, a backslash \\, others \uXXXX."""
    return _INVISIBLE.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), token)


def _keep_what_is_not_ours(path: Path, replaced: list[Path]) -> None:
    """Move aside the files that would be replaced, unless they are a result of ours."""
    try:
        if read_artifact(path)["meta"]:
            return
        reason, why = "without-meta", "was not written by depth_lib"
    except MissingArtifact:
        return
    except ArtifactError:
        reason, why = "unreadable", "was unreadable"
    for old in replaced if reason == "without-meta" else [path]:
        if old.exists():
            kept = move_aside(old, reason).name
            warnings.warn(f"{old} {why} and is kept as {kept}", stacklevel=3)


def _papers_tokens(path: Path, n_tokens: int) -> list[str] | None:
    """Tokens from the text file beside the papers' own result, which wrote them unescaped; None if they do not fit."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return None
    return lines if len(lines) == n_tokens else None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _plain(value: Any, name: str = "meta") -> Any:
    """The value as None, bool, number, string, list or dict of these; TypeError names what is none of them."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | os.PathLike | torch.device | torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{name}.{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{name}[{i}]") for i, entry in enumerate(value)]
    raise TypeError(f"{name} is a {type(value).__name__}; store a string, a number, or a list or dict of them")


def _storable(key: str, value: Any) -> Any:
    """A tensor on the CPU with a storage of its own (a view would store everything it looks into), or plain."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return _plain(value, key)


def _not_finite(result: Mapping) -> str | None:
    """The first value that is nan or infinite; None if there is none."""
    for key, value in result.items():
        if isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
            index = torch.nonzero(~torch.isfinite(value))[0].tolist()
            return f"{key} is {value[tuple(index)].item()} at index {index}"
    return None


def _parse(content: bytes) -> tuple[Any, str | None]:
    """The plain values in a .pt file's bytes, or {} and why there are none; code in a pickle is never run."""
    if not content:
        return {}, "it is empty"
    try:
        result = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (torch raises a dozen kinds for damaged files)
        code = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        return {}, f"it asks to load {code[1]}, which is not a plain tensor" if code else "it is truncated or damaged"
    return result, None
