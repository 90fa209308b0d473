"""What a result was made from, as its file says, and whether that is what is wanted.

Without torch, so that asking is quick.
"""

import hashlib
import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..models.gguf import gguf_in
from .schemas import SCHEMAS, mismatch, probe_of

NONE_YET = "there is none yet"
_PIECE = 2**18  # bytes of a weight file that are read at once
LATER = ("examples_hash", "n_examples")  # what files of earlier versions do not hold, and are current all the same


def why_stale(path: str | Path, wanted: Mapping) -> list[str]:
    """Why the file at this path does not hold the result that is wanted, one line per reason; [] if it does.

    This is the one place where that is decided. wanted: what its `meta` must say; keys that are not wanted are not
    compared, nested dicts by their own keys. Besides, the file has to be readable, with the keys, shapes and finite
    values of its probe, and computed by this version of the probe.
    """
    path = Path(path)
    if not path.exists():
        return [NONE_YET]
    meta, problem = read_meta(path)
    if problem:
        return [problem]
    probe, n = probe_of(path)
    reasons = differing(meta, wanted)
    if meta.get("version", 1) != SCHEMAS[probe].version:
        reasons.append(f"version: stored {meta.get('version', 1)}, this depth_lib computes {SCHEMAS[probe].version}")
    # Files of earlier versions whose name has no number, where the prompts themselves are not known here.
    if n is None and "n_examples" not in meta and "n_prompts" not in wanted and "n_prompts" in meta:
        if wanted.get("n_examples", meta["n_prompts"]) != meta["n_prompts"]:
            reasons.append(f"n_examples: stored {meta['n_prompts']}, asked {wanted['n_examples']}")
    return reasons


def read_meta(path: str | Path) -> tuple[dict, str | None]:
    """The `meta` of a stored result and None; {} and what is wrong with the file, which stays where it is."""
    try:
        with zipfile.ZipFile(path) as stored:
            pickled = next(name for name in stored.namelist() if name.endswith("/data.pkl"))
            reader = _Reader(stored.open(pickled))
            result = reader.load()
            folder = pickled.removesuffix("data.pkl")
            finite = all(_is_finite(stored.read(f"{folder}data/{n}"), kind) for n, kind in reader.storages.items())
        problem = mismatch(probe_of(path)[0], result)
    except FileNotFoundError:
        return {}, NONE_YET
    except pickle.UnpicklingError as error:
        return {}, str(error)
    except Exception:  # noqa: BLE001 (a damaged zip or pickle raises a dozen kinds)
        return {}, "it is empty" if Path(path).stat().st_size == 0 else "it is truncated or damaged"
    if problem:
        return {}, problem
    if not result.get("meta"):
        return {}, "it has no meta: not written by depth_lib"
    return (result["meta"], None) if finite else ({}, "it holds values that are not finite")


def prompts_hash(prompts: Iterable[str | tuple]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the prompts, in order: equal prompts, equal hash.

    prompts: strings, or examples with their levels.
    """
    text = json.dumps(list(prompts), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(checkpoint: str | Path) -> str:
    """16 hexadecimal digits of a hash of a folder's config, tokenizer and weights, or of a GGUF file.

    Files up to 64 MiB are read whole. Of larger ones four spread pieces of each tensor of a safetensors file, which for
    tensors up to 1 MiB, such as norms, is all of them; of other formats 256 spread pieces.
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


def differing(stored: Mapping, wanted: Mapping, prefix: str = "") -> list[str]:
    """Where `stored` does not hold what `wanted` does, one line per key; other keys are not compared, nor are those
    that only later versions write."""
    reasons = []
    for key, value in wanted.items():
        have = stored.get(key, "nothing")
        if isinstance(value, dict) and isinstance(have, dict):
            reasons += differing(have, value, f"{prefix}{key}.")
        elif key not in stored and key in LATER:
            continue
        elif key not in stored or not _fits(key, have, value):
            reasons.append(f"{prefix}{key}: stored {have}, asked {value}")
    return reasons


def made_from(meta: Mapping) -> str:
    """A line for people: model and revision, dtype, prompts, where, when, versions, as far as the file says."""
    if not meta:
        return "not known, the files have no meta (not written by depth_lib)"
    weights = f"weights {meta['weights']}" if meta.get("weights") else None
    revision = meta.get("commit") or meta.get("revision") or weights
    model = meta.get("model_id", "model not said")
    details = ", ".join(str(meta[key]) for key in ("source", "prompts_hash") if meta.get(key))
    parts = [
        f"{model} @ {revision}" if revision else model,
        meta.get("dtype"),
        meta.get("quantization"),
        f"{meta.get('n_prompts', '?')} prompts" + (f" ({details})" if details else ""),
        f"seed {meta['seed']}" if meta.get("seed") is not None else None,
        meta.get("where"),
        str(meta.get("date", ""))[:10],
        " ".join(f"{package} {version}" for package, version in meta.get("versions", {}).items()),
    ]
    return "; ".join(str(part) for part in parts if part)


def ran_otherwise(metas: Iterable[Mapping]) -> str:
    """How results from a server ran otherwise than those from this machine, which stand in one table; "" if alike.

    Compared are dtype, whether the weights were quantised, the attention implementation and torch's version.
    """
    here, there = [], []
    for meta in filter(None, metas):
        asked = {"dtype": meta.get("dtype"), "quantized": bool(meta.get("quantization"))}  # all that older files know
        side = here if meta.get("remote") in (None, False, "local") else there
        side.append(meta.get("runs") or asked)
    differences = []
    for key in ("dtype", "quantized", "attention", "torch"):
        ours, theirs = (sorted({str(run[key]) for run in runs if run.get(key) is not None}) for runs in (here, there))
        if ours and theirs and ours != theirs:
            differences.append(f"{key} {' or '.join(theirs)} (here {' or '.join(ours)})")
    return ", ".join(differences)


def _fits(key: str, have: object, wanted: object) -> bool:
    """Whether a stored value is the wanted one, or a tolerance that is tighter."""
    if key == "tolerance" and isinstance(have, float | int) and isinstance(wanted, float | int):
        return have <= wanted
    return have == wanted


def _pieces(file: IO[bytes], suffix: str, size: int) -> Iterator[tuple[int, int]]:
    """Where the bytes of a weight file that are hashed begin, and how many they are."""
    if size <= 64 * 2**20:
        yield 0, size
    elif suffix == ".safetensors":
        header_size = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size - 8))
        yield 0, header_size
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                step = max(_PIECE, -((start + _PIECE - end) // 3))  # the last piece ends where the tensor does
                yield from ((header_size + at, min(_PIECE, end - at)) for at in range(start, end, step))
    else:
        yield from ((at, _PIECE) for at in range(0, size, size // 256))


@dataclass(frozen=True)
class _Tensor:
    """What is known of a stored tensor without reading it."""

    shape: tuple[int, ...]


class _Reader(pickle.Unpickler):
    """Reads a torch file's pickle: of tensors their shapes, all else as it is; no code is ever run.

    storages: the number of each storage of floating-point values in the file, and its kind.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" and name.endswith("Storage"):
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, *_: _Tensor(tuple(shape))
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        raise pickle.UnpicklingError(f"it asks to load {module}.{name}, which is not a plain tensor")

    def persistent_load(self, storage: tuple) -> None:
        _, kind, number, *_ = storage
        self.storages[number] = kind


def _is_finite(storage: bytes, kind: str) -> bool:
    import numpy as np  # half the start of a command that reads no result

    if kind == "BFloat16Storage":  # the upper half of a float32's bits
        values = np.frombuffer(storage, "<u2").astype("<u4") << 16
        return bool(np.isfinite(values.view("<f4")).all())
    dtype = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2"}.get(kind)
    return dtype is None or bool(np.isfinite(np.frombuffer(storage, dtype)).all())
