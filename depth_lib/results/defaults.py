"""The parameters of a model on a dataset from the params files, for sweeps and notebooks. Does not import torch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from ..embedded import SAMPLES
from ..hub import without_retries
from ..models.gguf import gguf_in
from ..params import OF_MODELS, Params, ParamsError, find_dataset, find_model, not_among, params_files, problems


def in_project(path: str | Path) -> Path:
    """A path, relative to the clone's root if the working directory is notebooks/, where Jupyter starts kernels.

    Paths that begin with .., or exist in notebooks/ itself, and all paths elsewhere are left as they are.
    """
    root, path = Path(__file__).resolve().parents[2], Path(path).expanduser()
    from_notebooks = Path.cwd() == root / "notebooks" and path.parts[:1] != ("..",) and not path.exists()
    return root / path if from_notebooks else path


def as_cell(params: Mapping) -> dict:
    """Parameters as a notebook's cell sets them: "null" is None, as None means what the params files say."""
    return {name: "null" if value is None else value for name, value in params.items()}


def filled_in(cell: Mapping) -> tuple[dict, dict[str, dict]]:
    """A cell's parameters, those that are None filled in from the params files; and the values filled in, by file.

    MODEL may be anything that `depth-lib sweep` takes as a model. Raises ParamsError for an unknown model or a file
    that cannot be read.
    """
    given = {name: cell[name] for name in Params.model_fields if cell.get(name) is not None}
    values = {name: None if value == "null" else value for name, value in given.items()}
    if Params.model_fields.keys() == values.keys():
        return values, {}
    run = Params().model_dump() | values
    model, name = _model(run["MODEL"], run["MODEL_ID"], values), run["DATASET"]
    dataset = find_dataset(name) or {"DATASET": name}
    if name not in SAMPLES and "SOURCE" in dataset:
        model.pop("SOURCE", None)  # it chooses among the samples that ship
    values["MODEL"] = model["MODEL"]
    origins = {
        _file_of("models", model["MODEL"]): model,
        _file_of("datasets", name): dataset,
        "by default": Params().model_dump(),
    }
    for origin, said in origins.items():
        origins[origin] = {name: said[name] for name in Params.model_fields if name in said and name not in values}
        values |= origins[origin]
    return values, origins


def _file_of(kind: str, name: str) -> str:
    """The params file of a model or dataset as it is printed, without a folder of this machine."""
    file = params_files(kind).get(name)
    return f"params/{kind}/{file.as_posix().rpartition(f'/{kind}/')[2]}" if file else f"{kind[:-1]} {name}"


def _model(name: str, model_id: str | None, values: Mapping) -> dict:
    """The parameters of the model of this name, with another MODEL_ID if one is given; only the name if all are."""
    if all(key in values for key in OF_MODELS if key in Params.model_fields):
        return {"MODEL": name}
    if known := find_model(name):
        return known
    return model_params(model_id) | {"MODEL": name} if model_id else model_params(name)


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
