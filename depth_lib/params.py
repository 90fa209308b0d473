"""Every parameter: its name, type, default and meaning. This is the only place where one is defined.

`Params` is what a run asks, `ModelFile` and `DatasetFile` are what a params file says of a model and of a dataset. The
parameters cell of notebooks/probe.ipynb has the names and comments of `Params` (tested); what is None there is as the
params files say. Params files (`load_params`), the command line and make (`from_text`) are checked against them.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict

# A clone has params/ beside the package, an installed wheel has it inside.
_INSIDE = Path(__file__).parent / "registry"
INSTALLED = _INSIDE.is_dir()
PARAMS = _INSIDE if INSTALLED else Path(__file__).parent.parent / "params"

PAPER_DATASETS = ["hellaswag", "gsm8k", "aime24"]
HOST = r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/\S*)?"  # of a server
FIVE_PROBES = ["relative_contribution", "layer_effects", "logit_lens", "residual_erasure", "integrated_gradients"]


class ParamsError(ValueError):
    """Wrong parameters or names; one line per problem, with file, key and allowed values."""


# Flags of a field.
_LOADING: JsonDict = {"loading": True}  # an argument of `load_model`
# a result's provenance has it in other words: a hash of the prompts, of the weights
_OTHERWISE: JsonDict = {"otherwise": True}
# where and how a run computes, and which of its results: no result is stale if it differs
_HOW: JsonDict = {"how": True}

NAMED_SOURCES = ("hub", "embedded", "sample")  # any other SOURCE is a file


class _OfModel(BaseModel):
    """The parameters of a run that a model's params file may have, and a dataset's may not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    MODEL: str = Field("toy-8l", min_length=1, description="short name, also the results' folder")
    MODEL_ID: str | None = Field(
        None,
        min_length=1,
        description="Hub id, local folder, GGUF file or embedded toy; by default what MODEL names",
        json_schema_extra=_OTHERWISE,
    )
    REVISION: str | None = Field(
        None,
        description='branch, tag or commit on the Hub; "null": the newest',
        json_schema_extra=_LOADING | _OTHERWISE,
    )
    DTYPE: Literal["bfloat16", "float16", "float32", "float64"] = Field(
        "float32",
        description="what the model computes in: bfloat16, float16, float32, float64",
        json_schema_extra=_LOADING,
    )
    QUANTIZATION: Literal["8bit", "4bit", None] = Field(
        None,
        description='"8bit" or "4bit" weights (bitsandbytes); "null": weights are in DTYPE',
        json_schema_extra=_LOADING,
    )
    DEVICE_MAP: str | None = Field(
        None,
        description='such as "auto" or "cuda:0"; "null": the first GPU, or the CPU if there is none',
        json_schema_extra=_LOADING | _HOW,
    )
    TENSOR_PARALLEL: int = Field(
        1, ge=1, description="number of GPUs that share each layer, started by torchrun", json_schema_extra=_HOW
    )
    REMOTE: bool | Annotated[str, Field(pattern=f"^(local|{HOST})$")] = Field(
        False, description='run on NDIF; or "local" (a rehearsal of NDIF), or a host', json_schema_extra=_HOW
    )


class _OfDataset(BaseModel):
    """The parameter of a run that a dataset's params file may have, and a model's may not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    DATASET: str = Field(
        "gsm8k",
        description="or hellaswag, aime24, addition, multiplication; with levels of difficulty: mquake, math, sums",
        json_schema_extra=_OTHERWISE,
    )


class _OfBoth(BaseModel):
    """The parameters of a run that both kinds of params files may have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    N_EXAMPLES: int = Field(
        10, ge=1, description="number of prompts; of a dataset with levels, per level", json_schema_extra=_OTHERWISE
    )
    SOURCE: str = Field(
        "embedded",
        min_length=1,
        description='"hub", "embedded", "sample" or the path of a .jsonl, .parquet or .txt file',
        json_schema_extra=_OTHERWISE,
    )
    PROBES: list[str] = Field(FIVE_PROBES, description="to run", json_schema_extra=_HOW)
    PAIR: str = Field(
        "sum", description="question and answer of erasure and gradients, by name", json_schema_extra=_HOW
    )
    QUESTION: str | None = Field(
        None, min_length=1, description="a question of your own instead of PAIR's", json_schema_extra=_HOW
    )
    ANSWER: str | None = Field(None, min_length=1, description="the answer to QUESTION", json_schema_extra=_HOW)
    SEED: int = Field(123, description="the seed of everything drawn at random", json_schema_extra=_OTHERWISE)
    OUT: str = Field("outputs/notebook", min_length=1, description="folder of the results", json_schema_extra=_HOW)
    REPLACE: bool = Field(
        False, description="move aside results in OUT that were made with other settings", json_schema_extra=_HOW
    )


class Params(_OfBoth, _OfDataset, _OfModel):
    """What a run asks: one model on one dataset."""


class ModelFile(_OfBoth, _OfModel):
    """What a model's params file says."""

    TRAINING: str | None = Field(None, description='how the model was trained: "base", "instruct", "R1-distill" …')
    BILLIONS: float | None = Field(None, gt=0, description="the model's number of parameters, in billions")


class DatasetFile(_OfBoth, _OfDataset):
    """What a dataset's params file says."""

    REPOSITORY: str | None = Field(None, description="the dataset's repository on the Hub")
    CONFIG: str | None = Field(None, description="the dataset's configuration on the Hub")
    SPLIT: str | None = Field(None, description="the dataset's split on the Hub")
    DATASET_REVISION: str | None = Field(None, description="the dataset's branch, tag or commit on the Hub")
    FILE: str | None = Field(None, description="a file of rows in place of REPOSITORY")
    TEMPLATE: str | None = Field(None, description="a row as a prompt: a jinja template of the row's fields")
    LEVEL: str | None = Field(
        None, description="the field of a row with its level of difficulty: a number, a text with one, or a list"
    )
    WITHIN_ANSWER: bool = Field(False, description="measure inside the answer, for worked solutions")
    MAX_TOKENS: int | None = Field(None, ge=1, description="longer prompts are left out, in tokens of LENGTH_TOKENIZER")
    LENGTH_TOKENIZER: str | None = Field(
        None, description="the tokenizer that counts MAX_TOKENS, the same for all models"
    )
    QUESTION_TEMPLATE: str | None = Field(None, description="a row's question, for datasets with levels")
    ANSWER_TEMPLATE: str | None = Field(None, description="a row's answer, for datasets with levels")


def flagged(flag: str) -> list[str]:
    """The parameters of a run with a flag: "loading", "otherwise" or "how", which stand above the fields."""
    return [name for name, field in Params.model_fields.items() if flag in (field.json_schema_extra or {})]


# Of a model's params file, the keys that a dataset's cannot have.
OF_MODELS = [name for name in ModelFile.model_fields if name not in _OfBoth.model_fields]


def load_params(path: str | Path) -> dict:
    """The values in a params file, of a dataset if its folder is called datasets, otherwise of a model.

    Raises ParamsError with all problems, one per line: unreadable, unknown key, wrong type, value not allowed, or a
    MODEL or DATASET that is not the file's own name.
    """
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ParamsError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{path}: is {_shown(values)}; write one KEY: value per line")
    kinds = [ModelFile, DatasetFile]
    if path.parent.name == "datasets":
        kinds.reverse()
    own, other = (kind.model_fields.keys() for kind in kinds)
    misplaced = [key for key in values if key in other - own]
    wrong = problems({key: value for key, value in values.items() if key not in misplaced}, kinds[0])
    wrong += [f"{key} belongs in the other kind of params file, models or datasets" for key in misplaced]
    for key in ("MODEL", "DATASET"):
        if values.get(key, path.stem) != path.stem:
            wrong.append(f"{key} is {_shown(values[key])}; name the file {values[key]}.yaml")
    if wrong:
        raise ParamsError("\n".join(f"{path}: {problem}" for problem in wrong))
    return values


def params_files(kind: Literal["models", "datasets"]) -> dict[str, Path]:
    """The params files of all models or datasets by name, sorted: the package's, and those of params/ in the working
    directory, which replace files of the same name. ParamsError if a name stands twice in one params folder."""
    files = {}
    for root in (PARAMS, Path("params")):
        for path in sorted(root.glob("models/*/*.yaml" if kind == "models" else "datasets/*.yaml")):
            other = files.get(path.stem)
            if other and root in other.parents:
                raise ParamsError(f"{other}, {path}: results are filed under the name; give each its own")
            files[path.stem] = path
    return dict(sorted(files.items()))


def find_model(name: str) -> dict | None:
    """What params/models/<set>/<name>.yaml says, with MODEL and MODEL_ID; None if no set has the name."""
    path = params_files("models").get(name)
    return {"MODEL": name, "MODEL_ID": name} | load_params(path) if path else None


def by_size(name: str) -> tuple:
    """A sort key of models: number of parameters, then the numbers in the name."""
    numbers = [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", name)]
    return (find_model(name) or {}).get("BILLIONS") or 0, numbers, name


def find_dataset(name: str) -> dict | None:
    """What params/datasets/<name>.yaml says, with DATASET, and SOURCE "hub" where it names a repository or a file; None
    if there is no such file."""
    path = params_files("datasets").get(name)
    if not path:
        return None
    params = load_params(path)
    own_rows = {"SOURCE": "hub"} if params.keys() & {"REPOSITORY", "FILE"} else {}
    return {"DATASET": name} | own_rows | params


# How a value that pydantic refuses is to be mended, by the kind of its error.
_MEND = {
    "int_type": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give more than {gt}",
    "literal_error": "give {expected}",
    "bool_type": "give true or false",
    "list_type": "give a list",
    "string_type": "give a text",
    "string_too_short": "give a text that is not empty",
}


def problems(values: Mapping, fields: type[BaseModel] = Params) -> list[str]:
    """What is wrong with these parameters, one line per key, with the allowed values."""
    lines = {}
    try:
        fields.model_validate(dict(values))
    except ValidationError as error:
        for item in error.errors():
            key = item["loc"][0]
            if item["type"] == "extra_forbidden":
                lines[key] = not_among(fields.model_fields, "key", key)
            elif key not in lines:
                mend = _MEND.get(item["type"], item["msg"]).format(**item.get("ctx", {}))
                lines[key] = f"{key} is {_shown(item['input'])}; {mend} ({fields.model_fields[key].description})"
    return list(lines.values())


def from_text(key: str, text: str, fields: type[BaseModel] = Params) -> object:
    """The value of a field given as text, on the command line or to make.

    `null` is None. Otherwise the first of these that is valid: the text itself, the text as YAML, 1 and 0 as true and
    false. ParamsError if none is.
    """
    try:
        as_yaml = yaml.safe_load(text)
    except yaml.YAMLError:
        as_yaml = text
    readings = [text, as_yaml, {"0": False, "1": True}.get(text, text)]
    for value in [None] if text.lower() in ("null", "none") else readings:
        if not problems({key: value}, fields):
            return value
    raise ParamsError(problems({key: as_yaml}, fields)[0])


def not_among(allowed: Iterable[str], kind: str, *names: str) -> str | None:
    """A message on the first name that is not allowed, with the nearest that is, and all unless they are many; None if
    all are allowed."""
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            by_lower_case = {one.lower(): one for one in allowed}
            near = get_close_matches(str(name).lower(), by_lower_case, n=1)
            hint = f" did you mean {by_lower_case[near[0]]}?" if near else ""
            choice = f" use {', '.join(map(_shown, allowed))}" if not near or len(allowed) <= 8 else ""
            return f"{kind} {_shown(name)} is not known;{hint}{choice}"
    return None


def as_text(value: object) -> str:
    """A parameter's value as it is written on the command line."""
    return "null" if value is None else " ".join(value) if isinstance(value, list) else str(value)


def command(target: str, *names: str, **variables: object) -> str:
    """A `depth-lib` command for a message, which works as pasted. Variables that are "" are left out."""
    script = Path(sys.executable).with_name("depth-lib")
    words = ["depth-lib" if shutil.which("depth-lib") == str(script) else str(script)]
    if not script.is_file():
        words = [sys.executable, "-m", "depth_lib.sweep"]
    for name, value in variables.items():
        if value != "" and (name, value) != ("OUT", "outputs"):
            option = f"--{name.lower().replace('_', '-')}"
            names += (option if value is True else f"{option}={as_text(value)}",)
    return shlex.join([*words, target, *names])


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
