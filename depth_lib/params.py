"""The params files: what a run's parameters are called, which values they take, and the models known by name.

A params file is YAML for papermill's -f, a flat block that overrides the parameters cell of notebooks/probe.ipynb.
As a command it checks files and loads nothing else: python -m depth_lib.params params/models/paper/*.yaml
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import yaml

from .data import prompts
from .data.pairs import DEFAULT_PAIR, DRAWN_PAIRS, PAIRS

DATASETS = (*prompts.DATASETS, *prompts.DRAWN)

# A clone keeps params/ beside the package, an installed wheel carries it inside.
_INSIDE = Path(__file__).parent / "registry"
INSTALLED = _INSIDE.is_dir()
PARAMS = _INSIDE if INSTALLED else Path(__file__).parent.parent / "params"


REQUIRED = object()


class ParamsError(ValueError):
    """A params file or a model name that does not fit; one line a problem, each naming file, key and allowed values."""


@dataclass(frozen=True)
class Parameter:
    """One name in the parameters cell: its types, its allowed values if they are few, and what it means.

    default: its value in a cell that was written before there was this name; those without one are required.
    """

    types: tuple[type, ...]
    meaning: str
    allowed: tuple = ()
    default: object = REQUIRED


PARAMETERS = {
    "MODEL": Parameter((str,), "short name, also the results' folder"),
    "MODEL_ID": Parameter((str,), "Hub id, local folder, GGUF file or embedded toy"),
    "REVISION": Parameter((str, type(None)), "branch, tag or commit of the Hub repository; null is the newest"),
    "DTYPE": Parameter((str,), "what the model computes in", ("bfloat16", "float16", "float32", "float64")),
    "QUANTIZATION": Parameter((str, type(None)), "what the weights are held in", ("8bit", "4bit", None)),
    "DEVICE_MAP": Parameter((str, type(None)), 'where the weights go, such as "auto" or "cuda:0"; null is the CPU'),
    "REMOTE": Parameter((bool, str), 'false: here; true: NDIF; "local" or a host'),
    "DATASET": Parameter((str,), "which prompts", DATASETS),
    "N_EXAMPLES": Parameter((int,), "number of prompts, at least 1"),
    "SOURCE": Parameter((str,), '"hub", "embedded", "sample" or the path of a .jsonl or .parquet file'),
    "PROBES": Parameter((list,), "which probes run"),
    "PAIR": Parameter((str,), "question and answer of erasure and gradients", (*PAIRS, *DRAWN_PAIRS), DEFAULT_PAIR),
    "QUESTION": Parameter((str, type(None)), "one of your own instead of PAIR's", default=None),
    "ANSWER": Parameter((str, type(None)), "that question's", default=None),
    "SEED": Parameter((int,), "of everything drawn"),
    "OUT": Parameter((str,), "folder of the results"),
}
_YAML_NAMES = {str: "text", int: "whole number", bool: "true or false", list: "list", type(None): "null"}


def load_params(*paths: str | Path) -> dict:
    """The parameters of one run: the files merged, a later file's value in place of an earlier one's.

    Raises ParamsError with all problems of all files, one a line: unreadable, unknown key, wrong type, value not
    allowed, or a MODEL or DATASET that is not the file's own name (which is where make looks for it).
    """
    merged, problems = {}, []
    for path in map(Path, paths):
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
            problems.append(f"{path}: cannot be read as YAML ({' '.join(str(problem).split())})")
            continue
        if not isinstance(values, dict):
            problems.append(f"{path}: is {_kind(values)}; write one KEY: value a line")
            continue
        problems += [f"{path}: {problem}" for key, value in values.items() if (problem := problem_of(key, value))]
        for key in ("MODEL", "DATASET"):
            if values.get(key, path.stem) != path.stem:
                problems.append(f"{path}: {key} is {_shown(values[key])}; name the file {values[key]}.yaml")
        merged |= values
    if problems:
        raise ParamsError("\n".join(problems))
    return merged


def registry_names() -> list[str]:
    """The names that find_model knows, sorted: every file of params/models/<set>/."""
    return sorted({path.stem for path in PARAMS.glob("models/*/*.yaml")})


def find_model(name: str) -> dict | None:
    """The parameters of the model described by params/models/<set>/<name>.yaml; None if no set has it."""
    files = [path for path in sorted(PARAMS.glob("models/*/*.yaml")) if path.stem == name]
    return load_params(files[0]) if files else None


def problem_of(key: str, value: object) -> str | None:
    """What is wrong with one parameter, and what to write instead; None if it fits."""
    if key not in PARAMETERS:
        near = get_close_matches(str(key).upper(), PARAMETERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(PARAMETERS)}"
        return f"unknown key {key}; {hint}"
    parameter = PARAMETERS[key]
    # YAML's true is an int to Python, but nobody means one by the other.
    if type(value) not in parameter.types:
        wanted = " or ".join(_YAML_NAMES[kind] for kind in parameter.types)
        return f"{key} is {_shown(value)} ({_kind(value)}); use {wanted}: {parameter.meaning}"
    if key == "N_EXAMPLES" and value < 1:
        return f"{key} is {value}; use {parameter.meaning}"
    if key in ("MODEL", "MODEL_ID", "SOURCE", "OUT", "QUESTION", "ANSWER") and value == "":
        return f"{key} is empty; use {parameter.meaning}"
    return not_among(parameter.allowed, key, value) if parameter.allowed else None


def not_among(allowed: Iterable, key: str, *values: object) -> str | None:
    """That the first of the values that is not allowed is not known, and what is; None if all are."""
    allowed = list(allowed)
    wrong = [value for value in values if value not in allowed]
    if not wrong:
        return None
    near = get_close_matches(str(wrong[0]).lower(), [str(one) for one in allowed if one], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{key} {_shown(wrong[0])} is not known; {hint}use {', '.join(map(_shown, allowed))}"


def _kind(value) -> str:
    return _YAML_NAMES.get(type(value), type(value).__name__)


def _shown(value) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


if __name__ == "__main__":
    try:
        load_params(*sys.argv[1:])
    except ParamsError as problems:
        sys.exit(str(problems))
