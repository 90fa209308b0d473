"""A folder like a clone for tests of the Makefile, whose environment runs this Python and a stand-in for papermill.

The stand-in writes down how it was called and leaves files of the papers' names with the metadata of a run; it takes
TAKES seconds for each, and fails where a file fail-<MODEL> is.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
ROOT = Path(__file__).parents[2]
OUTER = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "OMP_NUM_THREADS")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in OUTER} | {"LC_ALL": "C"}

SWEEP = ("sweep", "SET=demo")
TOY_4L = ("MODELS=toy-4l", "OUT=outputs/demo")

STAND_IN = """
import json, os, pickle, sys, time, types, yaml, zipfile
from pathlib import Path

package = sys.modules["depth_lib"] = types.ModuleType("depth_lib")
package.__path__ = ["depth_lib"]
from depth_lib.results.provenance import differing, read_meta
from depth_lib.sweep.spec import OfflineSpec

words, given = iter(sys.argv[1:]), {}
plain = []
for word in words:
    if word == "-f":
        given |= yaml.safe_load(Path(next(words)).read_text())
    elif word == "-y":
        given |= yaml.safe_load(next(words))
    elif word in ("-r", "-p"):
        key, value = next(words), next(words)
        given[key] = {"True": True, "False": False}.get(value, value) if word == "-p" else value
    elif word in ("--kernel", "--start-timeout"):
        next(words)
    elif not word.startswith("--"):
        plain.append(word)
notebook, output = plain
call = {"notebook": notebook, "output": output, "threads": os.environ.get("OMP_NUM_THREADS"), **given}
call |= {name.lower(): os.environ.get(name) for name in ("LAUNCHED", "DEPTH_LIB_JOBS", "CUDA_VISIBLE_DEVICES")}
with open("calls.jsonl", "a") as calls:
    calls.write(json.dumps(call) + "\\n")
out = Path(given["OUT"])
Path(output).write_text(json.dumps({"cells": [], "metadata": {"papermill": {"parameters": given}}}))
time.sleep(float(os.environ.get("TAKES", 0)))
if Path(f"fail-{given.get('MODEL')}").exists():
    error = {"output_type": "error", "ename": "RuntimeError", "evalue": "no luck; remove the file\\nand more"}
    Path(output).write_text(json.dumps({"cells": [{"outputs": [error]}]}))
    sys.exit("Traceback\\nRuntimeError: no luck; remove the file\\nsrun: error: task 0: Exited with exit code 1\\n")
if notebook.endswith("effective_depth.ipynb"):
    for name in ("effective_depth.xlsx", "effective_depth.csv", "effective_depth.tex", "report.html"):
        (out / name).write_text("table")
else:
    asked = OfflineSpec({"SOURCE": "embedded"} | given)
    for probe in given["PROBES"]:
        path, meta = asked.paths[probe], asked.provenance(probe) | {"probe": probe, "seconds": 1.5}
        if differing(read_meta(path)[0], meta) and not Path("idle").exists():
            with zipfile.ZipFile(path, "w") as stored:
                stored.writestr("result/data.pkl", pickle.dumps({"meta": meta}, protocol=2))
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
    done.runs = sorted((call["DATASET"], call["MODEL"]) for call in done.calls if "MODEL" in call)
    return done


def clean(study):
    """Without results, and with nothing that makes a run fail."""
    for path in (*study.glob("fail-*"), study / "idle", study / "calls.jsonl"):
        path.unlink(missing_ok=True)
    shutil.rmtree(study / "outputs", ignore_errors=True)


def status(make, *arguments):
    """The runs of `make status FORMAT=json`, by dataset and model."""
    said = make("status", "FORMAT=json", *arguments)
    assert said.returncode == 0, said.stderr
    return {(run["dataset"], run["model"]): run for run in json.loads(said.stdout)["runs"]}


def left_over(folder):
    """Files that a finished sweep does not leave."""
    kept = {"probe.ipynb", "probe.log"}
    return [path.name for path in folder.glob("*/*/*") if path.name not in kept and path.suffix != ".pt"]
