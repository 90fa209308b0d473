"""A notebook's cells in this process, without a kernel: python -m tests.cells quickstart"""

import json
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def run_cells(name, **parameters):
    """Run a notebook's code cells but the first, which installs the package, with these parameters for those of its
    parameters cell; its variables."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    variables = {"__name__": "__main__"}  # as in a kernel
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells[1:], 1):
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), variables)
        if "parameters" in cell["metadata"].get("tags", ()):
            variables |= parameters
    return variables


if __name__ == "__main__":
    run_cells(sys.argv[1])
