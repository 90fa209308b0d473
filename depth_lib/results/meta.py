"""What a result was made from, as its file says, and what differs; without torch, so that asking is quick."""

import hashlib
import json
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

LATER = ("examples_hash",)  # what files of earlier versions do not hold, and are current all the same


def prompts_hash(prompts: Iterable[str | tuple]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the prompts, in order: equal prompts, equal hash.

    prompts: strings, or examples with their levels.
    """
    text = json.dumps(list(prompts), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differing(stored: Mapping, wanted: Mapping, prefix: str = "") -> list[str]:
    """Where `stored` does not hold what `wanted` does, one line a key; keys that nobody asks for are left alone, and
    so are those that only later versions write."""
    found = []
    for key, asked in wanted.items():
        have = stored.get(key, "nothing")
        if isinstance(asked, dict) and isinstance(have, dict):
            found += differing(have, asked, f"{prefix}{key}.")
        elif not (_meets(key, have, asked) if key in stored else key in LATER):
            found.append(f"{prefix}{key}: stored {have}, asked {asked}")
    return found


def _meets(key: str, have: object, asked: object) -> bool:
    """Whether a stored value is the one asked for, or a tolerance that is tighter."""
    if key == "tolerance" and isinstance(have, float | int) and isinstance(asked, float | int):
        return have <= asked
    return have == asked


def made_from(meta: Mapping) -> str:
    """A line for people: model and revision, dtype, prompts, where, when, versions, as far as the file says."""
    if not meta:
        return "not known, the files have no meta (not written by depth_lib)"
    weights = f"weights {meta['weights']}" if meta.get("weights") else None
    revision = meta.get("commit") or meta.get("revision") or weights
    model = f"{meta.get('model_id', 'model not said')}{f' @ {revision}' if revision else ''}"
    prompts = f"{meta.get('n_prompts', meta.get('n_examples', '?'))} prompts"
    details = ", ".join(str(meta[key]) for key in ("source", "prompts_hash") if meta.get(key))
    versions = " ".join(f"{package} {version}" for package, version in meta.get("versions", {}).items())
    parts = [
        model,
        meta.get("dtype"),
        meta.get("quantization"),
        f"{prompts} ({details})" if details else prompts,
        f"seed {meta['seed']}" if meta.get("seed") is not None else None,
        meta.get("where"),
        str(meta.get("date", ""))[:10],
        versions,
    ]
    return "; ".join(str(part) for part in parts if part)


# Of each kind of floating-point storage: its numbers as integers, and the bits that are all set in nan and infinity.
_FLOATS = {
    "DoubleStorage": ("uint64", 0x7FF0000000000000),
    "FloatStorage": ("uint32", 0x7F800000),
    "HalfStorage": ("uint16", 0x7C00),
    "BFloat16Storage": ("uint16", 0x7F80),
}


class _Plain(pickle.Unpickler):
    """Reads what is beside the tensors of a torch file; a tensor is None, and no code is ever run.

    storages: the number of each floating-point storage in the file, and its kind.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" and name.endswith("Storage"):
            return name
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")):
            return lambda *_: None
        raise pickle.UnpicklingError(f"it asks to load {module}.{name}, which is not a plain tensor")

    def persistent_load(self, storage: tuple) -> None:
        _, kind, number, *_ = storage
        if kind in _FLOATS:
            self.storages[number] = kind


def read_meta(path: str | Path) -> tuple[dict, str | None]:
    """The `meta` of a stored result and None; {} and what is wrong with the file, which stays where it is.

    Values that are not finite are wrong: such a result is not one.
    """
    try:
        with zipfile.ZipFile(path) as stored:
            content = next((name for name in stored.namelist() if name.endswith("/data.pkl")), None)
            reader = _Plain(stored.open(content)) if content else None
            result = reader.load() if reader else None
            finite = all(
                _finite(stored.read(content.replace("data.pkl", f"data/{number}")), kind)
                for number, kind in (reader.storages.items() if reader else ())
            )
    except FileNotFoundError:
        return {}, "there is none"
    except pickle.UnpicklingError as error:
        return {}, str(error)
    except Exception:  # noqa: BLE001 (a damaged zip or pickle raises a dozen kinds)
        return {}, "it is empty" if Path(path).stat().st_size == 0 else "it is truncated or damaged"
    if not isinstance(result, dict) or not isinstance(result.get("meta", {}), dict):
        return {}, "it holds no dict of named tensors"
    if not finite:
        return {}, "it holds values that are not finite"
    return (result["meta"], None) if result.get("meta") else ({}, "it has no meta: not written by depth_lib")


def _finite(storage: bytes, kind: str) -> bool:
    import numpy as np  # half the start of a command that reads no result

    integers, exponent = _FLOATS[kind]
    exponent = np.dtype(integers).type(exponent)
    return not ((np.frombuffer(storage, integers) & exponent) == exponent).any()


def ran_otherwise(metas: Iterable[Mapping]) -> str:
    """In what results from a server ran otherwise than those from this machine, which stand in one table; "" if alike.

    Compared are dtype, whether the weights were quantised, the attention implementation and torch's version.
    """
    ran: dict[bool, list[Mapping]] = {False: [], True: []}
    for meta in filter(None, metas):
        asked = {"dtype": meta.get("dtype"), "quantized": bool(meta.get("quantization"))}  # all that older ones know
        ran[meta.get("remote") not in (None, False, "local")].append(meta.get("runs") or asked)
    found = []
    for key in ("dtype", "quantized", "attention", "torch"):
        here, there = (sorted({str(runs[key]) for runs in ran[side] if runs.get(key) is not None}) for side in ran)
        if here and there and here != there:
            found.append(f"{key} {' or '.join(there)} (here {' or '.join(here)})")
    return ", ".join(found)
