"""A study as two Parquet files with a dataset card, for others to read: every number once, exactly, and its origin.

`results.parquet` has a row per value, in the order of each tensor's own axes; `runs.parquet` a row per result: its
file's name, the type and shape of each key, its tokens, and its `meta` as JSON. On the Hub, the card is the dataset's
page.
"""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ..files import write_together
from ..hub import without_retries
from .provenance import made_from
from .schemas import ARTIFACTS, ArtifactError, mismatch, without_pair

if TYPE_CHECKING:
    from .study import Study

RESULTS, RUNS, CARD = "results.parquet", "runs.parquet", "README.md"
LICENCE = "cc-by-4.0"
_NAMES = ("model", "dataset", "probe")
_AXES = ("prompt", "layer", "column")
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in (*_NAMES, "key")]
    + [(axis, pa.int32()) for axis in _AXES]
    + [("value", pa.float64())]
)
_CARD = """---
{{ card_data }}
---

# {{ title }}

After which of its layers does a language model only refine its answer? Measured with depth_lib: the probes of Csordás
et al. (2025) and the effective depth of Hu et al. (2025). By cosine, KL divergence and overlap, `17(0.64)` is layer 17,
counted from 0, of 28; a dash is a missing value:

```
{{ depths }}
```

## Made from

{{ origin }}

## Files

`results.parquet` has a row per number:

- `model`, `dataset`, `probe`: as in `runs.parquet`
- `key`: which curve or map of the probe
- `prompt`: number of the prompt, or of the example; empty for what is pooled over them
- `layer`: counted from 0; row 0 of an erasure is the embeddings
- `column`: affected layer of an effect, token of an erasure or attribution; empty for curves
- `value`: the number, exactly as it was stored

`runs.parquet` has a row per result:

- `model`, `dataset` (of the prompts), `probe` (what was measured)
- `file`: name of the result's file in a study's folder
- `arrays`: JSON with type and shape of each key, in the order of the rows of `results.parquet`
- `tokens`: JSON with the tokens of the question, if the result has a token axis
- `meta`: JSON with all that it was made from: settings, versions, where, when

## Read it

```python
import pandas as pd

results = pd.read_parquet("results.parquet")
curves = results.query("key == 'res_kl_divs' and dataset == '{{ dataset }}'")
curves.pivot(index="layer", columns="model", values="value").plot()
```

To have these results beside your own in one table: `make table BESIDE={{ name }}`, or `depth-lib table --beside
{{ name }}`.

## Sources and licence

Csordás, Manning, Potts (2025), *Do Language Models Use Their Depth Efficiently?*, arXiv 2505.13898; Hu, Zhou, Zhang
(2025), *What Affects the Effective Depth of Large Language Models?*, arXiv 2512.14064. The numbers are under
{{ licence }}; models and datasets have their own licences. Of prompts, only the tokens of the question are
here.
"""


@dataclass(frozen=True)
class SharedResult:
    """One result in a shared folder: a row of its runs.parquet. `key` is (dataset, model, probe)."""

    folder: Path
    key: tuple[str, str, str]
    name: str
    arrays: Mapping[str, tuple[str, list[int]]]
    tokens: list[str] | None
    meta: Mapping

    def read(self) -> dict:
        """What `load_artifact` reads from the file that was shared; ArtifactError if it is damaged."""
        dataset, model, probe = self.key
        own = [("dataset", "=", dataset), ("model", "=", model), ("probe", "=", probe)]
        result = {"tokens": self.tokens} if self.tokens is not None else {}
        try:
            table = pq.read_table(
                self.folder / RESULTS, columns=["value"], filters=own, page_checksum_verification=True
            )
            values, start = torch.tensor(table["value"].to_numpy()), 0
            for key, (dtype, shape) in self.arrays.items():
                end = start + int(np.prod(shape))
                result[key] = values[start:end].to(getattr(torch, dtype)).reshape(shape)
                start = end
            problem = mismatch(without_pair(probe), result)
        except (OSError, AttributeError, RuntimeError) as error:
            problem = str(error)
        if problem or start != len(values):
            problem = problem or f"{start} of {len(values)} values are described"
            raise ArtifactError(
                f"{self.folder / RESULTS} holds no {probe} result of {dataset} × {model}: {problem}; get the folder "
                "again from who shared it"
            )
        return result | {"meta": dict(self.meta)}


def share(
    study: "Study", folder: str | Path, licence: str = LICENCE, repository: str = "", depths: Iterable[str] = ()
) -> list[Path]:
    """Write a study to a folder as `results.parquet`, `runs.parquet` and README.md; the paths written.

    Equal results give equal files. `Study(folder)` reads it back, and so do `make table OUT=folder` and
    `BESIDE=folder`. licence: an identifier of the Hub's, for the numbers; repository: owner/name, where it will be;
    depths: lines of effective depths for the card. ArtifactError for a folder that has results of its own, or if the
    files cannot be written.
    """
    folder = Path(folder)
    if any(folder.glob("*/*/*.pt")):
        raise ArtifactError(f"{folder} holds results of its own; give an empty folder to share into, such as TO=shared")
    contents = _as_parquet(study)
    contents[CARD] = _card(study, licence, repository or folder.resolve().name, depths).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together({folder / name: content for name, content in contents.items()})
    except OSError as error:
        raise ArtifactError(
            f"{folder} was not written: {error.strerror}; free the disk or choose another TO"
        ) from error
    return [folder / name for name in contents]


def push(folder: str | Path, repository: str) -> str:
    """Upload a shared folder as a dataset of the Hub, created if necessary; its address. ArtifactError if refused."""
    from huggingface_hub import HfApi  # takes a moment, and folders do not need it

    hub = HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", exist_ok=True)
        hub.upload_folder(
            repo_id=repository, repo_type="dataset", folder_path=str(folder), allow_patterns=[RESULTS, RUNS, CARD]
        )
    except Exception as error:  # noqa: BLE001 (whatever the Hub, the network or the client raise)
        raise ArtifactError(
            f"{folder} was not pushed to {repository} ({_first_line(error)}); log in with hf auth login, push again"
        ) from error
    return f"https://huggingface.co/datasets/{repository}"


def shared_results(folder: Path) -> dict[tuple[str, str, str], SharedResult]:
    """(dataset, model, probe) -> result, of a shared folder; probes that this version does not know are left out."""
    results = {}
    try:
        for row in pq.read_table(folder / RUNS, page_checksum_verification=True).to_pylist():
            key = row["dataset"], row["model"], row["probe"]
            if any(name != Path(name).name for name in key):
                raise ValueError(f"{' × '.join(key)} is no name")
            if without_pair(row["probe"]) in ARTIFACTS:
                arrays, tokens, meta = (json.loads(row[column]) for column in ("arrays", "tokens", "meta"))
                results[key] = SharedResult(folder, key, row["file"], arrays, tokens, meta)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{folder / RUNS} is no list of results ({error}); get it again from who shared it"
        ) from error
    return results


def shared_folder(name: str | Path) -> Path:
    """The folder of this name, or the Hub's dataset of this name, downloaded; ArtifactError if there is neither."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download  # takes a moment, and folders do not need it

    try:
        with without_retries(str(name)):
            return Path(snapshot_download(str(name), repo_type="dataset", allow_patterns=[RESULTS, RUNS]))
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of names, logins and networks)
        raise ArtifactError(
            f"{name} is neither a folder nor a dataset of the Hub ({_first_line(error)}); give a shared folder, or "
            "owner/name of a dataset"
        ) from error


def _as_parquet(study: "Study") -> dict[str, bytes]:
    """The two files' bytes, by name."""
    values, described, runs = io.BytesIO(), io.BytesIO(), []
    options = {"compression": "zstd", "write_page_checksum": True}
    with pq.ParquetWriter(values, _SCHEMA, **options) as writer:
        for (dataset, model, probe), file in study.files.items():
            if result := study.get((dataset, model, probe)):
                own = {"model": model, "dataset": dataset, "probe": probe}
                tensors = {key: value for key, value in result.items() if isinstance(value, torch.Tensor)}
                frame = pd.concat([_rows(probe, key, tensor) for key, tensor in tensors.items()]).assign(**own)
                writer.write_table(pa.Table.from_pandas(frame, _SCHEMA, preserve_index=False), len(frame))
                arrays = {key: (str(x.dtype).removeprefix("torch."), list(x.shape)) for key, x in tensors.items()}
                texts = {"arrays": arrays, "tokens": result.get("tokens"), "meta": result["meta"]}
                runs.append(own | {"file": file.name} | {name: json.dumps(text) for name, text in texts.items()})
    pq.write_table(pa.Table.from_pylist(runs), described, **options)
    return {RESULTS: values.getvalue(), RUNS: described.getvalue()}


def _rows(probe: str, key: str, tensor: torch.Tensor) -> pd.DataFrame:
    """A row per value. The first axis is `prompt` if the key has a row per prompt, example or level, else `layer`."""
    schema = ARTIFACTS[without_pair(probe)]
    shape = (schema.required | schema.optional).get(key, "P" if key.endswith(("_sums", "_by_prompt")) else "L")
    axes = _AXES if shape[0] in "PFEK" else _AXES[1:]
    indices = np.indices(tensor.shape).reshape(tensor.dim(), tensor.numel())
    columns = dict.fromkeys(_AXES) | dict(zip(axes, indices, strict=False))
    return pd.DataFrame(columns | {"value": tensor.double().flatten().numpy()}).assign(key=key)


def _card(study: "Study", licence: str, name: str, depths: Iterable[str]) -> str:
    from huggingface_hub import DatasetCard, DatasetCardData

    title = f"Effective depth of {len(study.models)} models"
    data = DatasetCardData(
        license=licence,
        pretty_name=title,
        tags=["effective-depth", "interpretability", "depth_lib"],
        configs=[
            {"config_name": "results", "data_files": RESULTS, "default": True},
            {"config_name": "runs", "data_files": RUNS},
        ],
    )
    origins = [f"- {model}, {dataset}: {made_from(result['meta'])}" for (dataset, model, _), result in study.items()]
    return str(
        DatasetCard.from_template(
            data,
            template_str=_CARD,
            title=title,
            depths="\n".join(depths),
            origin="\n".join(dict.fromkeys(origins)),
            dataset=study.datasets[0],
            name=name,
            licence=licence,
        )
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
