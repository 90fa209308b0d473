"""The notebooks as they are committed: valid, without outputs, short, and with parameters that are explained."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat

from depth_lib.params import FIVE_PROBES, Params, params_files
from depth_lib.results.schemas import ARTIFACTS
from tests.notebooks import NOTEBOOKS, ROOT, code_cells, every_notebook


@every_notebook
def test_a_committed_notebook_is_valid_and_carries_no_outputs_but_quickstarts(name):
    nbformat.validate(NOTEBOOKS[name])
    if name == "quickstart":
        assert (ROOT / "notebooks/quickstart.ipynb").stat().st_size < 2**20
    else:
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


def test_who_plays_in_the_probe_notebook_does_not_write_into_the_demo():
    (cell,) = code_cells(NOTEBOOKS["probe"], "parameters")
    assert 'OUT = "outputs/notebook"' in cell.source


def test_the_probe_notebooks_parameters_are_those_of_params_and_most_are_left_to_the_params_files():
    (cell,) = code_cells(NOTEBOOKS["probe"], "parameters")
    lines = [re.fullmatch(r"(\w+) = (.*)  # (.*)", line).groups() for line in cell.source.splitlines()]
    own = Params().model_dump(include={"MODEL", "DATASET", "OUT", "REMOTE"}) | {"REPLACE": True}
    assert {name: ast.literal_eval(value) for name, value, _ in lines if ast.literal_eval(value) is not None} == own
    assert all(comment == Params.model_fields[name].description for name, _, comment in lines)


def test_the_probe_notebook_names_every_probe_and_every_dataset():
    text = "\n".join(cell.source for cell in NOTEBOOKS["probe"].cells)
    assert {name for name in (*ARTIFACTS, *params_files("datasets")) if name not in text} == set()


def test_the_docs_and_the_commands_help_name_every_probe():
    readme = (Path(__file__).parents[1] / "docs/results.md").read_text()
    said = subprocess.run(
        [sys.executable, "-m", "depth_lib", "sweep", "--help"], capture_output=True, text=True, check=True
    ).stdout
    calls = ("dl.load_examples", "dl.depth_by_difficulty")
    assert all(name in readme for name in calls)
    first_cells = re.findall(r"(?m)^\| (`.*?) \|", readme.partition("## Further probes")[2].partition("\n## ")[0])
    assert set(re.findall(r"\w+", " ".join(first_cells))) == {*ARTIFACTS} - {*FIVE_PROBES}, "what --probes takes"
    assert {name for name in ARTIFACTS if name not in said} == set()
