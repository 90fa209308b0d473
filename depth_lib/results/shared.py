"""A study as two Parquet files with a dataset card, for others to read: every number once, exactly, and its origin.

`results.parquet` has a row per value, in the order of each tensor's own axes; `runs.parquet` a row per result: its
file's name, the type and shape of each key, its tokens, and its `meta` as JSON. A row of runs is a row group of
results. `SHA256SUMS` beside them is what `sha256sum --check` reads; a table whose hash is another is not read. On the
Hub, the card is the dataset's page, and the Hub describes Parquet to programs (Croissant) itself.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ..files import write_together
from ..hub import without_retries
from .provenance import made_from
from .schemas import ARTIFACTS, ArtifactError, mismatch, without_pair

if TYPE_CHECKING:
    from .study import Study

RESULTS, RUNS, SUMS, CARD = "results.parquet", "runs.parquet", "SHA256SUMS", "README.md"
LICENCE = "cc-by-4.0"
_AXES = ("prompt", "layer", "column")
_COLUMNS = {
    "model": "Name of the model, as in runs",
    "dataset": "Dataset of the prompts, as in runs",
    "probe": "What was measured, as in runs",
    "key": "Which curve or map of the probe",
    "prompt": "Number of the prompt, or of the example; empty for what is pooled over them",
    "layer": "Layer, counted from 0; row 0 of an erasure is the embeddings",
    "column": "Affected layer of an effect, token of an erasure or attribution; empty for curves",
    "value": "The number, exactly as it was stored",
}
_RUN_COLUMNS = {
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
_TYPES = dict.fromkeys(_AXES, pa.int32()) | {"value": pa.float64()}
_RESULTS_SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in _COLUMNS])
_RUNS_SCHEMA = pa.schema([(name, pa.string()) for name in _RUN_COLUMNS])
_CARD = """
# {title}

After which of its layers does a language model only refine its answer? Measured with depth_lib: the probes of Csordás
et al. (2025) and the effective depth of Hu et al. (2025). By cosine, KL divergence and overlap, `17(0.64)` is layer 17,
counted from 0, of 28; a dash is a missing value:

```
{depths}
```

## Made from

{origin}

## Files

`results.parquet` has a row per number:

{columns}

`runs.parquet` has a row per result:

{run_columns}

`SHA256SUMS` has the hash of every file (`sha256sum --check SHA256SUMS`).

## Read it

```python
import pandas as pd

results = pd.read_parquet("results.parquet")
curves = results.query("key == 'res_kl_divs' and dataset == '{dataset}'")
curves.pivot(index="layer", columns="model", values="value").plot()
```

Beside results of your own, in one table: `make table BESIDE={name}`, or `depth-lib table --beside {name}`. From this
folder the same table comes out, byte for byte, as from what it was made of.

## Sources and licence

Csordás, Manning, Potts (2025), *Do Language Models Use Their Depth Efficiently?*, arXiv 2505.13898; Hu, Zhou, Zhang
(2025), *What Affects the Effective Depth of Large Language Models?*, arXiv 2512.14064. The numbers are under
{licence}; models and datasets have their own licences, and no prompt is in here but the tokens of the question.
"""


@dataclass(frozen=True)
class SharedResult:
    """One result in a shared folder, read when it is asked for. place: of its row group; name: of its file."""

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


def share(
    study: "Study", folder: str | Path, licence: str = LICENCE, repository: str = "", depths: Iterable[str] = ()
) -> list[Path]:
    """Write a study to a folder as `results.parquet`, `runs.parquet`, README.md and SHA256SUMS; the paths written.

    Equal results give equal files. `Study(folder)` reads it back, and so do `make table OUT=folder` and
    `BESIDE=folder`. licence: an identifier of the Hub's, for the numbers; repository: owner/name, where it will be;
    depths: lines of effective depths for the card. ArtifactError for a folder that holds results of its own, or if the
    disk refuses.
    """
    folder = Path(folder)
    if any(folder.glob("*/*/*.pt")):
        raise ArtifactError(f"{folder} holds results of its own; give an empty folder to share into, such as TO=shared")
    contents = _as_parquet(study)
    contents[CARD] = _card(study, licence, repository or folder.resolve().name, depths).encode()
    contents[SUMS] = "".join(f"{_sha256(content)}  {name}\n" for name, content in contents.items()).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together({folder / name: content for name, content in contents.items()})
    except OSError as error:
        raise ArtifactError(
            f"{folder} was not written: {error.strerror}; free the disk or choose another TO"
        ) from error
    return [folder / name for name in contents]


def logged_in() -> str:
    """The user's name on the Hub; ArtifactError, with the next step, without a login that the Hub knows."""
    from huggingface_hub import HfApi  # takes a moment, and folders do not need it

    try:
        return HfApi().whoami()["name"]
    except Exception as error:  # noqa: BLE001 (no token, a wrong one, no network)
        raise ArtifactError(f"no login on the Hub ({_in_short(error)}); run: hf auth login") from error


def push(folder: str | Path, repository: str) -> str:
    """Upload a shared folder as a dataset of the Hub, made if it is not there; its address. Errors as `logged_in`."""
    from huggingface_hub import HfApi

    logged_in()
    hub, files = HfApi(), [RESULTS, RUNS, CARD, SUMS]
    try:
        hub.create_repo(repository, repo_type="dataset", exist_ok=True)
        hub.upload_folder(repo_id=repository, repo_type="dataset", folder_path=str(folder), allow_patterns=files)
    except Exception as error:  # noqa: BLE001 (whatever the Hub, the network or the client raise)
        raise ArtifactError(f"{folder} was not pushed to {repository} ({_in_short(error)}); push again") from error
    return f"https://huggingface.co/datasets/{repository}"


def shared_results(folder: Path) -> dict[tuple[str, str, str], SharedResult]:
    """(dataset, model, probe) -> result, of a shared folder; probes that this version does not know are left out.

    ArtifactError for a table whose hash is not the one in SHA256SUMS, or that is no table of results.
    """
    lines = (line.split(maxsplit=1) for line in _bytes(folder / SUMS).decode(errors="replace").splitlines())
    sums = {words[1]: words[0] for words in lines if len(words) == 2}
    for name in (RESULTS, RUNS):
        if _sha256(_bytes(folder / name)) != sums.get(name):
            raise ArtifactError(f"{folder / name} is not the file of {SUMS} (sha256); get it again from who shared it")
    results = {}
    try:
        for place, row in enumerate(pq.read_table(folder / RUNS).to_pylist()):
            key = row["dataset"], row["model"], row["probe"]
            if not all(name == Path(name).name != ".." for name in key):
                raise ValueError(f"{' × '.join(key)} is no name")
            arrays, tokens, meta = (json.loads(row[column]) for column in ("arrays", "tokens", "meta"))
            if without_pair(row["probe"]) in ARTIFACTS:
                results[key] = SharedResult(folder, place, row["probe"], row["file"], arrays, tokens, meta)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder / RUNS} is no list of results: {error}; ask who shared it") from error
    return results


def shared_folder(name: str | Path) -> Path:
    """The folder of this name, or the dataset of this name on the Hub, fetched; ArtifactError if there is neither."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download  # takes a moment, and folders do not need it

    try:
        with without_retries(str(name)):
            return Path(snapshot_download(str(name), repo_type="dataset", allow_patterns=[RESULTS, RUNS, SUMS]))
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of names, logins and networks)
        raise ArtifactError(
            f"{name} is neither a folder here nor a dataset that the Hub gives ({_in_short(error)}); "
            "give a shared folder, or owner/name of a dataset"
        ) from error


def _as_parquet(study: "Study") -> dict[str, bytes]:
    """The two files' bytes, by name."""
    values, runs, files = io.BytesIO(), [], study.names()
    text = [name for name in _COLUMNS if name != "value"]
    options = {"compression": "zstd", "use_dictionary": text, "use_byte_stream_split": ["value"]}
    with pq.ParquetWriter(values, _RESULTS_SCHEMA, **options) as writer:
        for key in study:
            if result := study.get(key):
                arrays = {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
                table = pa.concat_tables(_rows(key, name, tensor) for name, tensor in arrays.items())
                writer.write_table(table, row_group_size=table.num_rows)
                runs.append(_run(key, files[key], arrays, result))
    described = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(runs, _RUNS_SCHEMA), described, compression="zstd")
    return {RESULTS: values.getvalue(), RUNS: described.getvalue()}


def _rows(place: tuple[str, str, str], key: str, tensor: torch.Tensor) -> pa.Table:
    """A row per value; its axes are named from `prompt` on where the key has a row per prompt, example or level."""
    dataset, model, probe = place
    schema = ARTIFACTS[without_pair(probe)]
    shape = (schema.required | schema.optional).get(key, "")
    by_prompt = shape[:1] in ("P", "F", "E", "K") if shape else key.endswith(("_sums", "_by_prompt"))
    axes = _AXES[0 if by_prompt else 1 :][: tensor.dim()]
    size = tensor.numel()
    columns = {"model": model, "dataset": dataset, "probe": probe, "key": key}
    columns = {name: np.full(size, word) for name, word in columns.items()} | {axis: pa.nulls(size) for axis in _AXES}
    columns |= dict(zip(axes, np.indices(tensor.shape).reshape(tensor.dim(), -1), strict=True))
    return pa.table(columns | {"value": tensor.double().flatten().numpy()}, _RESULTS_SCHEMA)


def _run(place: tuple[str, str, str], file: str, arrays: Mapping[str, torch.Tensor], result: Mapping) -> dict:
    dataset, model, probe = place
    meta = result["meta"]
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


def _card(study: "Study", licence: str, name: str, depths: Iterable[str]) -> str:
    from huggingface_hub import DatasetCard, DatasetCardData

    title = f"Effective depth of {len(study.models)} model{'s' * (len(study.models) != 1)}"
    head = DatasetCardData(
        license=licence,
        pretty_name=title,
        tags=["effective-depth", "interpretability", "depth_lib"],
        configs=[
            {"config_name": "results", "data_files": RESULTS, "default": True},
            {"config_name": "runs", "data_files": RUNS},
        ],
    )
    origins = []
    for (dataset, model, _), result in study.items():
        origin = f"- {model}, {dataset}: {made_from(result['meta'])}"
        if origin not in origins:
            origins.append(origin)
    text = _CARD.format(
        title=title,
        depths="\n".join(depths),
        origin="\n".join(origins),
        columns=_listed(_COLUMNS),
        run_columns=_listed(_RUN_COLUMNS),
        dataset=study.datasets[0],
        name=name,
        licence=licence,
    )
    return str(DatasetCard(f"---\n{head.to_yaml()}\n---\n{text}"))


def _listed(columns: Mapping[str, str]) -> str:
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in columns.items())


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}; get the whole folder from who shared it"
        ) from error
