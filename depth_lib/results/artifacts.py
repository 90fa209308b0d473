"""The .pt files: their names and keys, an atomic write with provenance, and a checked read.

`outputs/<dataset>/<MODEL>/` holds one file a probe under the papers' own names and keys, so their notebooks read ours
and we read theirs. A file of ours also holds `meta` (what was run, where, with which versions) and per-prompt sums.
Only tensors, strings, numbers, lists and dicts are stored: `torch.load(path, weights_only=True)` reads every file.
"""

import importlib.metadata
import io
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from ..files import move_aside, write_together
from .commands import makes
from .files import escape_token, parse, plain, storable
from .meta import differing
from .schemas import SCHEMAS, ArtifactError, MissingArtifact, pair_of, probe_of
from .shapes import mismatch, not_finite

SCHEMA_VERSION = 1


def save_artifact(path: str | Path, result: Mapping, meta: Mapping) -> Path:
    """Write a probe's result and its provenance in one step, and its tokens, one a line, beside it.

    The file appears complete or not at all: temporary file in the same folder, fsync, rename. `meta` gains `schema`,
    `probe` and `versions`. ArtifactError if a key is missing, has another shape or is not finite, or if the disk
    refuses. What is at `path` but unreadable or not written by depth_lib is moved aside with a warning, never lost.
    """
    path = Path(path)
    probe, n = probe_of(path)
    stored = {key: storable(key, value) for key, value in result.items()}
    tokens_file = SCHEMAS[probe].tokens_file
    problem = mismatch(probe, stored) or not_finite(stored)
    if tokens_file and "tokens" not in stored:
        problem = problem or "it has no key tokens"
    if problem:
        raise ArtifactError(f"{path} was not written: {problem}; run the probe again")
    stored["meta"] = plain(meta) | {"schema": SCHEMA_VERSION, "probe": probe, "versions": _versions()}
    contents = {}
    if tokens_file:
        lines = "".join(escape_token(token) + "\n" for token in stored["tokens"])
        contents[path.with_name(SCHEMAS[probe].names(n, pair_of(path))[1])] = lines.encode()
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    contents[path] = buffer.getvalue()  # last, so that the tokens are there before the file that needs them
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_what_is_not_ours(contents)
        write_together(contents)
    except OSError as error:
        raise ArtifactError(
            f"{path} was not written: {error.strerror or error}; free the disk or choose another OUT, then run again"
        ) from error
    return path


def load_artifact(path: str | Path) -> dict:
    """Read a probe's result: its tensors, `tokens` (a list, or None) where it has a token axis, and `meta`.

    Tensors are on the CPU, without a gradient and, if they are of floating point, float32, whatever they were stored
    as: the papers' scripts leave bfloat16, parameters and GPU tensors. MissingArtifact if there is no file. One that
    cannot be read as plain tensors, or has not the keys and shapes of its probe, is moved aside to
    `<name>.unreadable-1` (-2, ...) and ArtifactError says so. A file without `meta` (the papers' own) is read with a
    warning and `meta` = {}.
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
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise MissingArtifact(
            f"no artifact for {path.parent.parent.name} × {path.parent.name} ({path.name}); run: {makes(path)}"
        ) from None
    except OSError as error:  # a lost disk or a full descriptor table says nothing about the file: leave it there
        raise ArtifactError(f"{path} could not be opened: {error.strerror}; check the folder, run again") from error
    result, problem = parse(content)
    problem = problem or mismatch(probe, result)
    if problem:
        try:
            where = f"moved to {move_aside(path, 'unreadable').name}"
        except OSError as error:
            where = f"it could not be moved aside: {error.strerror}"
        raise ArtifactError(f"{path} is no {probe} artifact: {problem}; {where}; run: {makes(path)}")
    result = {key: _as_float32(value) for key, value in result.items()} | {"meta": result.get("meta", {})}
    tokens_file = SCHEMAS[probe].tokens_file
    if tokens_file and "tokens" not in result:
        n_tokens = next(iter(result[key] for key in SCHEMAS[probe].required)).shape[-1]
        result["tokens"] = _papers_tokens(path.with_name(SCHEMAS[probe].names(n, pair_of(path))[1]), n_tokens)
    return result


def differences(path: str | Path, wanted_meta: Mapping) -> list[str]:
    """Why the file at this path does not hold what is asked for, one line a reason; [] if it does.

    Only the keys of `wanted_meta` are compared, nested dicts by their own keys. A file that is missing, or was
    unreadable and is now moved aside, is one reason; so are values that are not finite, which no probe of ours writes.
    """
    try:
        stored = read_artifact(path)
    except ArtifactError as error:
        return [str(error)]
    problem = not_finite(stored)
    return ([problem] if problem else []) + differing(stored["meta"], plain(wanted_meta))


def _as_float32(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().float() if value.is_floating_point() else value.detach()


def _keep_what_is_not_ours(paths: Iterable[Path]) -> None:
    *companions, path = paths
    try:
        if read_artifact(path)["meta"]:
            return
    except MissingArtifact:
        return
    except ArtifactError as error:
        warnings.warn(str(error), stacklevel=3)
        return
    for old in [*companions, path]:
        if old.exists():
            moved = move_aside(old, "without-meta")
            warnings.warn(f"{old} was not written by depth_lib and is kept as {moved.name}", stacklevel=3)


def _papers_tokens(path: Path, n_tokens: int) -> list[str] | None:
    """Tokens from the text file beside the papers' own result, which wrote them unescaped; None if they do not fit."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return None
    return lines if len(lines) == n_tokens else None


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "transformers", "nnsight", "depth_lib"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
