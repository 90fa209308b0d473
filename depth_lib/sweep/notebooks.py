"""The notebooks that a sweep executes, and how: papermill in a process of its own, with this environment's kernel."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..params import INSTALLED

# A clone keeps notebooks/ beside the package, an installed wheel carries it inside.
NOTEBOOKS = Path(__file__).parents[1 if INSTALLED else 2] / "notebooks"


def execution(name: str, output: str | Path, parameters: Mapping) -> list[str]:
    """The command that executes the notebook of this name with these parameters, and writes it to `output`."""
    papermill = [sys.executable, "-m", "papermill", "--kernel", "python3", "--no-progress-bar", "--log-output"]
    given = json.dumps(dict(parameters), ensure_ascii=False)  # which is YAML too
    notebook = nearby(NOTEBOOKS / f"{name}.ipynb")
    return [*papermill, "--start-timeout", "300", str(notebook), str(output), "-y", given]


def environment(threads: int | None = None) -> dict[str, str]:
    """The environment of such a command: a kernelspec in the user's home must not win over the environment's own."""
    kept = {key: value for key, value in os.environ.items() if key != "JUPYTER_PATH"}
    return kept | {"JUPYTER_PREFER_ENV_PATH": "1"} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def nearby(path: Path) -> Path:
    """The path as people write it, relative to the working directory where it is below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
