"""Every parameter: its name, type, default and meaning. This is the only place where one is defined.

`Params` is what a run asks, `ModelFile` and `DatasetFile` are what a params file says of a model and of a dataset. The
parameters cell of notebooks/probe.ipynb has the names and comments of `Params` (tested); a None there means: take it
from the params files. Params files, the command line and make are all checked by `checked`.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from math import inf
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict

# A clone has params/ beside the package, an installed wheel has it inside.
_INSIDE = Path(__file__).parent / "registry"
INSTALLED = _INSIDE.is_dir()
PARAMS = _INSIDE if INSTALLED else Path(__file__).parent.parent / "params"

PAPER_DATASETS = ["hellaswag", "gsm8k", "aime24"]
HOST = r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/\S*)?"  # of a server
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order
FIVE_PROBES = ["relative_contribution", "layer_effects", "logit_lens", "residual_erasure", "integrated_gradients"]


class ParamsError(ValueError):
    """Wrong parameters or names: one line per problem, with file, key and allowed values."""


# Flags of a field: how it is decided whether a stored result is stale. Without a flag the value itself is compared.
_BY_HASH: JsonDict = {"by hash": True}  # a hash of the prompts or of the weights is compared
_NOT_COMPARED: JsonDict = {"not compared": True}  # where or which results are computed (a question is in their names)
_LOADING: JsonDict = {"loading": True}  # also an argument of `load_model`

NAMED_SOURCES = ("hub", "embedded", "sample")  # any other SOURCE is a file


class _OfModel(BaseModel):
    """The parameters of a run that a model's params file may have, and a dataset's may not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    MODEL: str = Field(default="toy-8l", min_length=1, description="short name, also the results' folder")
    MODEL_ID: str | None = Field(
        default=None,
        min_length=1,
        description="Hub id, local folder, GGUF file or embedded toy; by default what MODEL names",
        json_schema_extra=_BY_HASH,
    )
    REVISION: str | None = Field(
        default=None,
        description='branch, tag or commit on the Hub; "null": the newest',
        json_schema_extra=_LOADING | _BY_HASH,
    )
    DTYPE: Literal["bfloat16", "float16", "float32", "float64"] = Field(
        default="float32",
        description="what the model computes in: bfloat16, float16, float32, float64",
        json_schema_extra=_LOADING,
    )
    QUANTIZATION: Literal["8bit", "4bit", None] = Field(
        default=None,
        description='"8bit" or "4bit" weights (bitsandbytes); "null": weights are in DTYPE',
        json_schema_extra=_LOADING,
    )
    DEVICE_MAP: str | None = Field(
        default=None,
        description='such as "auto" or "cuda:0"; "null": the first GPU, or the CPU if there is none',
        json_schema_extra=_LOADING | _NOT_COMPARED,
    )
    TENSOR_PARALLEL: int = Field(
        default=1,
        ge=1,
        description="number of GPUs that share each layer, started by torchrun",
        json_schema_extra=_NOT_COMPARED,
    )
    LENS: str | None = Field(
        default=None,
        min_length=1,
        description="file of a lens, by which the logit lens is read too",
        json_schema_extra=_NOT_COMPARED,
    )
    CONTROL: bool = Field(
        default=False,
        description="measure the same architecture with random weights too",
        json_schema_extra=_NOT_COMPARED,
    )
    REMOTE: bool | Annotated[str, Field(pattern=f"^(local|{HOST})$")] = Field(
        default=False,
        description='run on NDIF; or "local" (here, to try a remote run), or a host',
        json_schema_extra=_NOT_COMPARED,
    )


class _OfDataset(BaseModel):
    """The parameter of a run that a dataset's params file may have, and a model's may not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    DATASET: str = Field(
        default="gsm8k",
        description="or hellaswag, aime24, addition, multiplication; with levels of difficulty: mquake, math, sums",
        json_schema_extra=_BY_HASH,
    )


class _OfBoth(BaseModel):
    """The parameters of a run that both kinds of params files may have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    N_EXAMPLES: int = Field(
        default=10,
        ge=1,
        description="number of prompts; of a dataset with levels, per level",
        json_schema_extra=_BY_HASH,
    )
    SOURCE: str = Field(
        default="embedded",
        min_length=1,
        description='"hub", "embedded", "sample" or the path of a .jsonl, .parquet or .txt file',
        json_schema_extra=_BY_HASH,
    )
    PROBES: list[str] = Field(
        default=FIVE_PROBES, description="names of the probes to run", json_schema_extra=_NOT_COMPARED
    )
    PAIR: str = Field(
        default="sum",
        description="question and answer of erasure and gradients, by name",
        json_schema_extra=_NOT_COMPARED,
    )
    QUESTION: str | None = Field(
        default=None,
        min_length=1,
        description="a question of your own instead of PAIR's",
        json_schema_extra=_NOT_COMPARED,
    )
    ANSWER: str | None = Field(
        default=None, min_length=1, description="the answer to QUESTION", json_schema_extra=_NOT_COMPARED
    )
    SEED: int = Field(default=123, description="the seed of everything drawn at random", json_schema_extra=_BY_HASH)
    OUT: str = Field(
        default="outputs/notebook", min_length=1, description="folder of the results", json_schema_extra=_NOT_COMPARED
    )
    REPLACE: bool = Field(
        default=False,
        description="move aside results in OUT that were made with other settings",
        json_schema_extra=_NOT_COMPARED,
    )


class Params(_OfBoth, _OfDataset, _OfModel):
    """What a run asks: one model on one dataset."""


class ModelFile(_OfBoth, _OfModel):
    """What a model's params file says."""

    TRAINING: str | None = Field(
        default=None, description='how the model was trained: "base", "instruct", "R1-distill" …'
    )
    BILLIONS: float | None = Field(default=None, gt=0, description="the model's number of parameters, in billions")


class DatasetFile(_OfBoth, _OfDataset):
    """What a dataset's params file says."""

    REPOSITORY: str | None = Field(default=None, description="the dataset's repository on the Hub")
    CONFIG: str | None = Field(default=None, description="the dataset's configuration on the Hub")
    SPLIT: str | None = Field(default=None, description="the dataset's split on the Hub")
    DATASET_REVISION: str | None = Field(default=None, description="the dataset's branch, tag or commit on the Hub")
    FILE: str | None = Field(default=None, description="a file of rows in place of REPOSITORY")
    TEMPLATE: str | None = Field(default=None, description="a row as a prompt: a jinja template of the row's fields")
    LEVEL: str | None = Field(
        default=None,
        description="the field of a row with its level of difficulty: a number, a text with one, or a list",
    )
    WITHIN_ANSWER: bool = Field(default=False, description="measure inside the answer, for worked solutions")
    MAX_TOKENS: int | None = Field(
        default=None, ge=1, description="longer prompts are left out, in tokens of LENGTH_TOKENIZER"
    )
    LENGTH_TOKENIZER: str | None = Field(
        default=None, description="the tokenizer that counts MAX_TOKENS, the same for all models"
    )
    QUESTION_TEMPLATE: str | None = Field(default=None, description="a row's question: a jinja template")
    ANSWER_TEMPLATE: str | None = Field(default=None, description="a row's answer, which follows the question")
    ANSWERS: str | None = Field(default=None, description="the field of a stored response to the question")


def flagged(flag: str) -> list[str]:
    """The parameters of a run that have a flag: "loading", "by hash" or "not compared", defined above."""
    flags = {name: field.json_schema_extra for name, field in Params.model_fields.items()}
    return [name for name, of_field in flags.items() if isinstance(of_field, dict) and flag in of_field]


# Of a model's params file, the keys that a dataset's cannot have.
OF_MODELS = [name for name in ModelFile.model_fields if name not in _OfBoth.model_fields]


# How a value that pydantic refuses is to be mended, by how the name of its error begins.
_MEND = {
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give more than {gt}",
    "literal_error": "give {expected}",
    "string_too_short": "give a text that is not empty",
    "string_": "give a text",
    "int_": "give a whole number",
    "float_": "give a number",
    "bool_": "give true or false",
    "list_": "give a list",
}


def checked(values: Mapping, kind: type[BaseModel] = Params, strict: bool = True) -> dict:
    """These values, each of its field's type. ParamsError with a line per value that does not fit, or unknown key.

    strict: a text is no number; otherwise, as on the command line, "20" is 20 and "1" is true where that is wanted.
    """
    named = {str(name): value for name, value in values.items()}  # YAML has other keys than texts
    try:
        return kind.model_validate(named, strict=strict).model_dump(exclude_unset=True)
    except ValidationError as error:
        lines = {}
        for item in error.errors():
            key = str(item["loc"][0])
            if item["type"] == "extra_forbidden":
                lines[key] = not_among(kind.model_fields, "key", key)
            else:
                mend = next((text for kind, text in _MEND.items() if item["type"].startswith(kind)), item["msg"])
                mend = mend.format(**item.get("ctx", {}))
                about = kind.model_fields[key].description
                lines.setdefault(key, f"{key} is {_shown(item['input'])}; {mend} ({about})")
        raise ParamsError("\n".join(lines.values())) from None


def load_params(path: str | Path) -> dict:
    """The values in a params file, of a dataset if its folder is called datasets, otherwise of a model.

    ParamsError with all problems, one per line: unreadable, unknown key, wrong type, value not allowed.
    """
    path = Path(path)
    try:
        values = dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ParamsError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    try:
        return checked(values, DatasetFile if path.parent.name == "datasets" else ModelFile)
    except ParamsError as problems:
        raise ParamsError("\n".join(f"{path}: {line}" for line in str(problems).splitlines())) from None


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
    """What params/models/<set>/<name>.yaml says, with MODEL and MODEL_ID; None if no set has the name. ParamsError for
    a file that cannot be read."""
    path = params_files("models").get(name)
    return {"MODEL_ID": name} | load_params(path) | {"MODEL": name} if path else None


class ModelFacts(NamedTuple):
    """A model's training, one of `TRAINING`, and its size in billions of parameters, None if that is not known."""

    training: str
    billions: float | None


@cache
def facts_of(model: str) -> ModelFacts:
    """TRAINING and BILLIONS in the params file of this name."""
    params = {}
    with suppress(ParamsError):  # commands that need the file report its mistakes
        params = find_model(model) or {}
    training = params.get("TRAINING")
    return ModelFacts(training if training in TRAINING else "unknown", params.get("BILLIONS"))


def in_order(models: Iterable[str]) -> list[str]:
    """Models in the order of the papers' table: by size, then R1-distilled, instruct, base, then by name.

    The size is that in the params file, in billions of parameters, or the number in the name: billions, or blocks as in
    toy-8l. Models with neither come last.
    """

    def place(model: str) -> tuple:
        facts = facts_of(model)
        size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        return facts.billions or (float(size[1]) if size else inf), TRAINING.index(facts.training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A sort key: the papers' datasets first, in the papers' order."""
    return (PAPER_DATASETS.index(dataset) if dataset in PAPER_DATASETS else len(PAPER_DATASETS), dataset)


def find_dataset(name: str) -> dict | None:
    """What params/datasets/<name>.yaml says, with DATASET, and SOURCE "hub" where it names a repository or a file; None
    if there is no such file."""
    path = params_files("datasets").get(name)
    if not path:
        return None
    params = load_params(path)
    on_hub = {"SOURCE": "hub"} if params.keys() & {"REPOSITORY", "FILE"} else {}
    return on_hub | params | {"DATASET": name}


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
    """A `depth-lib` command for a message, which works as pasted. Variables that are "" are left out, and so is OUT if
    it is `outputs`, or for SET=demo `outputs/demo`."""
    script = str(Path(sys.executable).with_name("depth-lib"))
    program = "depth-lib" if shutil.which("depth-lib") == script else script
    by_itself = "outputs/demo" if variables.get("SET") == "demo" else "outputs"
    for name, value in variables.items():
        if value != "" and (name, value) != ("OUT", by_itself):
            option = f"--{name.lower().replace('_', '-')}"
            names += (option if value is True else f"{option}={as_text(value)}",)
    return shlex.join([program, target, *names])


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
