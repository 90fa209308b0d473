"""The notebooks as they are committed."""

from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import papermill
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from IPython.display import display

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


def executed_here(name, **parameters):
    """A notebook with what its cells print and display, run in this process, with these parameters for its own."""
    notebook, shell = deepcopy(NOTEBOOKS[name]), InteractiveShell.instance()
    shell.display_pub = shown = CapturingDisplayPublisher()
    shell.display_trap.hook = lambda value: None if value is None else display(value)
    shell.register_magic_function(lambda line: None, magic_name="matplotlib")
    select_figure_formats(shell, {"png"})
    plt.close("all")
    for cell in code_cells(notebook):
        with redirect_stdout(StringIO()) as said:
            shell.run_cell(cell.source).raise_error()
        for number in plt.get_fignums():  # as a kernel shows them
            display(plt.figure(number))
        plt.close("all")
        if "parameters" in cell.metadata.get("tags", []):
            shell.push(parameters)
        text = nbformat.v4.new_output("stream", text=said.getvalue())
        cell.outputs = [text, *(nbformat.v4.new_output("display_data", one["data"]) for one in shown.outputs)]
        shown.outputs.clear()
    InteractiveShell.clear_instance()
    return notebook


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
