"""A folder like a clone for tests of sweeps, whose environment runs this Python and a stand-in for papermill.

The stand-in writes down how it was called and leaves files of the papers' names with the metadata of a run and no
tensors; it takes TAKES seconds for each, and as long as there is a file gate; with a file fail-<MODEL> it fails.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from depth_lib.sweep import cli
from depth_lib.sweep.status import status_of

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
ROOT = Path(__file__).parents[2]
OUTER = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "OMP_NUM_THREADS")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in OUTER} | {"LC_ALL": "C"}

DEMO = ("--set", "demo")
TOY_4L = ("--models", "toy-4l", "--out", "outputs/demo")

STAND_IN = """
import json, os, time, zipfile
from pathlib import Path

from depth_lib.results.provenance import why_stale
from depth_lib.sweep.spec import RunSpec


class PapermillExecutionError(Exception):
    def __init__(self, ename, evalue):
        self.ename, self.evalue = ename, evalue


def execute_notebook(notebook, output, given, **_):
    call = {"notebook": notebook, "output": output, "threads": os.environ.get("OMP_NUM_THREADS"), **given}
    call |= {name.lower(): os.environ.get(name) for name in ("LAUNCHED", "CUDA_VISIBLE_DEVICES")}
    with open("calls.jsonl", "a") as calls:
        calls.write(json.dumps(call) + "\\n")
    if output:  # of the first rank
        Path(output).write_text(json.dumps({"cells": [], "metadata": {"papermill": {"parameters": given}}}))
    if "TAKES" in os.environ:
        print("FAILED: DeadKernelError, as when a signal ends a kernel", flush=True)
        time.sleep(float(os.environ["TAKES"]))
    while Path("gate").exists():
        time.sleep(0.02)
    if Path(f"fail-{given.get('MODEL')}").exists():
        raise PapermillExecutionError("RuntimeError", "no luck; remove the file\\nand more")
    for probe in Path("fail-probe").read_text().split() if Path("fail-probe").exists() else ():
        given["PROBES"].remove(probe)
        print(f"failed: {probe}: ValueError: texts are too short.")
    if notebook.endswith("effective_depth.ipynb"):
        for name in ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html"):
            Path(given["OUT"], name).write_text("table")
        return
    asked = RunSpec(given)
    for probe in given["PROBES"]:
        path = asked.path(probe)
        meta = asked.provenance(probe) | {"version": 1}
        if why_stale(path, meta) and not Path("idle").exists():
            with zipfile.ZipFile(path, "w") as stored:
                stored.writestr("archive/meta.json", json.dumps(meta))
"""


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
    (folder / "stand_in" / "papermill.py").write_text(STAND_IN)
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
    """depth-lib in a study, in this process: what it said, its exit status, and how papermill was called."""

    def __init__(self, study, monkeypatch, capsys):
        self.study, self._capsys = study, capsys
        monkeypatch.chdir(study)
        monkeypatch.setenv("PYTHONPATH", str(study / "stand_in"))

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

    def runs_of(self, *words):
        """The runs that `depth-lib status` shows, by dataset and model."""
        _, plan, _ = cli.parse(["status", *map(str, words)])
        return {(run.dataset, run.params["MODEL"]): asdict(status_of(run)) for run in plan.runs()}


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
