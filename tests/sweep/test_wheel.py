"""The wheel alone, in an environment without a clone: its command line computes and ends with a table."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREE = ("depth_lib", "params", "notebooks", "pyproject.toml", "setup.py", "README.md", "LICENSE")
needs_setuptools = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("setuptools", "pip"))), reason="needs setuptools"
)
pytestmark = [needs_setuptools, pytest.mark.slow]


@pytest.fixture(scope="module")
def depth_lib_command(tmp_path_factory):
    """The console script of an environment that has the wheel, and this one's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in TREE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, folder / "dist", folder], check=True)
    venv.create(folder / "env")
    python = folder / "env/bin/python"
    place = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, *(folder / "dist").glob("*.whl")], check=True)
    others = {path for path in sys.path if path.endswith("site-packages")} | {sysconfig.get_path("purelib")}
    (place / "others.pth").write_text("\n".join(sorted(others)))
    for data in ("kernels", "nbconvert"):  # what installing the other packages puts beside their code
        shutil.copytree(Path(sys.prefix) / "share/jupyter" / data, folder / "env/share/jupyter" / data)
    return folder / "env/bin/depth-lib"


def test_a_run_from_the_wheel_ends_with_its_effective_depths_and_its_page(depth_lib_command, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MAKEFLAGS")}

    def depth_lib(*words, status=0):
        done = subprocess.run(
            [depth_lib_command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr
        return (done.stderr if status else done.stdout).splitlines()

    assert "env/bin/depth-lib sweep" in depth_lib("table", status=1)[0]  # it is not on PATH
    lines = depth_lib("run", "toy-4l", "gsm8k", "--source", "embedded")
    assert re.match(r"gsm8k × toy-4l: done in", lines[-4]) and lines[-3] == "outputs: 1 of 1 runs finished"
    assert re.match(r"toy-4l.*gsm8k.*\d\(0\.\d\d\)", lines[-1]), lines
    assert {path.name for path in tmp_path.iterdir()} == {"outputs"}
    assert len(list(tmp_path.glob("outputs/gsm8k/toy-4l/*.pt"))) == 5
    assert depth_lib("status")[-1] == "outputs: 5 of 5 done"
    assert depth_lib("report")[-1].endswith("outputs/report.html")
    assert "Effective depth" in (tmp_path / "outputs/report.html").read_text()
    assert "toy-4l" in (tmp_path / "outputs/effective_depth.csv").read_text()
    lines = depth_lib("run", "toy-4l", "sums", "--source", "embedded")
    assert all("use more depth: by the effect on" in line for line in lines[-2:]), lines
