"""Sharing a study: its files, all curves and maps in one Parquet table, and a dataset card."""

from collections.abc import Iterable
from pathlib import Path

from ..files import write_together
from .provenance import made_from
from .schemas import ArtifactError, parse_name
from .study import Study, as_frame

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
---

# Effective depth of {n_models} models

How much of its depth does a language model use? Measured with depth_lib: the probes of Csordás et al. (2025) and the
effective depth of Hu et al. (2025). By cosine, KL divergence and overlap, `17(0.64)` is layer 17,
counted from 0, of 28; a dash is a missing value:

```
{depths}
```

{notes}

## Made from

{origin}

## Files

`<dataset>/<model>/*.pt`: a file per probe, `torch.load(path, weights_only=True)`, with values per prompt and, in
`meta`, model, prompts, settings and versions. `results.parquet` has the curves and maps, a row per number:

- `model`, `dataset` (of the prompts), `probe`, `key` (the curve or map of the probe)
- `layer`: counted from 0; row 0 of an erasure is the embeddings
- `column`: affected layer of an effect, token of an erasure or attribution; empty for curves
- `value`: the stored number

## Read it

```python
import pandas as pd

results = pd.read_parquet("results.parquet")
curves = results.query("key == 'res_kl_divs' and dataset == '{dataset}'")
curves.pivot(index="layer", columns="model", values="value").plot()
```

Table, figures and report: `depth-lib table --out folder`, with the folder of these files.

## Sources and licence

Csordás, Manning, Potts (2025), *Do Language Models Use Their Depth Efficiently?*, arXiv 2505.13898; Hu, Zhou, Zhang
(2025), *What Affects the Effective Depth of Large Language Models?*, arXiv 2512.14064. The numbers are under
{licence}; models and datasets have their own licences. The files have no prompts, only the tokens of the question.
"""


def share(
    study: Study, folder: str | Path, licence: str, depths: Iterable[str] = (), notes: Iterable[str] = ()
) -> list[Path]:
    """Write a study's files, `results.parquet` and README.md to a folder; the paths of the last two.

    Equal results give equal files. licence: the Hub's identifier of a licence, for the numbers; depths: lines of
    effective depths for the card; notes: paragraphs below them. ArtifactError for a study without results, for a folder
    with other results, or if the files cannot be written.
    """
    folder = Path(folder)
    if not study:
        raise ArtifactError(f"{study.folder} has no readable result, so there is nothing to share")
    files = [path.with_name(name) for path in study.paths.values() for name in parse_name(path).files]
    copies = {folder / file.relative_to(study.folder): file for file in files if file.exists()}
    if {*folder.glob("*/*/*.pt")} - copies.keys() or folder.resolve() == study.folder.resolve():
        raise ArtifactError(f"{folder} has results of its own; give an empty folder to share into, such as TO=shared")
    page = folder / "README.md"
    table = folder / "results.parquet"
    try:
        contents = {copy: file.read_bytes() for copy, file in copies.items()}
        contents |= {page: _card(study, licence, depths, notes).encode(), table: as_frame(study).to_parquet()}
        for path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_together(contents)
    except OSError as error:
        raise ArtifactError(
            f"{folder} was not written: {error.strerror or error}; free the disk or choose another TO"
        ) from error
    return [table, page]


def _card(study: Study, licence: str, depths: Iterable[str], notes: Iterable[str]) -> str:
    origins = [f"- {model}, {dataset}: {made_from(result['meta'])}" for (dataset, model, _), result in study.items()]
    card = _CARD.format(
        licence=licence,
        n_models=len({model for _, model, _ in study}),
        depths="\n".join(depths),
        notes="\n\n".join(notes),
        origin="\n".join(dict.fromkeys(origins)),
        dataset=next(iter(study))[0],
    )
    for folder in (study.folder, study.folder.resolve(), Path.cwd(), Path.home()):  # no paths of this machine
        card = card.replace(f"{folder}/", "")
    return card
