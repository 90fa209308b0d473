"""What a sweep consists of: which results each model × dataset is to have, for make, and which are there, for people.

python -m depth_lib.sweep graph     make variables: the results of each run
python -m depth_lib.sweep status    what is done and what is missing under --out
"""

import argparse
import sys
from collections import Counter
from itertools import product

from depth_lib.artifacts import artifact_path
from depth_lib.params import PARAMS, PROBES, ParamsError, load_params


def load_runs() -> dict[tuple[str, str], dict]:
    """(dataset, model) -> the parameters of that run, for every dataset file with every model file.

    Raises ParamsError with all problems of all files, or if two sets name a model alike.
    """
    datasets, models = sorted(PARAMS.glob("datasets/*.yaml")), sorted(PARAMS.glob("models/*/*.yaml"))
    load_params(*datasets, *models)  # all of them first, so that all problems come in one list
    twice = [name for name, count in Counter(path.stem for path in models).items() if count > 1]
    if twice:
        files = ", ".join(str(path) for path in models if path.stem in twice)
        raise ParamsError(f"{files}: the name is also the results' folder; give each model its own")
    runs = {}
    for dataset, model in product(datasets, models):
        run = runs[dataset.stem, model.stem] = load_params(dataset, model)
        if absent := [key for key in ("MODEL", "MODEL_ID", "DATASET", "N_EXAMPLES", "PROBES") if key not in run]:
            raise ParamsError(f"{dataset} with {model}: no {', '.join(absent)}; add it to one of them")
    return runs


def results_of(run: dict, out: str) -> dict:
    """probe -> the file that says it is done, for the parameters of one run."""
    place = (out, run["DATASET"], run["MODEL"])
    return {probe: artifact_path(*place, probe, run["N_EXAMPLES"]) for probe in run["PROBES"]}


def graph() -> str:
    """The runs as make variables: `<dataset>/<MODEL> := <probe>:<file> …`."""
    lines = ["# Written by depth_lib/sweep.py from params/, and again when they change."]
    lines.append(f"PROBE_NAMES := {' '.join(PROBES)}")
    for (dataset, model), run in load_runs().items():
        results = " ".join(f"{probe}:{path.name}" for probe, path in results_of(run, "").items())
        lines.append(f"{dataset}/{model} := {results}")
    return "\n".join(lines)


def status(out: str, models: list[str], datasets: list[str]) -> str:
    """A row for each run, a column for each probe, and a count."""
    runs, rows, counts = load_runs(), [("dataset", "model", *PROBES)], Counter()
    for dataset, model in product(datasets, models):
        results = results_of(runs[dataset, model], out)
        cells = ["–" if p not in results else "done" if results[p].is_file() else "missing" for p in PROBES]
        counts.update(cells)
        rows.append((dataset, model, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"{out}: {counts['done']} of {counts['done'] + counts['missing']} done"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m depth_lib.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["graph", "status"])
    parser.add_argument("--out", default="outputs")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--datasets", nargs="*", default=[])
    asked = parser.parse_args(arguments)
    try:
        print(graph() if asked.what == "graph" else status(asked.out, asked.models, asked.datasets))
    except ParamsError as problems:
        sys.exit(str(problems))


if __name__ == "__main__":
    main()
