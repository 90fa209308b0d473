"""A sweep for make: the results of each run, which runs are unfinished, one run, how all stand, how it ended.

It loads no torch, so that a thousand results are looked at in seconds: python -m depth_lib.sweep --help
"""

import argparse
import sys
from collections import Counter
from functools import partial
from itertools import product

from ..params import PARAMS, PROBES, ParamsError, load_params
from ..results.schemas import artifact_path
from .launch import Launch
from .status import RunStatus, as_json, matrix, status_of


def load_runs(datasets: list[str] | None = None, models: list[str] | None = None) -> dict[tuple[str, str], dict]:
    """(dataset, model) -> the parameters of that run, for every dataset with every model, or for those named.

    Raises ParamsError with all problems of all files, or if two sets name a model alike.
    """
    files = {path: path.stem for path in sorted(PARAMS.glob("models/*/*.yaml"))}
    twice = [name for name, count in Counter(files.values()).items() if count > 1]
    if twice:
        same = ", ".join(str(path) for path in files if path.stem in twice)
        raise ParamsError(f"{same}: the name is also the results' folder; give each model its own")
    wanted = [path for path in sorted(PARAMS.glob("datasets/*.yaml")) if datasets is None or path.stem in datasets]
    chosen = [path for path in files if models is None or path.stem in models]
    load_params(*wanted, *chosen)  # all of them first, so that all problems come in one list
    parsed = {path: load_params(path) for path in (*wanted, *chosen)}
    runs = {}
    for dataset, model in product(wanted, chosen):
        run = runs[dataset.stem, model.stem] = parsed[dataset] | parsed[model]
        if absent := [key for key in ("MODEL", "MODEL_ID", "DATASET", "N_EXAMPLES", "PROBES") if key not in run]:
            raise ParamsError(f"{dataset} with {model}: no {', '.join(absent)}; add it to one of them")
    return runs


def graph() -> str:
    """The runs as make variables: `<dataset>/<MODEL> := <probe>:<file> …`."""
    lines = ["# Written by depth_lib.sweep from params/, and again when they change."]
    lines.append(f"PROBE_NAMES := {' '.join(PROBES)}")
    for (dataset, model), run in load_runs().items():
        files = {probe: artifact_path("", dataset, model, probe, run["N_EXAMPLES"]).name for probe in run["PROBES"]}
        lines.append(f"{dataset}/{model} := {' '.join(f'{probe}:{file}' for probe, file in files.items())}")
    return "\n".join(lines)


def cells(asked: argparse.Namespace) -> list[dict]:
    """The parameters cells of the runs that are asked for, with what the command line says over the params files."""
    pairs = [tuple(run.split("/")) for run in asked.runs]
    known = load_runs([dataset for dataset, _ in pairs], [model for _, model in pairs])
    over = {"OUT": asked.out} | ({"SOURCE": asked.source} if asked.source else {})
    if asked.remote:
        over["REMOTE"] = {"1": True, "True": True, "0": False, "False": False}.get(asked.remote, asked.remote)
    found = []
    for pair in pairs:
        cell = {"SOURCE": "embedded"} | known[pair] | over  # the notebook's own default, for datasets that are drawn
        if asked.probes:
            cell["PROBES"] = [probe for probe in cell["PROBES"] if probe in asked.probes]
        found.append(cell)
    return found


def summary(out: str, runs: list[RunStatus]) -> str:
    """How a sweep ended: what is not finished, why, and how to go on."""
    left = [run for run in runs if not run.finished]
    if not left:
        return f"{out}: all {len(runs)} runs finished"
    lines = []
    for run in left:
        name = f"  {run.dataset} × {run.model}"
        if run.running:
            lines.append(f"{name}: another sweep is at it")
        elif run.failed:
            lines.append(f"{name}: {run.failed}\n    log: {run.log}   again: {run.command}")
        else:
            done = sum(cell.state == "done" for cell in run.cells.values())
            state = "interrupted" if run.interrupted else "not started" if not done else "unfinished"
            lines.append(f"{name}: {state}, {done} of {len(run.cells)} results\n    again: {run.command}")
    failed = sum(bool(run.failed) for run in left)
    head = f"{out}: {len(runs) - len(left)} of {len(runs)} runs finished, {failed} failed"
    return "\n".join([head, *lines])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m depth_lib.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["graph", "unfinished", "left", "run", "status", "summary"])
    parser.add_argument("--out", default="outputs", help="folder of the results")
    parser.add_argument("--source", default="", help="instead of what the params say")
    parser.add_argument("--remote", default="", help="instead of what the params say")
    parser.add_argument("--probes", nargs="*", default=[], help="instead of those that the params name")
    parser.add_argument("--runs", nargs="*", default=[], help="<dataset>/<MODEL> …")
    parser.add_argument("--format", default="", help="of status: json")
    parser.add_argument("--gpus", nargs="*", default=[], help="of run: take a free one of these")
    parser.add_argument("--since", type=float, default=0.0, help="of run: when it was seen to be unfinished")
    parser.add_argument("--wait", action="store_true", help="of run: for another sweep that is at it")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    asked, command = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if asked.what == "graph":
        print(graph())
        return 0
    wanted = cells(asked)
    if asked.what == "run":
        return Launch(wanted[0], command, asked.since, asked.wait, asked.gpus, partial(print, flush=True)).run()
    runs = [status_of(cell) for cell in wanted]
    if asked.what == "status":
        print((as_json if asked.format == "json" else matrix)(asked.out, runs))
    elif asked.what == "summary":
        print(summary(asked.out, runs))
        return any(not run.finished for run in runs)
    else:  # for make: unfinished ones, or those of them that have not failed
        print(
            *(
                f"{run.dataset}/{run.model}"
                for run in runs
                if not run.finished and not (asked.what == "left" and run.failed)
            )
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ParamsError as problems:
        sys.exit(str(problems))
