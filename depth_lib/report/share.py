"""A study as a folder for others: Parquet, a dataset card, a Croissant description, and the hash of every file."""

import json
from pathlib import Path

import jinja2
import yaml

from ..files import write_together
from ..results.schemas import ArtifactError
from ..results.shared import COLUMNS, RESULTS, RUN_COLUMNS, RUNS, SUMS, as_parquet, sha256
from ..results.study import Study
from .page import provenance
from .table import effective_depth_table, summary_lines

CARD, CROISSANT = "README.md", "croissant.json"
LICENCE = "cc-by-4.0"
_KNOWN = ("model_id", "commit", "revision", "weights", "dtype", "quantization")
_DESCRIPTION = (
    "What the layers of language models do, per layer, prompt and token, and the effective depths that follow: the "
    "probes of Csordás et al. 2025 (arXiv 2505.13898), the effective depth of Hu et al. 2025 (arXiv 2512.14064)."
)
_CITATION = (
    "@article{csordas2025depth, title={Do Language Models Use Their Depth Efficiently?}, author={Csordás, Róbert and "
    "Manning, Christopher D. and Potts, Christopher}, journal={arXiv preprint arXiv:2505.13898}, year={2025}}"
)
# Croissant's own terms, whole, as its readers expect them: https://docs.mlcommons.org/croissant/docs/croissant-spec.html
_TERMS = "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes isLiveDataset "
_TERMS += "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
_TERMS += "subField transform"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}


def share(study: Study, folder: str | Path, licence: str = LICENCE, repository: str = "") -> list[Path]:
    """Write a study to a folder as `results.parquet`, `runs.parquet`, README.md, croissant.json and SHA256SUMS.

    Equal results give equal files. `Study(folder)` reads it back, and so do `make table OUT=folder` and
    `BESIDE=folder`. licence: an identifier of the Hub's, for the numbers; repository: owner/name, where it will be.
    ArtifactError for a folder that holds results of its own, or if the disk refuses.
    """
    folder = Path(folder)
    if any(folder.glob("*/*/*.pt")):
        raise ArtifactError(f"{folder} holds results of its own; give an empty folder to share into, such as TO=shared")
    results = {key: result for key in study if (result := study.get(key))}
    contents = as_parquet(results, study.names())
    metas = [result["meta"] for result in results.values() if result["meta"]]
    contents[CARD] = _card(study, metas, licence, repository or folder.resolve().name).encode()
    contents[CROISSANT] = (
        json.dumps(_croissant(study, metas, licence, repository, contents), indent=1) + "\n"
    ).encode()
    contents[SUMS] = "".join(f"{sha256(content)}  {name}\n" for name, content in contents.items()).encode()
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
        why = str(error).strip().splitlines()[0]
        raise ArtifactError(f"no login on the Hub ({type(error).__name__}: {why}); run: hf auth login") from error


def push(folder: str | Path, repository: str) -> str:
    """Upload a shared folder as a dataset of the Hub, made if it is not there; its address. Errors as `logged_in`."""
    from huggingface_hub import HfApi

    logged_in()
    hub, files = HfApi(), [RESULTS, RUNS, CARD, CROISSANT, SUMS]
    try:
        hub.create_repo(repository, repo_type="dataset", exist_ok=True)
        hub.upload_folder(repo_id=repository, repo_type="dataset", folder_path=str(folder), allow_patterns=files)
    except Exception as error:  # noqa: BLE001 (whatever the Hub, the network or the client raise)
        why = str(error).strip().splitlines()[0]
        raise ArtifactError(f"{folder} was not pushed to {repository}: {why}; push again") from error
    return _address(repository)


def _address(repository: str) -> str:
    return f"https://huggingface.co/datasets/{repository}"


def _title(study: Study) -> str:
    return f"Effective depth of {len(study.models)} model{'s' * (len(study.models) != 1)}"


def _card(study: Study, metas: list[dict], licence: str, name: str) -> str:
    models = {meta.get("model", meta.get("model_id")): {k: meta[k] for k in _KNOWN if meta.get(k)} for meta in metas}
    prompts = {
        m["dataset"]: {k: m.get(k) for k in ("source", "n_prompts", "prompts_hash")} for m in metas if "dataset" in m
    }
    versions = {f"{package} {v}" for meta in metas for package, v in meta.get("versions", {}).items()}
    head = {
        "license": licence,
        "pretty_name": _title(study),
        "tags": ["effective-depth", "interpretability", "depth_lib", "croissant"],
        "configs": [
            {"config_name": "results", "data_files": RESULTS, "default": True},
            {"config_name": "runs", "data_files": RUNS},
        ],
        "depth_lib": {"models": models, "prompts": prompts, "versions": sorted(versions)},
    }
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True
    )
    page.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("<", "&lt;")
    return page.get_template("card.md.jinja").render(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True),
        title=_title(study),
        depths=[line.split(" : ") for line in summary_lines(effective_depth_table(study)) if " : " in line],
        made_from=list(provenance(study).itertuples(index=False, name=None)),
        columns=COLUMNS,
        run_columns=RUN_COLUMNS,
        dataset=study.datasets[0],
        name=name,
        licence=licence,
    )


def _croissant(study: Study, metas: list[dict], licence: str, repository: str, contents: dict[str, bytes]) -> dict:
    """The description as JSON-LD, with the hash of both tables; its date is that of the newest result."""
    dates = [str(meta["date"])[:10] for meta in metas if meta.get("date")]
    described = {"url": _address(repository)} if repository else {}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": _title(study),
        "description": _DESCRIPTION,
        "citeAs": _CITATION,
        "creator": {"@type": "sc:Person", "name": repository.partition("/")[0] or "whoever ran depth_lib"},
        "datePublished": max(dates, default="2025-01-01"),
        "license": licence,
        "version": "1.0.0",
        **described,
        "distribution": [_file(name, contents[name]) for name in (RESULTS, RUNS)],
        "recordSet": [_records("results", RESULTS, COLUMNS), _records("runs", RUNS, RUN_COLUMNS)],
    }


def _file(name: str, content: bytes) -> dict:
    known = {"contentUrl": name, "encodingFormat": "application/x-parquet", "sha256": sha256(content)}
    return {"@type": "cr:FileObject", "@id": name, "name": name, "contentSize": f"{len(content)} B", **known}


def _records(name: str, file: str, columns: dict[str, str]) -> dict:
    kinds = dict.fromkeys(("prompt", "layer", "column"), "sc:Integer") | {"value": "sc:Float"}
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column}",
            "name": column,
            "description": text,
            "dataType": kinds.get(column, "sc:Text"),
            "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
        }
        for column, text in columns.items()
    ]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}
