"""A folder like a clone for tests of sweeps, whose environment runs this Python and stand_in.py as papermill."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from depth_lib.sweep import cli
from depth_lib.sweep.processes import Notebook
from tests.sweep import stand_in

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
ROOT = Path(__file__).parents[2]
OUTER = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "OMP_NUM_THREADS")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in OUTER} | {"LC_ALL": "C"}

DEMO = ("--set", "demo")
TOY_4L = ("--models", "toy-4l", "--out", "outputs/demo")


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def new_study(folder):
    """Make it in this folder."""
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "params", folder / "params")
    (folder / "depth_lib").symlink_to(ROOT / "depth_lib")
    (folder / "notebooks").mkdir()
    for name in ("probe", "effective_depth"):
        (folder / "notebooks" / f"{name}.ipynb").write_text("template")
    (folder / "stand_in").mkdir()
    shutil.copy(ROOT / "tests/sweep/stand_in.py", folder / "stand_in" / "papermill.py")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "gpus").mkdir()
    script(folder / "gpus" / "nvidia-smi", "#!/bin/sh\nprintf '%s\\n' $FAKE_GPUS\n")
    script(
        folder / ".venv" / "bin" / "python",
        f"#!/bin/sh\npython={sys.executable}\n"
        f'[ -n "$REAL" ] || export PYTHONPATH={folder}/stand_in\nexec "$python" "$@"\n',
    )
    (folder / ".venv" / ".depth-lib-installed").touch()
    return folder


def start_make(study, *arguments, **variables):
    """make there, in a process group of its own."""
    return subprocess.Popen(
        ["make", *arguments],
        cwd=study,
        env=ENVIRONMENT | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def calls_in(study):
    """How papermill was called there since the last `clean`, as far as it is known."""
    calls = study / "calls.jsonl"
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def run_make(study, *arguments, **variables):
    """make there: what it said, its exit status, and how papermill was called."""
    (study / "calls.jsonl").unlink(missing_ok=True)
    done = subprocess.run(["make", *arguments], cwd=study, env=ENVIRONMENT | variables, capture_output=True, text=True)
    done.calls = calls_in(study)
    return done


class Command:
    """depth-lib in a study, in this process: what it said, its exit status, and how papermill was called.

    Notebooks are executed in this process too, one after the other, unless `spawns`.
    """

    def __init__(self, study, monkeypatch, capsys, spawns):
        self.study, self._capsys = study, capsys
        monkeypatch.chdir(study)
        monkeypatch.setenv("PYTHONPATH", str(study / "stand_in"))
        if not spawns:
            monkeypatch.setattr(Notebook, "start", execute_here)

    def __call__(self, *words):
        (self.study / "calls.jsonl").unlink(missing_ok=True)
        self._capsys.readouterr()
        try:
            self.status, self.error = cli.main([str(word) for word in words]), ""
        except SystemExit as ended:
            self.status, self.error = 1, str(ended)
        self.output, usage = self._capsys.readouterr()
        self.error += usage
        self.calls = calls_in(self.study)
        self.runs = sorted((call["DATASET"], call["MODEL"]) for call in self.calls if "MODEL" in call)
        return self


def execute_here(notebook, environment):
    """Execute a notebook by the stand-in at once, and leave the log of its process; the process, ended."""
    done = SimpleNamespace(returncode=0, poll=lambda: done.returncode)
    with notebook.log.open("w") as log, contextlib.redirect_stdout(log), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            stand_in.execute_notebook(f"{notebook.name}.ipynb", str(notebook.partial), notebook.parameters)
        except Exception as error:
            done.returncode = 1
            print(f"FAILED: {getattr(error, 'ename', type(error).__name__)}: {error}".partition("\n")[0])
    return done


def clean(study):
    """Without results, and with nothing that makes a run fail."""
    for path in (*study.glob("fail-*"), *(study / name for name in ("idle", "gate", "calls.jsonl"))):
        path.unlink(missing_ok=True)
    for folder in ("outputs", "params/models/mine"):
        shutil.rmtree(study / folder, ignore_errors=True)


def left_over(folder):
    """Files that a finished sweep does not leave."""
    kept = {"probe.ipynb", "probe.json", "probe.log", ".running"}  # a lock that nobody holds
    return [path.name for path in folder.glob("*/*/*") if path.name not in kept and path.suffix != ".pt"]
