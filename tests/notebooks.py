"""The notebooks as they are committed."""

from pathlib import Path

import nbformat
import papermill
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


def execute_quickstart():
    """Write quickstart.ipynb anew with its outputs, as it is committed: python -m tests.notebooks"""
    path = ROOT / "notebooks/quickstart.ipynb"
    notebook = papermill.execute_notebook(path, None, kernel_name="python3", progress_bar=False)
    for name in ("papermill", "widgets"):
        notebook.metadata.pop(name, None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            bars = "application/vnd.jupyter.widget-view+json"
            cell.outputs = [
                out for out in cell.outputs if out.get("name") != "stderr" and bars not in out.get("data", {})
            ]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    execute_quickstart()
