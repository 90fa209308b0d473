"""A study as two Parquet files with a dataset card, for others to read: every number once, exactly, and its origin.

`results.parquet` has a row per value, in the order of each tensor's own axes; `runs.parquet` a row per result: the
type and shape of each key, its tokens, and its `meta` as JSON. On the Hub, the card is the dataset's page.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ..files import write_together
from .provenance import made_from
from .schemas import ARTIFACTS, ArtifactError, mismatch, without_pair

Results = Mapping[tuple[str, str, str], dict]  # (dataset, model, probe) -> result

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
license: {licence}
pretty_name: Effective depth of {n_models} models
tags:
- effective-depth
- interpretability
- depth_lib
configs:
- config_name: results
  data_files: results.parquet
  default: true
- config_name: runs
  data_files: runs.parquet
---

# Effective depth of {n_models} models

After which of its layers does a language model only refine its answer? Measured with depth_lib: the probes of Csordás
et al. (2025) and the effective depth of Hu et al. (2025). By cosine, KL divergence and overlap, `17(0.64)` is layer 17,
counted from 0, of 28; a dash is a missing value:

```
{depths}
```

{notes}

## Made from

{origin}

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
- `arrays`: JSON with type and shape of each key, in the order of the rows of `results.parquet`
- `tokens`: JSON with the tokens of the question, if the result has a token axis
- `meta`: JSON with all that it was made from: settings, versions, where, when

## Read it

```python
import pandas as pd

results = pd.read_parquet("results.parquet")
curves = results.query("key == 'res_kl_divs' and dataset == '{dataset}'")
curves.pivot(index="layer", columns="model", values="value").plot()
```

Table, figures and report of these results: `make table OUT=folder` or `depth-lib table --out folder`, with the folder
that holds these files.

## Sources and licence

Csordás, Manning, Potts (2025), *Do Language Models Use Their Depth Efficiently?*, arXiv 2505.13898; Hu, Zhou, Zhang
(2025), *What Affects the Effective Depth of Large Language Models?*, arXiv 2512.14064. The numbers are under
{licence}; models and datasets have their own licences. Of prompts, only the tokens of the question are
here.
"""


def share(
    study: Results, folder: str | Path, licence: str = LICENCE, depths: Iterable[str] = (), notes: Iterable[str] = ()
) -> list[Path]:
    """Write a `Study` to a folder as `results.parquet`, `runs.parquet` and README.md; the paths written.

    Equal results give equal files. `Study(folder)` reads it back, and so does `make table OUT=folder`. licence: an
    identifier of the Hub's, for the numbers; depths: lines of effective depths for the card; notes: what has to be
    known of them. ArtifactError for a folder that has results of its own, or if the files cannot be written.
    """
    folder = Path(folder)
    if any(folder.glob("*/*/*.pt")):
        raise ArtifactError(f"{folder} holds results of its own; give an empty folder to share into, such as TO=shared")
    contents = _as_parquet(study)
    contents[CARD] = _card(study, licence, depths, notes).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together({folder / name: content for name, content in contents.items()})
    except OSError as error:
        raise ArtifactError(
            f"{folder} was not written: {error.strerror}; free the disk or choose another TO"
        ) from error
    return [folder / name for name in contents]


def read_shared(folder: Path) -> Results:
    """(dataset, model, probe) -> what `load_artifact` reads from the file that was shared.

    Probes that this version does not know are left out. ArtifactError if the folder is damaged.
    """
    results = {}
    try:
        runs = pq.read_table(folder / RUNS, page_checksum_verification=True).to_pylist()
        values = pq.read_table(folder / RESULTS, read_dictionary=[*_NAMES, "key"], page_checksum_verification=True)
        start = 0  # both files have the same order
        for run in runs:
            key, probe = (run["dataset"], run["model"], run["probe"]), without_pair(run["probe"])
            arrays = json.loads(run["arrays"])
            sizes = [math.prod(shape) for _, shape in arrays.values()]
            of_run, start = values.slice(start, sum(sizes)), start + sum(sizes)
            if any(of_run[name].unique().to_pylist() != [run[name]] for name in _NAMES):
                raise ValueError(f"the rows of {' × '.join(key)} are not where {RUNS} says")
            pieces = torch.tensor(of_run["value"].to_numpy()).split(sizes)
            result = {
                name: piece.to(getattr(torch, dtype)).reshape(shape)
                for (name, (dtype, shape)), piece in zip(arrays.items(), pieces, strict=True)
            }
            if tokens := json.loads(run["tokens"]):
                result["tokens"] = tokens
            result["meta"] = json.loads(run["meta"])
            if probe in ARTIFACTS:
                results[key] = result
                if problem := mismatch(probe, result):
                    raise ValueError(f"{' × '.join(key)}: {problem}")
        if start != len(values):
            raise ValueError(f"{RESULTS} has {len(values)} rows, of which {RUNS} describes {start}")
    except (OSError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder} holds no shared results ({error}); get it again from who shared it") from error
    return results


def _as_parquet(study: Results) -> dict[str, bytes]:
    """The two files' bytes, by name."""
    values, described, runs = io.BytesIO(), io.BytesIO(), []
    options = {"compression": "zstd", "write_page_checksum": True}
    with pq.ParquetWriter(values, _SCHEMA, **options) as writer:
        for (dataset, model, probe), result in study.items():
            run = {"model": model, "dataset": dataset, "probe": probe}
            tensors = {key: value for key, value in result.items() if isinstance(value, torch.Tensor)}
            frame = pd.concat([rows(probe, key, tensor) for key, tensor in tensors.items()]).assign(**run)
            writer.write_table(pa.Table.from_pandas(frame, _SCHEMA, preserve_index=False), len(frame))
            arrays = {key: (str(x.dtype).removeprefix("torch."), list(x.shape)) for key, x in tensors.items()}
            texts = {"arrays": arrays, "tokens": result.get("tokens"), "meta": result["meta"]}
            runs.append(run | {name: json.dumps(text) for name, text in texts.items()})
    pq.write_table(pa.Table.from_pylist(runs), described, **options)
    return {RESULTS: values.getvalue(), RUNS: described.getvalue()}


def rows(probe: str, key: str, tensor: torch.Tensor) -> pd.DataFrame:
    """A row per value, with columns prompt, layer, column (NA where the key has no such axis), value and key.

    The first axis is `prompt` if the key has a row per prompt, example or level, else `layer`.
    """
    shape = ARTIFACTS[without_pair(probe)].shapes.get(key, "L")
    axes = _AXES if shape[0] in "PFEK" else _AXES[1:]
    indices = np.indices(tensor.shape).reshape(tensor.dim(), tensor.numel())
    columns = dict.fromkeys(_AXES) | dict(zip(axes, indices, strict=False))
    if shape.endswith(" 1"):
        columns["column"] = None
    return pd.DataFrame(columns | {"value": tensor.double().flatten().numpy()}).assign(key=key)


def _card(study: Results, licence: str, depths: Iterable[str], notes: Iterable[str]) -> str:
    origins = [f"- {model}, {dataset}: {made_from(result['meta'])}" for (dataset, model, _), result in study.items()]
    return _CARD.format(
        licence=licence,
        n_models=len({model for _, model, _ in study}),
        depths="\n".join(depths),
        notes="\n\n".join(notes),
        origin="\n".join(dict.fromkeys(origins)),
        dataset=next(iter(study))[0],
    )
