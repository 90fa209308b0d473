"""A study as two Parquet files, for others to read: every number once, exactly, and what it was made from.

`results.parquet` has a row a value, in the order of each tensor's own axes; `runs.parquet` a row a result: its file's
name, the type and shape of each key, its tokens, and its `meta` as JSON. A row of runs is a row group of results.
`SHA256SUMS` beside them is what `sha256sum --check` reads; nothing is read whose hash is another.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ..hub import without_retries
from .schemas import ARTIFACTS, ArtifactError, without_pair
from .shapes import mismatch

RESULTS, RUNS, SUMS = "results.parquet", "runs.parquet", "SHA256SUMS"
_NAMES, _AXES = ("model", "dataset", "probe", "key"), ("prompt", "layer", "column")
COLUMNS = {
    "model": "Name of the model, as in runs",
    "dataset": "Dataset of the prompts, as in runs",
    "probe": "What was measured, as in runs",
    "key": "Which curve or map of the probe",
    "prompt": "Number of the prompt, or of the example; empty for what is pooled over them",
    "layer": "Layer, counted from 0; row 0 of an erasure is the embeddings",
    "column": "Affected layer of an effect, token of an erasure or attribution; empty for curves",
    "value": "The number, exactly as it was stored",
}
RUN_COLUMNS = {
    "model": "Name of the model",
    "dataset": "Dataset of the prompts",
    "probe": "What was measured",
    "file": "Name of the result's file in a study's folder",
    "model_id": "Repository of the model on the Hub",
    "revision": "Commit, revision or hash of its weights",
    "dtype": "Type that it was computed in",
    "prompts_hash": "First 16 digits of the SHA-256 of the prompts",
    "arrays": "JSON: type and shape of each key, in the order of the rows of results",
    "tokens": "JSON: tokens of the question, where the result has a token axis",
    "meta": "JSON: all that it was made from: settings, versions, where, when",
}
_RESULTS_SCHEMA = pa.schema(
    [(name, pa.string()) for name in _NAMES] + [(axis, pa.int32()) for axis in _AXES] + [("value", pa.float64())]
)
_RUNS_SCHEMA = pa.schema([(name, pa.string()) for name in RUN_COLUMNS])


@dataclass(frozen=True)
class SharedResult:
    """One result in a shared folder; it is read when it is asked for."""

    folder: Path
    place: int
    probe: str
    name: str
    arrays: Mapping[str, tuple[str, list[int]]]
    tokens: list[str] | None
    meta: Mapping

    def read(self) -> dict:
        """What `load_artifact` reads of the file that was shared. ArtifactError for keys or shapes of another probe."""
        file, result, start = self.folder / RESULTS, {}, 0
        try:
            values = pq.ParquetFile(file).read_row_group(self.place, columns=["value"])["value"].to_numpy()
            for key, (dtype, shape) in self.arrays.items():
                end = start + int(np.prod(shape))
                result[key] = torch.from_numpy(values[start:end].copy()).to(getattr(torch, dtype)).reshape(shape)
                start = end
        except (pa.ArrowException, AttributeError, RuntimeError, TypeError, ValueError, KeyError) as error:
            raise ArtifactError(f"{file} does not fit {RUNS}: {error}; ask who shared it") from error
        if self.tokens is not None:
            result["tokens"] = self.tokens
        problem = mismatch(without_pair(self.probe), result)
        if problem or start != len(values):
            problem = problem or f"{start} of {len(values)} values are described"
            raise ArtifactError(f"{file} holds no {self.probe} result: {problem}; ask who shared it")
        return result | {"meta": dict(self.meta)}


def as_parquet(results: Mapping[tuple[str, str, str], Mapping], files: Mapping[tuple, str]) -> dict[str, bytes]:
    """The two files' bytes, by name. results: (dataset, model, probe) -> result; files: the names of theirs."""
    values, runs = io.BytesIO(), []
    how = {"compression": "zstd", "use_dictionary": [*_NAMES, *_AXES], "use_byte_stream_split": ["value"]}
    with pq.ParquetWriter(values, _RESULTS_SCHEMA, **how) as writer:
        for place, result in results.items():
            arrays = {key: tensor for key, tensor in result.items() if isinstance(tensor, torch.Tensor)}
            table = pa.concat_tables(_rows(place, key, tensor) for key, tensor in arrays.items())
            writer.write_table(table, row_group_size=table.num_rows)
            runs.append(_run(place, files[place], arrays, result))
    described = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(runs, _RUNS_SCHEMA), described, compression="zstd")
    return {RESULTS: values.getvalue(), RUNS: described.getvalue()}


def shared_results(folder: Path) -> dict[tuple[str, str, str], SharedResult]:
    """(dataset, model, probe) -> result, of a shared folder; probes that this version does not know are left out.

    ArtifactError for a file whose hash is not the one in SHA256SUMS, or that is no table of results.
    """
    words = (line.split(maxsplit=1) for line in _bytes(folder / SUMS).decode(errors="replace").splitlines())
    said = {pair[1]: pair[0] for pair in words if len(pair) == 2}
    # the card and its like may be left behind, but not be others
    for name in dict.fromkeys((RESULTS, RUNS, *(path.name for path in folder.iterdir() if path.name in said))):
        found = sha256(_bytes(folder / name))
        if found != said.get(name):
            raise ArtifactError(
                f"{folder / name} is not the file that was shared: its sha256 is {found[:12]}…, {SUMS} has "
                f"{str(said.get(name))[:12]}…; get it again from who shared it"
            )
    try:
        found = {}
        for place, row in enumerate(pq.read_table(folder / RUNS).to_pylist()):
            key = row["dataset"], row["model"], row["probe"]
            if not all(name == Path(name).name != ".." for name in key):
                raise ValueError(f"{' × '.join(key)} is no name")
            read = (json.loads(row[name]) for name in ("arrays", "tokens", "meta"))
            if without_pair(row["probe"]) in ARTIFACTS:
                found[key] = SharedResult(folder, place, row["probe"], row["file"], *read)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder / RUNS} is no list of results: {error}; ask who shared it") from error
    return found


def shared_folder(name: str | Path) -> Path:
    """The folder of this name, or the dataset of this name on the Hub, fetched; ArtifactError if there is neither."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download  # takes a moment, and folders do not need it

    try:
        with without_retries(str(name)):
            return Path(snapshot_download(str(name), repo_type="dataset", allow_patterns=[RESULTS, RUNS, SUMS]))
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of names, logins and networks)
        why = str(error).strip().splitlines()[0]
        raise ArtifactError(
            f"{name} is neither a folder here nor a dataset that the Hub gives ({type(error).__name__}: {why}); "
            "give a shared folder, or owner/name of a dataset"
        ) from error


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _rows(place: tuple[str, str, str], key: str, tensor: torch.Tensor) -> pa.Table:
    dataset, model, probe = place
    axes = _axes(probe, key, tensor.dim())
    where = dict(zip(axes, np.indices(tensor.shape).reshape(tensor.dim(), -1), strict=True))
    columns = {
        name: np.full(tensor.numel(), word) for name, word in zip(_NAMES, (model, dataset, probe, key), strict=True)
    }
    columns |= {axis: where.get(axis, pa.nulls(tensor.numel())) for axis in _AXES}
    return pa.table(columns | {"value": tensor.double().flatten().numpy()}, _RESULTS_SCHEMA)


def _axes(probe: str, key: str, n: int) -> tuple[str, ...]:
    """The names of a tensor's axes: `prompt` first where its shape begins with prompts, examples or levels."""
    schema = ARTIFACTS[without_pair(probe)]
    shape = (schema.required | schema.optional).get(key, "")
    by_prompt = shape[:1] in ("P", "F", "E", "K") if shape else key.endswith(("_sums", "_by_prompt"))
    return _AXES[0 if by_prompt else 1 :][:n]


def _run(place: tuple[str, str, str], file: str, arrays: Mapping[str, torch.Tensor], result: Mapping) -> dict:
    dataset, model, probe = place
    meta = result.get("meta") or {}
    shapes = {key: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for key, tensor in arrays.items()}
    return {
        "model": model,
        "dataset": dataset,
        "probe": probe,
        "file": file,
        "model_id": meta.get("model_id"),
        "revision": meta.get("commit") or meta.get("revision") or meta.get("weights"),
        "dtype": meta.get("dtype"),
        "prompts_hash": meta.get("prompts_hash"),
        "arrays": json.dumps(shapes),
        "tokens": json.dumps(result.get("tokens")),
        "meta": json.dumps(meta),
    }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}; get the whole folder from who shared it"
        ) from error
