"""What a result was made from, as its file says, and whether that is what is asked for.

This module does not import torch, so that asking is fast.
"""

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from ..models.gguf import gguf_in
from .schemas import SCHEMAS, mismatch, parse_name

NONE_YET = "there is none yet"
_PIECE = 2**18  # bytes of a weight file that are read at once


def why_stale(path: str | Path, wanted: Mapping) -> list[str]:
    """Why the file at this path is not the wanted result, one line per reason; [] if it is.

    This is the only place that decides it. wanted: what `meta` must say; only these keys are compared, nested dicts key
    by key. `n_examples` is not compared where both name the same prompts, which are all that the source has; of the
    Hub's it is, whose prompts are not known without the network. The file must also be readable, have the keys and
    shapes of its probe, and be computed by this version of the probe.
    """
    meta, problem = read_meta(path)
    if problem:
        return [problem]
    probe, n, _ = parse_name(path)
    # Earlier versions did not store these; the number of prompts, or in a file's name, stands for what was asked for.
    known = n is not None or "n_prompts" in wanted
    earlier = {
        "version": 1,
        "examples_hash": wanted.get("examples_hash"),
        "n_examples": wanted.get("n_examples") if known else meta.get("n_prompts"),
    }
    same_prompts = all(meta.get(key) == wanted.get(key, "not known") for key in ("n_prompts", "prompts_hash"))
    if same_prompts and wanted.get("source") != "hub":
        meta = meta | {"n_examples": wanted.get("n_examples")}
    return differing(earlier | meta, {**wanted, "version": SCHEMAS[probe].version})


def read_meta(path: str | Path) -> tuple[dict, str | None]:
    """The `meta` of a stored result and None, or {} and what is wrong with it; no code in the file is run.

    OSError, other than for a file that is not there, if it cannot be opened.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return {}, NONE_YET
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as stored:
            if damaged := stored.testzip():
                raise zipfile.BadZipFile(damaged)
            name = next(name for name in stored.namelist() if name.endswith("/data.pkl"))
            result = _Reader(stored.open(name)).load()
        problem = mismatch(parse_name(path)[0], result)
    except pickle.UnpicklingError as error:
        return {}, str(error)
    except Exception:  # noqa: BLE001 (a damaged zip or pickle raises a dozen kinds)
        return {}, "it is truncated or damaged"
    if not problem and not result.get("meta"):
        problem = "it has no meta: not written by depth_lib"
    return ({}, problem) if problem else (result["meta"], None)


def prompts_hash(prompts: Iterable[str | tuple]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the prompts in order.

    prompts: strings, or examples with their levels.
    """
    text = json.dumps(list(prompts), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(checkpoint: str | Path) -> str:
    """16 hexadecimal digits of a hash of a folder's config, tokenizer and weights, or of a GGUF file.

    Files up to 64 MiB are read whole. Of larger ones four spread pieces of each tensor of a safetensors file are read,
    which for tensors up to 1 MiB, such as norms, is all of them; of other formats 256 spread pieces.
    """
    digest, gguf = hashlib.sha256(), gguf_in(checkpoint)
    files = [path for kind in ("json", "safetensors", "bin") for path in Path(checkpoint).glob(f"*.{kind}")]
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
    """One line on a result's origin: model and revision, dtype, prompts, where, when, versions, as far as known."""
    if not meta:
        return "not known, the files have no meta (not written by depth_lib)"
    origin = {
        **meta,
        "revision": meta.get("commit") or meta.get("revision") or meta.get("weights"),
        "n_prompts": f"{meta.get('n_prompts', '?')} prompts",
        "date": meta.get("date", "")[:10],
        "versions": " ".join(f"{package} {version}" for package, version in meta.get("versions", {}).items()),
    }
    keys = "model_id revision dtype quantization n_prompts source prompts_hash where date versions blocks".split()
    return "; ".join(str(origin[key]) for key in keys if origin.get(key))


def differing(stored: Mapping, wanted: Mapping, prefix: str = "") -> list[str]:
    """Where `stored` is not as wanted, one line per key. A tolerance tighter than wanted is not a difference."""
    reasons = []
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(stored.get(key), dict):
            reasons += differing(stored[key], value, f"{prefix}{key}.")
        elif key == "tolerance" and stored.get(key, value + 1) <= value:
            continue
        elif key not in stored or stored[key] != value:
            reasons.append(f"{prefix}{key}: stored {stored.get(key, 'nothing')}, asked {value}")
    return reasons


class _Reader(pickle.Unpickler):
    """Reads the pickle in a torch file without torch: a tensor becomes its shape, and code is never run."""

    KNOWN = {
        ("collections", "OrderedDict"): dict,
        ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, shape, *_: SimpleNamespace(shape=shape),
        ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    }

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and name.endswith("Storage"):
            return None
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks to load {module}.{name}, which is not a plain tensor")
        return self.KNOWN[module, name]

    def persistent_load(self, storage: tuple) -> None:
        return None
