"""Reading and writing .pt files: atomic writes with provenance, checked reads.

`outputs/<dataset>/<MODEL>/` has one file per probe with the papers' names and keys, so the papers' notebooks read our
files, and this package reads theirs. Ours also have `meta` (what was run, where, with which versions) and sums per
prompt. They consist of tensors, strings, numbers, lists and dicts: `torch.load(path, weights_only=True)` reads them.
Reading never changes a file or runs code; writing moves aside a file of that name that depth_lib did not write.
"""

import io
import json
import re
import subprocess
import warnings
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..data.pairs import DRAWN_PAIRS, PAIRS
from ..files import move_aside, write_together
from ..params import INSTALLED, command
from .provenance import META, read_meta, unpickled
from .result import Result
from .schemas import ARTIFACTS, FURTHER_PROBES, SCHEMAS, ArtifactError, MissingArtifact, mismatch, parse_name

SCHEMA_VERSION = 2  # 1 had no meta.json
# Characters that end a line, are invisible, or cannot be encoded as UTF-8.
_INVISIBLE = re.compile(r"[\\␣\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")
_ESCAPES = {"\\": "\\\\", " ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def save_artifact(path: str | Path, result: Mapping, meta: Mapping) -> Path:
    """Write a probe's result with its provenance, and its tokens, one per line, in a text file beside it.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.save_artifact("mine/logitlens_3exps.pt", dl.logit_lens(llm, prompts), {"model": "toy-4l"}).name
    'logitlens_3exps.pt'

    The file appears complete or not at all: temporary file in the same folder, fsync, rename. `meta` gains `schema`,
    `probe` and, unless it has them, `version` (of the probe) and `versions` (of packages). ArtifactError if a key is
    missing, has another shape or is not finite, or if the file cannot be written. A file at `path` that is unreadable
    or was not written by depth_lib is moved aside with a warning.
    Cost: no forward pass; one copy of the tensors in memory.
    """
    path = Path(path)
    name = parse_name(path)
    probe = name.probe
    schema = SCHEMAS[probe]
    stored = {key: _storable(value) for key, value in result.items()}
    problem = mismatch(probe, stored) or _not_finite(stored)
    if schema.tokens_file and "tokens" not in stored:
        problem = problem or "it has no key tokens"
    if problem:
        raise ArtifactError(f"{path} was not written: {problem}; run the probe again")
    versions = {package: version(package) for package in ("torch", "transformers", "nnsight")}
    versions["depth_lib"] = f"{__version__} {own_commit() or ''}".strip()
    made_with = {"version": schema.version, "versions": versions} | _storable(meta)  # of a result that was read its own
    stored["meta"] = made_with | {"schema": SCHEMA_VERSION, "probe": probe}
    contents = {}
    if schema.tokens_file:
        lines = "".join(escape_token(token) + "\n" for token in stored["tokens"])
        contents[path.with_name(name.files[1])] = lines.encode()
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(zipfile.ZipInfo(META), json.dumps(stored["meta"]))
    contents[path] = buffer.getvalue()  # last: a result is never there without its tokens
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

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> path = dl.logit_lens(llm, prompts).save("mine")
    >>> dl.load_artifact(path)["res_kl_divs"].shape
    torch.Size([4])

    Tensors are on the CPU and without a gradient, and floating-point ones are float32: the papers' scripts store
    bfloat16, parameters and GPU tensors. MissingArtifact if there is no file, ArtifactError if it cannot be read as
    plain tensors or lacks the keys and shapes of its probe, OSError if it cannot be opened; the file is not touched. A
    file without `meta` (the papers' own) is read with a warning and `meta` = {}.
    Cost: no forward pass.
    """
    result = read_artifact(path)
    if not result["meta"]:
        warnings.warn(
            f"{path} has no meta (not written by depth_lib): its model, prompts and settings are unknown", stacklevel=2
        )
    return result


def read_artifact(path: str | Path) -> dict:
    """`load_artifact` without its warning, for callers that warn once for many files."""
    path = Path(path)
    name = parse_name(path)
    schema = SCHEMAS[name.probe]
    try:
        result = unpickled(path)
        problem = mismatch(name.probe, result)
    except FileNotFoundError:
        folder = path.absolute().parent
        raise MissingArtifact(
            f"no artifact for {folder.parent.name} × {folder.name} ({path.name}); run: {_remedy(path)}"
        ) from None
    except ArtifactError as damage:
        problem = str(damage)
    if problem:
        raise ArtifactError(f"{path} is no {name.probe} artifact: {problem}; run: {_remedy(path)}")
    for key, value in result.items():
        if isinstance(value, torch.Tensor):
            result[key] = value.detach().float() if value.is_floating_point() else value.detach()
    result.setdefault("meta", {})
    if schema.tokens_file and "tokens" not in result:
        n_tokens = result[next(iter(schema.required))].shape[-1]
        result["tokens"] = _papers_tokens(path.with_name(name.files[1]), n_tokens)
    return Result(name.probe, result) if name.probe in ARTIFACTS else result


def _remedy(path: Path) -> str:
    """The command that computes the result at this path."""
    name = parse_name(path)
    folder = path if len(path.parts) > 3 else path.absolute()
    if name.probe not in ARTIFACTS:
        return command("maps", "SOURCE_MODEL", "TARGET_MODEL")
    dataset, model = folder.parts[-3:-1]
    further = name.probe if name.probe in FURTHER_PROBES else ""
    pair = {"PAIR": name.pair} if name.pair in ("", *PAIRS, *DRAWN_PAIRS) else {"QUESTION": "…", "ANSWER": "…"}
    return command("sweep", MODELS=model, DATASETS=dataset, OUT=str(folder.parents[2]), **pair, PROBES=further)


@cache
def own_commit() -> str | None:
    """The commit of this clone, with "-dirty" if its files differ; None if it is not known."""
    if INSTALLED:
        return None
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:  # there is no git
        return None


def escape_token(token: str) -> str:
    r"""A token as one visible line, reversibly: a space is ␣, a line feed \n, a backslash \\, others \uXXXX."""
    return _INVISIBLE.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), token)


def _keep_foreign_files(path: Path, replaced: list[Path]) -> None:
    """Move aside the files that would be replaced, unless depth_lib wrote them."""
    try:
        read_meta(path)
    except MissingArtifact:
        return
    except ArtifactError:
        for old in filter(Path.exists, replaced):
            kept = move_aside(old, "foreign").name
            warnings.warn(f"{old} is not a readable result of depth_lib; it is kept as {kept}", stacklevel=3)


def _papers_tokens(path: Path, n_tokens: int) -> list[str] | None:
    """The tokens in the text file beside a result of the papers, which are not escaped; None if they do not fit."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return None
    return lines if len(lines) == n_tokens else None


def _storable(value: object) -> Any:
    """A tensor on the CPU with its own storage (a view would be stored with its whole base), or a JSON value."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return torch.as_tensor(value).detach().cpu().clone(memory_format=torch.contiguous_format)
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    """For JSON: a NumPy number as a number; a path, device or dtype as text."""
    return value.item() if isinstance(value, np.generic) else str(value).removeprefix("torch.")


def _not_finite(result: Mapping) -> str | None:
    """The first value that is not finite. NaN is allowed for attention and MLP of models that are read block by block,
    and in results of removals, where there are not so many blocks."""
    for key, value in result.items():
        if not isinstance(value, torch.Tensor) or (("att" in key or "mlp" in key) and value.isnan().all()):
            continue
        wrong = value.isinf() if "removal_sizes" in result else ~value.isfinite()
        if wrong.any():
            return f"{key} is not finite at index {wrong.nonzero()[0].tolist()}"
    return None
