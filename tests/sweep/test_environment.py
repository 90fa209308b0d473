"""What make installs, from which pins, and what a wheel carries."""

import os
import time
import tomllib

from tests.sweep.study import ROOT, needs_make, script

pytestmark = needs_make


def test_the_environment_is_made_from_the_pins_and_again_when_they_change(make, study):
    asked = ("-n", "test", "VENV=fresh")
    printed = make(*asked).stdout
    assert "python3 -m venv fresh" in printed and "fresh/bin/python -m pip install" in printed
    assert printed.index("-r requirements.txt") < printed.index("--no-deps --editable .") < printed.index("-m pytest")
    (study / "fresh").mkdir(exist_ok=True)
    (study / "fresh" / ".depth-lib-installed").touch()
    assert "pip install" not in make(*asked).stdout
    os.utime(study / "requirements.txt", (time.time() + 5,) * 2)
    assert "-r requirements.txt" in make(*asked).stdout
    os.utime(study / "requirements.txt", (0, 0))


def test_clean_keeps_results_and_trained_toys(make, study):
    kept = [study / "build/training/toy-1/step.pt", study / "outputs/demo/gsm8k/toy-4l/logitlens_10exps.pt"]
    gone = [study / "build/lib/depth_lib/api.py", study / "other/bin/python"]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert make("clean", "VENV=other").returncode == 0
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)


def test_what_the_notebooks_need_is_pinned_exactly_and_asked_for_by_the_package():
    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[:1] not in ("", "#")]
    assert all(line.count("==") == 1 for line in pins)
    assert "torch==2.13.0" in pins, "given plainly, so that pip may choose the build for the machine"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {line.split(">=")[0] for line in project["dependencies"] + extras["sweep"] + extras["report"]}
    assert asked - {"depth-lib[report]"} <= {line.split("==")[0] for line in pins}


def test_a_python_that_is_too_old_is_refused_by_name(make, study):
    old = script(study / "old-python", '#!/bin/sh\ncase "$1" in -V) echo Python 3.9.1;; *) exit 1;; esac\n')
    printed = make("test", "VENV=other", f"PYTHON={old}")
    assert printed.returncode != 0 and "needs Python 3.11 to 3.13, not Python 3.9.1" in printed.stdout
    assert not (study / "other").exists()
