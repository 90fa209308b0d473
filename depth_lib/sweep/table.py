"""The notebook of the table and the figures, executed when a result is not the one it was made from."""

import hashlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..files import hold, write_together
from ..params import ParamsError, command
from ..results.schemas import ArtifactError, parse_name
from .launch import NOTEBOOKS, environment, execution
from .plan import PAPER_DATASETS, Plan
from .status import elsewhere

TABLES = ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html")


@dataclass(frozen=True)
class Covered:
    """What a table covers: models ([] is every one there is), datasets, and what it leaves out in words."""

    models: list[str]
    datasets: list[str]
    left_out: str = ""


def covered(plan: Plan, all_there: bool = False) -> Covered:
    """What of a plan has results in its folder or beside it; where no dataset is named, the papers' or else all there.

    all_there: without names, everything that is there. ParamsError for a name that neither the params files nor the
    results have, or if there is no result of what is asked for; ArtifactError for a shared folder that is damaged.
    """
    out = Path(plan.folder)
    here = _runs_in(out)
    everything = here.union(*(_runs_in(_shared(other)) for other in plan.beside))
    own, models_there = {model for _, model in here}, {model for _, model in everything}
    there = {dataset for dataset, _ in everything}
    plan.check_names(models_there, there)
    if not everything:
        raise ParamsError(f"no results under {out}{elsewhere(out, 'table')}; run: {command('sweep', OUT=str(out))}")
    papers = [name for name in PAPER_DATASETS if name in there]
    ordered = papers + sorted(there - {*papers})
    datasets = list(plan.datasets) or (ordered if all_there else papers or ordered)
    models = []
    if plan.models or plan.set:
        models = plan.all_models
    elif not all_there and not (out / "runs.parquet").is_file() and own & {*plan.all_models}:
        models = plan.all_models
    if not any(dataset in datasets and (not models or model in models) for dataset, model in everything):
        asked = " × ".join(filter(None, (" ".join(datasets), " ".join(models))))
        choice = f"{' '.join(ordered)} × {' '.join(sorted(models_there))}"
        raise ParamsError(f"no results of {asked} under {out}; choose of what is there, {choice}")
    left_out = [f"{name} (DATASETS=…)" for name in ordered if name not in datasets and not plan.datasets]
    if models and not (plan.models or plan.set):
        left_out += [f"{name} (MODELS=…)" for name in sorted(own - {*models})]
    return Covered(models, datasets, ", ".join(left_out))


def make_table(plan: Plan) -> int:
    """Write the table and the figures of what is in the plan's folder, unless they are there; the exit status.

    Raises what `covered` raises, before anything is written.
    """
    covers, out = covered(plan), Path(plan.folder)
    if covers.left_out:
        print(f"not in this table: {covers.left_out}")
    parameters = {"OUT": str(out), "MODELS": covers.models, "DATASETS": covers.datasets}
    parameters |= {"BESIDE": list(plan.beside)} if plan.beside else {}
    notebook, partial, log = (out / f"effective_depth.{kind}" for kind in ("ipynb", "partial.ipynb", "log"))
    out.mkdir(parents=True, exist_ok=True)
    with hold(out / ".table", say=lambda who: print(f"table and figures: waiting, {who} is at them")):
        source = _source(plan, parameters)
        if source and all((out / name).is_file() for name in TABLES) and source == _made_from(notebook):
            return 0
        print(f"table and figures: running, log in {log}", flush=True)
        with log.open("wb") as file:
            words = execution("effective_depth", partial, parameters)
            status = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, env=environment()).returncode
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if status:
            print(f"table and figures: FAILED: {lines[-1] if lines else status}")
            return 1
        executed = json.loads(partial.read_bytes())
        executed["metadata"]["depth_lib"] = {"made_from": source}
        write_together({notebook: json.dumps(executed, indent=1, ensure_ascii=False).encode()})
        partial.unlink()
    for warning in sorted({match[0] for line in lines if (match := re.search(r"Warning: .*", line))}):
        print(warning)
    print(f"table and figures: done, {' '.join(str(out / name) for name in TABLES)}")
    return 0


def _source(plan: Plan, parameters: dict) -> str:
    """A hash of all that a table is made from: names, sizes and times of the results and of the notebook, and its
    parameters; "" if that cannot be known, as of what is on the Hub."""
    folders = [Path(plan.folder), *map(Path, plan.beside)]
    if not all(folder.is_dir() for folder in folders):
        return ""
    results = [path for folder in folders for kind in ("*/*/*.pt", "runs.parquet") for path in folder.glob(kind)]
    stats = {str(path): path.stat() for path in sorted([*results, NOTEBOOKS / "effective_depth.ipynb"])}
    files = [(name, there.st_size, there.st_mtime_ns) for name, there in stats.items()]
    return hashlib.sha256(json.dumps([files, parameters]).encode()).hexdigest()


def _made_from(notebook: Path) -> str | None:
    try:
        return json.loads(notebook.read_bytes())["metadata"]["depth_lib"]["made_from"]
    except (OSError, ValueError, KeyError):
        return None


def _shared(other: str) -> Path:
    from ..results.shared import shared_folder  # loads torch

    return shared_folder(other)


def _runs_in(folder: Path) -> set[tuple[str, str]]:
    """(dataset, model) of every result in a folder; of the results only names are read."""
    if (folder / "runs.parquet").is_file():
        from ..results.shared import shared_results  # loads torch

        return {(dataset, model) for dataset, model, _ in shared_results(folder)}
    return {path.parts[-3:-1] for path in folder.glob("*/*/*.pt") if _is_result(path)}


def _is_result(path: Path) -> bool:
    try:
        return bool(parse_name(path))
    except ArtifactError:  # somebody else's file
        return False
