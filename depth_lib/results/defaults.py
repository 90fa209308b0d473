"""What the params files say of a run: a cell's parameters that are None are filled in from them.

A model need not have a params file: then it is a folder, a GGUF file or a Hub id, and what its config says is taken.
Does not import torch.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..embedded import SAMPLES
from ..hub import without_retries
from ..models.gguf import gguf_in
from ..params import NAMED_SOURCES, Params, ParamsError, checked, find_dataset, find_model, not_among, params_files


def in_project(path: str | Path) -> Path:
    """A path, relative to the clone's root if the working directory is notebooks/, where Jupyter starts kernels.

    Paths that begin with .., or exist in notebooks/ itself, and all paths elsewhere are left as they are.
    """
    root = Path(__file__).resolve().parents[2]
    path = Path(path).expanduser()
    from_notebooks = Path.cwd() == root / "notebooks" and path.parts[:1] != ("..",) and not path.exists()
    return root / path if from_notebooks else path


def source_file(source: str) -> Path | None:
    """The file that SOURCE names; None for the sources that are no file."""
    return None if source in NAMED_SOURCES else in_project(source)


def as_cell(params: Mapping) -> dict:
    """Parameters as a notebook's cell sets them: None is written "null", since a None in a cell means: take it from the
    params files."""
    return {name: "null" if value is None else value for name, value in params.items()}


def filled_in(cell: Mapping) -> tuple[dict, dict[str, dict]]:
    """A cell's parameters, those that are None filled in from the params files; and the values filled in, by origin.

    What is given wins, then the model's file, the dataset's, the default; nothing is looked up for a
    complete cell. MODEL may be anything that `depth-lib sweep` takes as a model. Raises ParamsError for an unknown
    model or a file that cannot be read.
    """
    given = {name: cell[name] for name in Params.model_fields if cell.get(name) is not None}
    values: dict[str, Any] = {name: None if value == "null" else value for name, value in given.items()}
    if Params.model_fields.keys() == values.keys():
        return values, {}
    default = Params().model_dump()
    asked = default | values
    name = asked["MODEL"]
    dataset = asked["DATASET"]
    model = find_model(name)
    if not model and values.keys() >= {"MODEL_ID", "DTYPE", "DEVICE_MAP"}:
        model = {"MODEL": name}  # the three that `model_params` finds out are given
    elif not model:
        own_id = values.get("MODEL_ID")
        model = model_params(own_id) | {"MODEL": name} if own_id else model_params(name)
    values["MODEL"] = model["MODEL"]
    of_dataset = find_dataset(dataset) or {}
    if dataset not in SAMPLES and "SOURCE" in of_dataset:
        model.pop("SOURCE", None)  # a model's SOURCE only chooses among the prompts that ship
    origins = {f"model {model['MODEL']}": model, f"dataset {dataset}": of_dataset, "by default": default}
    for origin, said in origins.items():
        origins[origin] = {name: said[name] for name in Params.model_fields if name in said and name not in values}
        values |= origins[origin]
    return values, origins


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
    """The dtype in the config of a folder or of the Hub; float32 of a GGUF file, bfloat16 if none can be read."""
    path = in_project(model_id)
    if model_id.endswith(".gguf") or gguf_in(path):
        return "float32"
    from huggingface_hub import hf_hub_download  # takes a moment

    try:
        with without_retries(model_id):
            file = path / "config.json" if path.is_dir() else Path(hf_hub_download(model_id, "config.json"))
        config = json.loads(file.read_text(encoding="utf-8"))
        return checked({"DTYPE": config.get("dtype") or config.get("torch_dtype")})["DTYPE"]
    except Exception:  # noqa: BLE001 (loading the model gives a better error)
        return "bfloat16"
