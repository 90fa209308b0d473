"""The first cell of a notebook installs the package on Colab, from where the notebook came, and nothing elsewhere."""

import importlib.util
import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import SList

from tests.notebooks import NOTEBOOKS, code_cells, every_notebook


@pytest.fixture
def colab(monkeypatch):
    monkeypatch.setenv("COLAB_JUPYTER_IP", "172.28.0.12")
    monkeypatch.setenv("KMP_TARGET_PORT", "9000")


def sessions(opened):
    """What Colab's server says of the one notebook that is open."""
    return json.dumps([{"path": opened}])


def run_first_cell(monkeypatch, answer, installed, name="quickstart", owner="OWNER"):
    """What the first cell of a notebook, with this owner, asks pip for; answer(command): what a command prints."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    shell, asked = InteractiveShell(), []
    shell.register_magic_function(asked.append, "line", "pip")
    if answer is not None:
        shell.getoutput = lambda command, **_: SList([answer(os.path.expandvars(command))])
    shell.run_cell(code_cells(NOTEBOOKS[name])[0].source.replace("/OWNER/depth", f"/{owner}/depth")).raise_error()
    return asked


def opened(path):
    return {"curl --silent 172.28.0.12:9000/api/sessions": sessions(path)}.__getitem__


GITHUB = "fileId=https%3A%2F%2Fgithub.com%2Fsomebody%2Fdepth_lib%2Fblob%2Fmain%2Fnotebooks%2Fquickstart.ipynb"
GIST = "fileId=https%3A%2F%2Fgist.github.com%2Fsomebody%2F0123abcd"
LONE = pytest.mark.parametrize("path", ["fileId=1aBcD", GIST, "quickstart.ipynb"])


@every_notebook
def test_on_colab_the_first_cell_installs_the_package_from_the_repository_it_was_opened_from(colab, monkeypatch, name):
    asked = run_first_cell(monkeypatch, opened(GITHUB), installed=False, name=name)
    assert asked == ["install --quiet git+https://github.com/somebody/depth_lib@main"]


@every_notebook
@LONE
def test_on_colab_a_lone_file_or_gist_installs_what_its_first_cell_says(colab, monkeypatch, name, path):
    asked = run_first_cell(monkeypatch, opened(path), installed=False, name=name, owner="me")
    assert asked == ["install --quiet git+https://github.com/me/depth_lib"]


@every_notebook
@LONE
def test_on_colab_a_first_cell_that_nobody_edited_says_what_to_write_and_asks_pip_for_nothing(
    colab, monkeypatch, capsys, name, path
):
    with pytest.raises(SystemExit, match="^write where depth_lib is .* in the line package = …, and run this again$"):
        run_first_cell(monkeypatch, opened(path), installed=False, name=name)
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here, as there is on Colab")
@pytest.mark.parametrize("listening", [True, False])
def test_the_first_cell_asks_colabs_server_itself_and_does_without_an_answer(monkeypatch, listening):
    class Sessions(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/api/sessions" else 404)
            self.end_headers()
            self.wfile.write(sessions(GITHUB).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Sessions) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("COLAB_JUPYTER_IP", "127.0.0.1")
        monkeypatch.setenv("KMP_TARGET_PORT", str(server.server_address[1]) if listening else "9")
        asked = run_first_cell(monkeypatch, None, installed=False, owner="me")
        server.shutdown()
    assert asked == [
        f"install --quiet git+https://github.com/{'somebody/depth_lib@main' if listening else 'me/depth_lib'}"
    ]


@every_notebook
def test_the_first_cell_installs_nothing_elsewhere(monkeypatch, name):
    monkeypatch.delenv("COLAB_JUPYTER_IP", raising=False)
    assert run_first_cell(monkeypatch, opened(GITHUB), installed=False, name=name) == []


@every_notebook
def test_the_first_cell_installs_nothing_where_the_package_is_there(colab, monkeypatch, name):
    assert run_first_cell(monkeypatch, opened(GITHUB), installed=True, name=name) == []
