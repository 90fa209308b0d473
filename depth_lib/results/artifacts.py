"""Reading and writing .pt files: an atomic write with provenance, and a checked read.

`outputs/<dataset>/<MODEL>/` holds one file per probe with the papers' own names and keys, so that their notebooks read
our files and this package reads theirs. Our files also hold `meta` (what was run, where, with which versions) and
per-prompt sums. Only tensors, strings, numbers, lists and dicts are stored: `torch.load(path, weights_only=True)` reads
every file. Reading never changes, renames or runs anything; writing moves aside a file that is not one of ours.
"""

import io
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from .. import __version__
from ..files import move_aside, write_together
from ..params import command
from .schemas import BETWEEN_MODELS, FURTHER_PROBES, SCHEMAS, ArtifactError, MissingArtifact, mismatch, parse_name

SCHEMA_VERSION = 1
# Characters that end a line, that are invisible, or that utf-8 cannot encode.
_INVISIBLE = re.compile(r"[\\␣\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")
_ESCAPES = {"\\": "\\\\", " ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def save_artifact(path: str | Path, result: Mapping, meta: Mapping) -> Path:
    """Write a probe's result with its provenance, and its tokens, one per line, in a text file beside it.

    The file appears complete or not at all: temporary file in the same folder, fsync, rename. `meta` gains `schema`,
    `probe`, `version` (of the probe) and `versions` (of packages). ArtifactError if a key is missing, has another shape
    or is not finite, or if the file cannot be written. A file at `path` that is unreadable or was not written by
    depth_lib is moved aside with a warning.
    """
    path = Path(path)
    probe, n, pair = parse_name(path)
    schema = SCHEMAS[probe]
    stored = {key: _storable(value) for key, value in result.items()}
    problem = mismatch(probe, stored) or _not_finite(stored)
    if schema.tokens_file and "tokens" not in stored:
        problem = problem or "it has no key tokens"
    if problem:
        raise ArtifactError(f"{path} was not written: {problem}; run the probe again")
    versions = {package: version(package) for package in ("torch", "transformers", "nnsight")}
    versions["depth_lib"] = __version__
    ours = {"schema": SCHEMA_VERSION, "probe": probe, "version": schema.version, "versions": versions}
    stored["meta"] = _storable(meta) | ours
    contents = {}
    if schema.tokens_file:
        lines = "".join(escape_token(token) + "\n" for token in stored["tokens"])
        contents[path.with_name(schema.names(n, pair)[1])] = lines.encode()
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    contents[path] = buffer.getvalue()  # last, so that a result is never there without its tokens
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_foreign_files(path, list(contents))
        write_together(contents)
    except OSError as error:
        raise ArtifactError(
            f"{path} was not written: {error.strerror or error}; free the disk or choose another OUT, then run again"
        ) from error
    return path


def load_artifact(path: str | Path) -> dict:
    """Read a probe's result: its tensors, `meta`, and `tokens` (a list, or None) if it has a token axis.

    Tensors are on the CPU, without a gradient and, if they are of floating point, float32, whatever they were stored
    as: the papers' scripts store bfloat16, parameters and GPU tensors. MissingArtifact if there is no file,
    ArtifactError for one that cannot be read as plain tensors, or lacks the keys and shapes of its probe; the file is
    not touched. OSError for one that cannot be opened. A file without `meta` (the papers' own) is read with a warning
    and `meta` = {}.
    """
    result = read_artifact(path)
    if not result["meta"]:
        warnings.warn(
            f"{path} has no meta (not written by depth_lib): its model, prompts and settings are unknown", stacklevel=2
        )
    return result


def read_artifact(path: str | Path) -> dict:
    """`load_artifact` without its warning, for callers that warn once about many files."""
    path = Path(path)
    probe, n, pair = parse_name(path)
    schema, folder = SCHEMAS[probe], path.parent if len(path.parts) > 2 else path.absolute().parent
    model, dataset, out = folder.name, folder.parent.name, str(folder.parent.parent)
    probes = probe if probe in FURTHER_PROBES else ""
    remedy = f"run: {command('sweep', MODELS=model, DATASETS=dataset, OUT=out, PAIR=pair, PROBES=probes)}"
    if probe in BETWEEN_MODELS:
        remedy = "run: make maps SOURCE_MODEL=… TARGET_MODEL=…"
    try:
        result = _unpickled(path)
        problem = mismatch(probe, result)
    except FileNotFoundError:
        raise MissingArtifact(f"no artifact for {dataset} × {model} ({path.name}); {remedy}") from None
    except pickle.UnpicklingError as error:
        problem = str(error)
    if problem:
        raise ArtifactError(f"{path} is no {probe} artifact: {problem}; {remedy}")
    for key, value in result.items():
        if isinstance(value, torch.Tensor):
            result[key] = value.detach().float() if value.is_floating_point() else value.detach()
    result.setdefault("meta", {})
    if schema.tokens_file and "tokens" not in result:
        n_tokens = result[next(iter(schema.required))].shape[-1]
        result["tokens"] = _papers_tokens(path.with_name(schema.names(n, pair)[1]), n_tokens)
    return result


def escape_token(token: str) -> str:
    r"""One token as one visible line, reversibly: a space is ␣, a line feed \n, a backslash \\, others \uXXXX."""
    return _INVISIBLE.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), token)


def _keep_foreign_files(path: Path, replaced: list[Path]) -> None:
    """Move aside the files that would be replaced, unless they are a result of ours."""
    try:
        if read_artifact(path)["meta"]:
            return
        reason = "without-meta"
    except MissingArtifact:
        return
    except ArtifactError:
        reason = "unreadable"
    for old in filter(Path.exists, replaced):
        kept = move_aside(old, reason).name
        warnings.warn(f"{old} is not a result of depth_lib ({reason}); it is kept as {kept}", stacklevel=3)


def _papers_tokens(path: Path, n_tokens: int) -> list[str] | None:
    """Tokens from the text file beside the papers' own result, which has them unescaped; None if they do not fit."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return None
    return lines if len(lines) == n_tokens else None


def _storable(value: object) -> object:
    """A tensor on the CPU with its own storage (a view would be stored with its whole base), or what JSON can hold."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return torch.as_tensor(value).detach().cpu().clone(memory_format=torch.contiguous_format)
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike | torch.device | torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"meta holds {value!r}; store strings, numbers, and lists or dicts of them")


def _not_finite(result: Mapping) -> str | None:
    """What is not finite. Of a model that is read block by block, what attention and MLP add is NaN everywhere."""
    for key, value in result.items():
        if not isinstance(value, torch.Tensor) or (("att" in key or "mlp" in key) and value.isnan().all()):
            continue
        if not torch.isfinite(value).all():
            return f"{key} is not finite at index {(~torch.isfinite(value)).nonzero()[0].tolist()}"
    return None


def _unpickled(path: Path) -> object:
    """The values in a .pt file; UnpicklingError says why there are none. Code in a pickle is never run."""
    content = io.BytesIO(path.read_bytes())
    try:
        if zipfile.is_zipfile(content) and (damaged := zipfile.ZipFile(content).testzip()):
            raise zipfile.BadZipFile(damaged)
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 (zipfile and torch raise a dozen kinds for damaged files)
        code = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        reason = f"it asks to load {code[1]}, which is not a plain tensor" if code else "it is truncated or damaged"
        raise pickle.UnpicklingError(reason) from None
