"""The processes behind a sweep: signals, kills and two sweeps; what is said is in sessions/."""

import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from depth_lib.embedded import toy_path
from depth_lib.run import Run
from depth_lib.sweep import cli, execute
from depth_lib.sweep.execute import NOTEBOOKS, Notebook, why_failed
from tests.marks import slow
from tests.sweep.study import ENVIRONMENT, ROOT, calls_in, new_study, start

ONE = ("sweep", "--set", "demo", "--models", "toy-4l", "--datasets", "gsm8k", "--probes", "logit_lens")


@pytest.fixture
def study(tmp_path):
    return new_study(tmp_path)


def until(state):
    end = time.monotonic() + 120
    while not state():
        assert time.monotonic() < end
        time.sleep(0.05)


def notebooks(study):
    """The processes that execute this study's notebooks."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or ()
        if process.info["cwd"] == str(study) and "--parameters_yaml" in words:
            yield process


@pytest.mark.parametrize("number", [slow(signal.SIGTERM), slow(signal.SIGINT), signal.SIGKILL])
def test_a_notebook_ends_with_its_sweep_however_that_ends_and_the_next_sweep_goes_on(study, number):
    (study / "gate").touch()
    sweep = start(study, ".venv/bin/depth-lib", *ONE)
    until(lambda: calls_in(study))
    (notebook,) = notebooks(study)
    os.kill(sweep.pid, number)
    said, _ = sweep.communicate(timeout=60)
    notebook.wait(60)
    assert number == signal.SIGKILL or "stopped; finished results are kept" in said
    (study / "gate").unlink()
    again = start(study, ".venv/bin/depth-lib", *ONE[:-2], "--probes", "logit_lens", "--list")
    assert "depth-lib run toy-4l gsm8k" in again.communicate(timeout=60)[0]


@pytest.mark.slow
def test_two_sweeps_do_not_execute_the_same_run_and_the_second_says_who_holds_it(study):
    (study / "gate").touch()
    first = start(study, ".venv/bin/depth-lib", *ONE)
    until(lambda: calls_in(study))
    second = start(study, ".venv/bin/depth-lib", *ONE)
    line = next(line for line in second.stdout if "holds" in line)
    assert f"gsm8k × toy-4l: process {first.pid} on " in line and line.endswith("waiting for it\n")
    assert len([*notebooks(study)]) == 1
    second.kill()
    second.wait()
    first.terminate()
    first.communicate(timeout=60)


def test_status_imports_no_torch(study):
    shutil.copytree(toy_path("toy-4l"), study / "mine")
    code = "import sys; from depth_lib.sweep.cli import main; main(['status', '--set', 'demo'])\n"
    code += "main(['status', '--models', './mine', '--source', 'embedded'])\n"
    code += "assert not {'torch', 'numpy', 'pandas', 'transformers', 'nnsight'} & set(sys.modules)"
    how = {"cwd": study, "env": ENVIRONMENT | {"PYTHONPATH": str(ROOT)}, "capture_output": True}
    subprocess.run([sys.executable, "-c", code], check=True, **how)


def test_a_disk_that_is_full_is_named_where_neither_notebook_nor_log_can_say_so(tmp_path, monkeypatch, capsys):
    notebook = Notebook("gsm8k × toy-4l", "probe", tmp_path, {}, tmp_path / "lock", lambda: ["logit_lens"])
    notebook.child = SimpleNamespace(returncode=1)
    (tmp_path / "probe.log").write_text('  File "papermill/execute.p')
    for free, said in (
        (2**12, f"the disk of {tmp_path} is full; free up space, or set a different OUT"),
        (2**30, "File"),
    ):
        monkeypatch.setattr(execute.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert not notebook.ended() and said in capsys.readouterr().out


@pytest.mark.slow
def test_papermill_names_no_parameter_of_a_run_as_unknown(tmp_path):
    words = [NOTEBOOKS / "probe.ipynb", tmp_path / "out.ipynb", "--prepare-only", "--parameters_yaml", "SEED: 5"]
    how = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}  # it lives as long as its stdin
    with subprocess.Popen([sys.executable, "-c", execute.PAPERMILL, *words], **how) as papermill:
        said = papermill.stderr.read()
    assert "SEED = 5" in (tmp_path / "out.ipynb").read_text() and "Input Notebook" in said
    assert "unknown parameter" not in said


def test_an_interrupt_before_anything_runs_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(Run, "__init__", lambda *given: signal.raise_signal(signal.SIGINT))
    assert cli.main(["status", "--set", "demo"]) == 130
    assert capsys.readouterr().err.strip() == "stopped; rerun the command to resume"


@pytest.mark.parametrize("last", ["[IPKernelApp] WARNING | Parent appears to have exited.", "Ending Cell 19----------"])
def test_a_kernel_whose_papermill_was_killed_was_interrupted(tmp_path, last):
    (tmp_path / "probe.log").write_text(f"loading\n{last}\n")
    assert why_failed(tmp_path / "probe.partial.ipynb") == "it was interrupted"
