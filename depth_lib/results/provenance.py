"""The origin of results: hashes of prompts and weights, and differences from the current settings. No torch."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from zipfile import is_zipfile

from ..embedded import TOYS, toy_path
from ..files import in_project
from ..hub import cached_commit
from ..models.gguf import WHEELS
from ..params import ParamsError
from .schemas import ARTIFACTS, RECORD, is_result, parse_name

# The files of a checkpoint that determine what it computes.
_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.safetensors", "*.bin", "*.py")
_READ_WHOLE = 2**26  # bytes: to read all of a larger file takes seconds per GB


def prompts_hash(prompts: Iterable[str | tuple]) -> str:
    """16 hexadecimal digits of a hash of prompts, or of examples with their levels, in order."""
    return _digest(json.dumps(list(prompts)).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def checkpoint_of(model_id: str) -> Path | None:
    """The folder or GGUF file of a model; None for models of the Hub. ParamsError for a path that is not there."""
    if model_id in TOYS:
        return toy_path(model_id)
    path = in_project(model_id)
    if path.exists():
        return path
    if model_id.startswith((".", "/", "~")):
        raise ParamsError(f"the checkpoint {model_id} does not exist; check the path")
    return None


def weights_of(model_id: str, revision: str | None) -> dict:
    """The identity of a model's weights: a hash of local ones; on the Hub the revision, and the commit if known."""
    if model_id in WHEELS:
        return {"model_id": model_id, "weights": WHEELS[model_id].sha256[:16]}
    if path := checkpoint_of(model_id):
        return {"model_id": path.name, "weights": fingerprint(path.resolve())}
    if "/" not in model_id:
        raise ParamsError(f"MODEL_ID={model_id} is neither a folder nor a Hub id (owner/name); correct it")
    commit = cached_commit(model_id, revision)
    return {"model_id": model_id, "revision": revision, "weights": None} | ({"commit": commit} if commit else {})


def fingerprint(checkpoint: Path) -> str:
    """A hash of a folder's config, tokenizer, weights and code, or of a GGUF file.

    It covers each file's name, size and content; for a file of 64 MiB or more, the first and the last MiB.
    """
    files = [checkpoint] if checkpoint.is_file() else {path for name in _FILES for path in checkpoint.glob(name)}
    files = sorted(path for path in files if path.name not in ("trainer_state.json", "README.txt"))
    return _fingerprint(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@cache
def _fingerprint(files: tuple[tuple[Path, int, int], ...]) -> str:
    return _digest(repr([(path.name, size, _digest(_sample(path, size))) for path, size, _ in files]).encode())


def _sample(path: Path, size: int) -> bytes:
    """The content of a file; of a large one its first and last MiB."""
    if size < _READ_WHOLE:
        return path.read_bytes()
    with path.open("rb") as file:
        first = file.read(2**20)
        file.seek(-(2**20), 2)
        return first + file.read()


BROKEN = "broken"  # in a record: why it cannot be read


def record_in(folder: Path) -> dict:
    """The content of `run.json` in a run's folder; {} if there is none, and `BROKEN` if it cannot be read."""
    path, parts = folder / RECORD, ("made_from", "versions", "params")
    try:
        record = json.loads(path.read_bytes())
        return {name: dict(record[name]) for name in parts}
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {BROKEN: f"{path} cannot be read ({error.strerror})"}
    except (ValueError, KeyError, TypeError):
        return {BROKEN: f"{path} is damaged: it is not a JSON object with {', '.join(parts)}"}


def is_damaged(path: Path) -> bool:
    """Whether a result's file is cut off: it lacks the end of a zip file. Other damage is found when it is read."""
    return path.exists() and not is_zipfile(path)


def why_not_done(path: Path, asked: Mapping) -> list[str]:
    """The reasons why the result at this path is not the requested one; [] if it is."""
    record, now = record_in(path.parent), ARTIFACTS[parse_name(path).probe].version
    if BROKEN in record or path.name not in record.get("versions", {}):
        return strays(path.parent)
    version = record["versions"][path.name]
    outdated = [f"VERSION: {version} of the probe, now {now}"] if version != now else []
    return outdated + differing(record["made_from"], asked)


def strays(folder: Path) -> list[str]:
    """One line for each thing about a folder's results that `run.json` does not say."""
    record = record_in(folder)
    found = [path.name for path in sorted(folder.glob("*.pt")) if is_result(path)]
    if BROKEN in record:
        return [record[BROKEN]]
    names = [name for name in found if name not in record.get("versions", {})]
    return [f"{RECORD} does not say how {', '.join(names)} was computed"] if names else []


def differing(stored: Mapping, asked: Mapping) -> list[str]:
    """ "DTYPE: float32, requested bfloat16" for each key that both have with different values; no hashes."""
    keys = [key for key in asked if key in stored and stored[key] != asked[key]]
    plain = [f"{key.upper()}: {stored[key]}, requested {asked[key]}" for key in keys if key not in _HASHES]
    hashes = [f"different {key}" for key in keys if key in _HASHES]
    return plain + [line for line in hashes if not plain or line == "different weights"]


_HASHES = ("weights", "prompts", "responses", "examples", "choices", "baseline")
