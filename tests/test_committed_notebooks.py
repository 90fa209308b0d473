"""The notebooks as they are committed: valid, without outputs, short, and with parameters that are explained."""

import nbformat

from depth_lib.params import PARAMETERS
from tests.notebooks import NOTEBOOKS, code_cells, every_notebook


@every_notebook
def test_a_committed_notebook_is_valid_and_carries_no_outputs(name):
    nbformat.validate(NOTEBOOKS[name])
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(NOTEBOOKS[name]))


@every_notebook
def test_a_committed_notebook_names_the_kernel_and_the_language_that_papermill_needs(name):
    metadata = NOTEBOOKS[name].metadata
    assert metadata.kernelspec == {
        "name": "python3",
        "display_name": metadata.kernelspec.display_name,
        "language": "python",
    }
    assert metadata.language_info.name == "python"


@every_notebook
def test_a_notebook_has_one_parameters_cell_with_a_comment_on_every_line(name):
    (cell,) = code_cells(NOTEBOOKS[name], "parameters")
    assert all("  # " in line for line in cell.source.splitlines())


@every_notebook
def test_code_cells_are_short_since_they_call_the_library(name):
    for cell in code_cells(NOTEBOOKS[name]):
        assert len(cell.source.splitlines()) <= 12 or "parameters" in cell.metadata.get("tags", []), cell.source


def test_what_the_probe_notebook_writes_is_what_the_table_reads_where_nobody_says_otherwise():
    cells = (code_cells(NOTEBOOKS[name], "parameters")[0].source for name in ("probe", "effective_depth"))
    folders = [line.split("#")[0] for cell in cells for line in cell.splitlines() if line.startswith("OUT = ")]
    assert len(folders) == 2 and len(set(folders)) == 1


def test_the_probe_notebook_takes_exactly_the_names_of_a_params_file():
    (cell,) = code_cells(NOTEBOOKS["probe"], "parameters")
    assert [line.split(" = ")[0] for line in cell.source.splitlines()] == list(PARAMETERS)
