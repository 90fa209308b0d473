"""The first cell of a notebook installs the package where it is not there, such as on Colab, and nothing elsewhere."""

import importlib.util

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.notebooks import NOTEBOOKS, code_cells, every_notebook


@every_notebook
@pytest.mark.parametrize("installed", [True, False])
def test_the_first_cell_installs_the_package_where_it_is_not_there(monkeypatch, name, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: object() if installed else None)
    shell, calls = InteractiveShell(), []
    shell.register_magic_function(calls.append, "line", "pip")
    shell.run_cell(code_cells(NOTEBOOKS[name])[0].source).raise_error()
    assert len(calls) == (not installed)
    assert installed or calls[0].startswith('install -q "depth-lib[') and "git+https://github.com/" in calls[0]
