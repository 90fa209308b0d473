"""The notebooks as they are committed."""

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def code_cells(notebook, tag=None):
    return [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and (tag is None or tag in cell.metadata.get("tags", []))
    ]


def printed(notebook):
    streams = [out for cell in code_cells(notebook) for out in cell.outputs if out.output_type == "stream"]
    return "".join(out.text for out in streams if out.name == "stdout")


def n_pictures(notebook):
    return sum("image/png" in out.get("data", {}) for cell in code_cells(notebook) for out in cell.outputs)
