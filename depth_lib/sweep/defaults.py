"""The parameters of a model on a dataset from the params files, for sweeps and notebooks. Does not import torch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from ..embedded import SAMPLES
from ..hub import without_retries
from ..models.gguf import gguf_in
from ..params import (
    Params,
    ParamsError,
    find_dataset,
    find_model,
    not_among,
    params_files,
    problems,
    remembered,
    study_file,
)
from .spec import in_project


def filled_in(cell: Mapping) -> tuple[dict, dict[str, dict]]:
    """A cell's parameters, those that are None filled in from the params files; and the values filled in, by file.

    MODEL may be anything that `depth-lib sweep` takes as a model. Raises ParamsError for an unknown model or a file
    that cannot be read.
    """
    given = {name: cell[name] for name in Params.model_fields if cell.get(name) is not None}
    if Params.model_fields.keys() == given.keys():
        return given, {}
    run = Params().model_dump() | given
    known, model_id = find_model(run["MODEL"]), run["MODEL_ID"]
    if model_id and (not known or model_id not in (run["MODEL"], known["MODEL_ID"])):
        model = model_params(model_id) | {"MODEL": run["MODEL"]}
    else:
        model = model_params(run["MODEL"])
    dataset = find_dataset(run["DATASET"]) or {"DATASET": run["DATASET"]}
    values, origins = given | {"MODEL": model["MODEL"]}, {}
    for origin, said in reversed(defaults(model, dataset, in_project(run["OUT"])).items()):
        if new := {name: said[name] for name in Params.model_fields if name in said and name not in values}:
            origins[origin] = new
            values |= new
    return values, origins


def defaults(model: Mapping, dataset: Mapping, out: str | Path) -> dict[str, dict]:
    """The parameters of a model on a dataset, by the file that sets them; later files win."""
    # A model's SOURCE chooses among the samples that ship; other datasets have none.
    if dataset["DATASET"] not in SAMPLES and "SOURCE" in dataset:
        model = {key: value for key, value in model.items() if key != "SOURCE"}
    return {
        "by default": Params().model_dump(),
        _file_of("datasets", dataset["DATASET"]): dict(dataset),
        _file_of("models", model["MODEL"]): dict(model),
        str(study_file(out)): remembered(out),
    }


def _file_of(kind: str, name: str) -> str:
    """The params file of a model or dataset, relative to the folder with params/; "model x" if there is none."""
    file = params_files(kind).get(name)
    return str(Path("params", *file.parts[-3 if kind == "models" else -2 :])) if file else f"{kind[:-1]} {name}"


def model_params(name: str) -> dict:
    """The parameters of a model given by the name of its params file, a folder, a GGUF file or a Hub id.

    Raises ParamsError if it is none of these.
    """
    if params := find_model(name):
        return params
    path = in_project(name)
    if not path.exists() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?", name):
        if name.startswith((".", "/", "~")):
            raise ParamsError(f"{name} does not exist; check the path")
        raise ParamsError(
            f"{not_among(params_files('models'), 'MODELS', name)}; or a folder, a GGUF file, a Hub id owner/name"
        )
    short = (path.resolve() if path.exists() else path).name.removesuffix(".gguf")
    return {"MODEL": short, "MODEL_ID": name, "DTYPE": own_dtype(name), "DEVICE_MAP": "auto"}


def own_dtype(model_id: str) -> str:
    """The dtype in a checkpoint's config; float32 for a GGUF file, bfloat16 if the config cannot be read."""
    path = in_project(model_id)
    if model_id.endswith(".gguf") or gguf_in(path):
        return "float32"
    from huggingface_hub import hf_hub_download  # takes a moment

    try:
        with without_retries(model_id):
            file = path / "config.json" if path.is_dir() else Path(hf_hub_download(model_id, "config.json"))
        config = json.loads(file.read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 (loading the model gives a better error)
        return "bfloat16"
    dtype = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if problems({"DTYPE": dtype}) else dtype
