"""A bar for who watches."""

import subprocess
import sys

from depth_lib.progress import LOG, steps, ticked

NOTEBOOK_WITHOUT_WIDGETS = """
import sys
import ipykernel.zmqshell
sys.modules["ipywidgets"] = None
import depth_lib.progress
"""


def test_a_notebook_without_ipywidgets_is_not_told_so():
    done = subprocess.run([sys.executable, "-c", NOTEBOOK_WITHOUT_WIDGETS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_piped_has_no_bar_and_all_its_items(capfd):
    assert list(steps(range(3), "logit lens")) == [0, 1, 2]
    with ticked("gradients") as tick:
        tick(0.5)
    assert capfd.readouterr().err == ""


def test_shares_that_add_up_to_less_than_1_by_rounding_finish_a_bar(tmp_path, monkeypatch):
    log = tmp_path / "probe.log"
    log.touch()
    monkeypatch.setenv(LOG, str(log))
    with ticked("gradients") as tick:
        for _ in range(6):
            tick(1 / 6)
    assert tick.__self__.n == 1 > sum([1 / 6] * 6)


def test_on_a_terminal_a_bar_moves(capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert list(steps(["a", "b"], "logit lens")) == ["a", "b"]
    assert "logit lens:   0%" in capfd.readouterr().err
    assert list(steps(["a"], "logit lens")) == ["a"] and capfd.readouterr().err == "", "a single one has none"
