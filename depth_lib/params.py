"""Every parameter: its name, type, default and meaning. This is the only place where one is defined.

`Params` has the parameters of a run. A value that is not given comes from the model's file
(params/models/<set>/<name>.yaml), then from the data set's (params/datasets/<name>.yaml), then from the default
here: `resolved` (run.py). The notebook's parameters cell, params files, the command line and make use the same
names, KEY = VALUE, and `checked` checks all of them.
"""

import json
import operator
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator

from .files import path_of

# A clone has params/ beside the package, an installed wheel has it inside.
_INSIDE = Path(__file__).parent / "registry"
INSTALLED = _INSIDE.is_dir()
PARAMS = _INSIDE if INSTALLED else Path(__file__).parent.parent / "params"

PAPER_DATASETS = ["hellaswag", "gsm8k", "aime24"]
_PORT = r"[0-5]?\d{1,4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]"
HOST = rf"https?://([\w.-]+|\[[\da-f:]+\])(:({_PORT}))?(/\S*)?"  # of a server
TRAINING = ("R1-distill", "instruct", "base", "unknown")  # the papers' order
FIVE_PROBES = ["relative_contribution", "layer_effects", "logit_lens", "residual_erasure", "integrated_gradients"]
NAMED_SOURCES = ("hub", "embedded", "sample")  # any other SOURCE is a file


class ParamsError(ValueError):
    """Invalid or unknown parameters: one line per problem, with file, key and allowed values."""

    def _render_traceback_(self, *_: object) -> list[str]:
        """The message alone, for a notebook."""
        return [f"{type(self).__name__}: {self}"]


def words(value: Any) -> Any:
    """The words of a text; a path that exists is one word."""
    if not isinstance(value, str):
        return value
    parts = [value] if path_of(value).exists() else [part.strip() for part in value.split(",")]
    return [word for part in parts for word in ([part] if part and path_of(part).exists() else part.split())]


Words = Annotated[list[str], BeforeValidator(words)]  # "a b" and "a,b" are ["a", "b"]


def _server(value: Any, parsed: Callable[[Any], Any]) -> Any:
    """The value of REMOTE; ValueError for any other, and for 1 and 0, which are not True and False elsewhere."""
    with suppress(ValidationError):
        if type(value) is not int:
            return parsed(value)
    raise ValueError('must be True (NDIF), False, "local" (a test on this machine) or a URL with http:// or https://')


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Number = Annotated[int, BeforeValidator(_not_bool)]  # pydantic takes True, and yes in a params file, for 1


class Params(BaseModel):
    """The parameters of a run: one model on one data set."""

    model_config = ConfigDict(extra="forbid")

    MODEL: str = Field("toy-8l", min_length=1, description="a name in params/models, a folder, a GGUF file or a Hub id")
    MODEL_ID: str | None = Field(
        None, description="Hub id, folder or file of the weights, if MODEL is your own name for it"
    )
    REVISION: str | None = Field(None, description="branch, tag or commit on the Hub; by default the newest")
    DTYPE: Literal["bfloat16", "float16", "float32", "float64"] = Field(
        "float32", description="the model's dtype: bfloat16, float16, float32, float64"
    )
    QUANTIZATION: Literal["none", "8bit", "4bit"] = Field(
        "none", description="weights in 8bit or 4bit (bitsandbytes), or none"
    )
    DEVICE_MAP: str | None = Field(None, description='"auto" spreads the blocks over all GPUs; "cuda:0" names one')
    PASSES: Number = Field(
        1, ge=1, description="how many times the blocks run; each pass has its own layers in the results"
    )
    LENS: str | None = Field(None, description="a lens file; logit_lens then runs both with and without it")
    CONTROL: bool = Field(False, description="also run the same architecture with random weights")
    REMOTE: Annotated[bool | Annotated[str, Field(pattern=f"^(local|{HOST})$")], WrapValidator(_server)] = Field(
        False, description='run on NDIF, or on the server at a URL; "local" tests a remote run on this machine'
    )
    DATASET: str = Field(
        "gsm8k",
        min_length=1,
        description="gsm8k, hellaswag, aime24, addition, multiplication; with levels: mquake, math, sums; or your own",
    )
    N_EXAMPLES: Number = Field(10, ge=1, description="number of prompts (per level, for a data set with levels)")
    SOURCE: str = Field("embedded", description="hub, embedded, sample, or a .jsonl, .csv, .parquet or .txt file")
    PART: Literal["all", "question"] = Field("all", description="prompts with their answers, or the questions alone")
    CHAT: bool = Field(False, description="apply the model's chat template to the prompts")
    GENERATE: Number = Field(
        0, ge=0, description="generate up to this many tokens per prompt, and apply the logit lens to them too"
    )
    PROBES: Words = Field(FIVE_PROBES, description="names of the probes to run")
    PAIR: str = Field(
        "sum",
        description="question and answer for probes that need them: sum, spouse, fractions, signed_sum, nested, "
        "product, addition or multiplication",
    )
    QUESTION: str | None = Field(None, description="your own question instead of PAIR; needs ANSWER")
    ANSWER: str | None = Field(None, description="the answer to QUESTION")
    SEED: Number = Field(123, description="random seed")
    OUT: str = Field("outputs/notebook", min_length=1, description="folder of the results")
    REPLACE: bool = Field(False, description="move results with different settings to OUT/replaced")


class ModelFile(Params):
    """The content of a model's params file."""

    TRAINING: str | None = Field(None, description="how the model was trained: base, instruct, R1-distill")
    BILLIONS: Annotated[float, BeforeValidator(_not_bool)] | None = Field(
        None, gt=0, description="the model's number of parameters, in billions"
    )


class DatasetFile(Params):
    """The content of a data set's params file."""

    REPOSITORY: str | None = Field(default=None, description="the data set's repository on the Hub")
    CONFIG: str | None = Field(default=None, description="the data set's configuration on the Hub")
    SPLIT: str | None = Field(default=None, description="the data set's split on the Hub")
    DATASET_REVISION: str | None = Field(default=None, description="the data set's branch, tag or commit on the Hub")
    FILE: str | None = Field(default=None, description="a file of rows in place of REPOSITORY")
    TEMPLATE: str | None = Field(
        default=None, description="turns a row into a prompt: a jinja template that is filled with the row's fields"
    )
    LEVEL: str | None = Field(
        default=None,
        description="the field that holds a row's difficulty level: a whole number (0 or more), a string with one, "
        "or a list, whose length is the level",
    )
    WITHIN_ANSWER: bool = Field(
        default=False, description="measure at positions inside the answer; for answers that are worked solutions"
    )
    MAX_TOKENS: Number | None = Field(
        default=None, ge=1, description="leave out prompts with more tokens than this, counted by LENGTH_TOKENIZER"
    )
    LENGTH_TOKENIZER: str | None = Field(
        default=None, description="the tokenizer that counts MAX_TOKENS, the same for all models"
    )
    QUESTION_TEMPLATE: str | None = Field(default=None, description="a row's question: a jinja template")
    ANSWER_TEMPLATE: str | None = Field(default=None, description="a row's answer, which follows the question")
    ANSWERS: str | None = Field(default=None, description="the field that holds a stored response to the question")


def checked(values: Mapping, kind: type[BaseModel] = Params) -> dict:
    """The values other than None, each converted to its field's type. Raises ParamsError with a line per problem."""
    given = {str(key): value for key, value in values.items() if value is not None}
    try:
        return kind.model_validate(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        lines = {}
        for problem in error.errors():
            key = str(problem["loc"][0])
            if unknown := not_among(kind.model_fields, "parameter", key):
                lines[key] = unknown
            else:
                line = f"{key} is {problem['input']!r}: {problem['msg']} ({kind.model_fields[key].description})"
                if "ctx" in problem and problem["type"] == "value_error":
                    line = f"{key} {problem['ctx']['error']}, got {problem['input']!r}"
                lines.setdefault(key, line)
        raise ParamsError("\n".join(lines.values())) from None


def load_params(path: Path) -> dict:
    """The values in a params file. ParamsError with all problems, one per line, each with the file."""
    key, kind = ("DATASET", DatasetFile) if path.parent.name == "datasets" else ("MODEL", ModelFile)
    try:
        text = path.read_text(encoding="utf-8")
        if twice := re.search(r"(?ms)^(\w+)\s*:.*^\1\s*:", text):
            raise ParamsError(f"{twice[1]} appears twice; delete one")
        if not isinstance(read := yaml.safe_load(text) or {}, dict):
            raise ParamsError(f"expected lines KEY: VALUE, got a {type(read).__name__}")
        values = checked(read, kind)
        if values.keys() >= {"REPOSITORY", "FILE"}:
            raise ParamsError("FILE and REPOSITORY are both set; delete one")
        for name in ("TEMPLATE", "QUESTION_TEMPLATE"):
            if "{{" not in (values.get(name) or "{{"):
                raise ParamsError(
                    f"{name} has no field of a row; write one in double braces, such as {{{{ question }}}}"
                )
        if values.get(key, path.stem) != path.stem:
            raise ParamsError(
                f"{key} is {values[key]}, which must be the name of the file; rename the file, or delete {key}"
            )
        return values
    except ParamsError as problems:
        raise ParamsError("\n".join(f"{path}: {line}" for line in str(problems).splitlines())) from None
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ParamsError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None


def params_files(kind: Literal["models", "datasets"]) -> dict[str, Path]:
    """The params files of all models or data sets by name: the package's, and those of params/ in the working
    directory, which replace files of the same name. ParamsError for two of one name."""
    files = {}
    for root in (PARAMS, Path("params")):
        own = {}
        for path in sorted(root.glob("models/*/*.y*ml" if kind == "models" else "datasets/*.y*ml")):
            if path.stem in own:
                raise ParamsError(f"{own[path.stem]} and {path} have the same name; rename one of them")
            own[path.stem] = path
        files |= own
    return dict(sorted(files.items()))


def find_model(name: str) -> dict | None:
    """The content of params/models/<set>/<name>.yaml, with MODEL and MODEL_ID; None for an unknown name."""
    path = params_files("models").get(name)
    return {"MODEL_ID": name} | load_params(path) | {"MODEL": name} if path else None


def find_dataset(name: str) -> dict | None:
    """The content of params/datasets/<name>.yaml, with DATASET, and SOURCE hub if it names a repository or a file.

    None for an unknown name.
    """
    path = params_files("datasets").get(name)
    if not path:
        return None
    values = load_params(path)
    on_hub = {"SOURCE": "hub"} if values.keys() & {"REPOSITORY", "FILE"} else {}
    return on_hub | values | {"DATASET": name}


class ModelFacts(NamedTuple):
    """A model's training, one of `TRAINING`, and its size in billions of parameters, None if that is not known."""

    training: str
    billions: float | None


@cache
def facts_of(model: str) -> ModelFacts:
    """TRAINING and BILLIONS in the params file of this name, also of its unrolled model: toy-4l-x3."""
    values = find_model(model) or find_model(re.sub(r"-x\d+$", "", model)) or {}
    training = values.get("TRAINING")
    return ModelFacts(training if training in TRAINING else "unknown", values.get("BILLIONS"))


def in_order(models: Iterable[str]) -> list[str]:
    """Models in the order of the papers' table: by size, then R1-distilled, instruct, base, then by name.

    The size is BILLIONS in the params file, or the number in the name: billions, or blocks as in toy-8l.
    """

    def place(model: str) -> tuple:
        facts = facts_of(model)
        size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bl](?![a-z])", model.lower())
        return facts.billions or (float(size[1]) if size else inf), TRAINING.index(facts.training), model.lower()

    return sorted(set(models), key=place)


def by_paper(dataset: str) -> tuple[int, str]:
    """A sort key: the papers' data sets first, in the papers' order."""
    return ([*PAPER_DATASETS, dataset].index(dataset), dataset)


def whole(numbers: Any) -> list[int]:
    """A list of whole numbers, also those of numpy and torch; [] if it holds anything else, or has no order."""
    if isinstance(numbers, bytes | Mapping | Set):
        return []
    try:  # True is an int too
        items = numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)
        return [] if any(isinstance(item, bool) for item in items) else [*map(operator.index, items)]
    except TypeError:
        return []


def not_among(allowed: Iterable[str], kind: str, *names: str) -> str | None:
    """A message on the first name that is not allowed, with the nearest that is; None if all are allowed.

    kind: what the names are, or "at=" for the values of an argument `at`.
    """
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            by_lower_case = {one.lower(): one for one in allowed}
            near = get_close_matches(str(name).lower(), by_lower_case, n=1)
            hint = f" did you mean {_shown(by_lower_case[near[0]])}?" if near else ""
            use = "Use" if near else "use"
            choice = f" {use} {listed(map(_shown, allowed))}" if not near or len(allowed) <= 8 else ""
            of_argument = kind.endswith("=")
            problem = f"{kind}{_shown(name)} is not valid" if of_argument else f"unknown {kind} {_shown(name)}"
            return f"{problem};{hint}{choice}"
    return None


def listed(names: Iterable[str], last: str = "or") -> str:
    """Names in words: a, b or c."""
    *most, end = [*names] or [""]
    return f"{', '.join(most)} {last} {end}" if most else end


def warn(message: str) -> None:
    """Warn at the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def option(name: str) -> str:
    """A parameter as an option of the command line: --n-examples."""
    return f"--{name.lower().replace('_', '-')}"


def command(target: str, *names: str, **values: object) -> str:
    """A `depth-lib` command for a message, which works as pasted. Values that are "", None or False are left out."""
    texts = {key: " ".join(value) if isinstance(value, list) else value for key, value in values.items()}
    given = {option(key): text for key, text in texts.items() if text not in ("", None, False)}
    words = [word for key, text in given.items() for word in ([key] if text is True else [key, str(text)])]
    return shlex.join(["depth-lib", target, *names, *words])
