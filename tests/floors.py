"""The lowest versions that pyproject.toml allows, as pip takes them: python -m tests.floors

torch stays the one that is pinned: an older one brings gigabytes for GPUs.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def floors():
    """Requirement lines "package==lowest" of the package and of what tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_tests = [line for line in project["optional-dependencies"]["dev"] if line.startswith("pytest")]
    asked = [*project["dependencies"], *of_tests]
    lowest = [re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", line).groups() for line in asked]
    (torch,) = re.findall(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return [f"{name}=={torch if name == 'torch' else version}" for name, version in lowest]


if __name__ == "__main__":
    print(*floors(), sep="\n")
