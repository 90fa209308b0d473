"""The commands that messages name as the next step: of make in a clone, of `depth-lib` where there is none."""

import shlex
from pathlib import Path

from ..data.pairs import DRAWN_PAIRS, PAIRS
from ..params import INSTALLED, dataset_names
from .schemas import pair_of


def makes(path: str | Path) -> str:
    """The command that computes the results of an artifact's folder, about the same question."""
    pair = pair_of(path)
    own = {"QUESTION": "…", "ANSWER": "…"} if pair and pair not in (*PAIRS, *DRAWN_PAIRS) else {"PAIR": pair}
    return sweep_command(Path(path).parent, **own)


def sweep_command(run: str | Path, **variables: str) -> str:
    """The command that computes the results of one folder `out/dataset/model`, with further variables of make."""
    if Path(run).name == "linear_maps":
        return "make maps SOURCE_MODEL=… TARGET_MODEL=…"
    model, dataset, out = Path(run).name, Path(run).parent.name, Path(run).parent.parent
    if dataset not in dataset_names():
        return f"what wrote {dataset}, which depth_lib does not know (it makes {', '.join(dataset_names())})"
    elsewhere = "" if out.absolute() == Path("outputs").absolute() else str(out)
    return command("sweep", **{"MODELS": model, "DATASETS": dataset, "OUT": elsewhere, **variables})


def command(target: str, **variables: str) -> str:
    """A target of make with those of its variables that are not empty; of `depth-lib` where there is no clone."""
    given = {name: value for name, value in variables.items() if value}
    if INSTALLED:
        words = [f"--{name.lower().replace('_', '-')}={value}" for name, value in given.items()]
    else:
        words = [f"{name}={value}".replace("$", "$$") for name, value in given.items()]
    return " ".join(["depth-lib" if INSTALLED else "make", target, *map(shlex.quote, words)])
