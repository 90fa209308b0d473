"""CONTRIBUTING.md is true: a throw-away probe with its figure goes into the places that it names, and no other."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import depth_lib as dl

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

PROBE = '''"""How long the residual stream is: the mean over tokens of ‖h_l‖."""

import torch
from nnsight import TransformersModel

from ..data.tokens import tokenize
from ..models.check import verified_arch
from ..residual.stream import residuals
from ..results.means import token_means
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def stream_length(llm: TransformersModel, prompts: list[str], remote: bool | str = False) -> Result:
    """Mean norm of what enters each block, `length` [L].

    >>> llm = dl.load_model("toy-4l")
    >>> dl.stream_length(llm, ["5 + 7"])["length"].shape
    torch.Size([4])

    - llm: from `load_model`
    - prompts: list of strings
    - remote: True for NDIF, or the address of a server

    Returns float32 means over tokens, then prompts:

    - length [L]: ‖h_l‖, l = 0..L − 1
    - length_sums [P, L], n_tokens [P]: each prompt's sum, and its tokens

    Raises ValueError for a prompt without tokens.
    Source: Csordás et al. 2025, Figure 2.
    Cost: a forward pass per prompt.
    """
    arch, ids = verified_arch(llm), tokenize(llm, prompts)
    sums = run(measure_stream_length, llm, arch, ids, remote=remote, over="prompts")
    return Result("stream_length", token_means(sums))


def measure_stream_length(llm, arch, prompts):
    """Sums over each prompt's tokens of ‖h_l‖, `length_sums` [P, L], and `n_tokens` [P]."""
    sums = []
    for ids in prompts:
        h = residuals(llm, arch, ids)[:-1]
        lengths = [x.float().norm(dim=-1).sum() for x in h]
        sums.append(torch.stack([x.to(h[-1].device) for x in lengths]).cpu())  # one wait for the device
    n_tokens = torch.tensor([len(ids) for ids in prompts], dtype=torch.float32)
    return {"length_sums": torch.stack(sums), "n_tokens": n_tokens}
'''
SCHEMA = """
    "stream_length": Schema("stream_length", "L: length"),
"""
KIND = """    "stream_length": Kind(
        "stream_length", {"length": ""}, "Length of the stream", "What enters each block, mean norm.", "Norm"
    ),
"""
# The places that the section "Add a probe" names, and what goes there: (what it stands behind, what is added).
PLACES = {
    "probes/<name>.py": (None, PROBE),
    "results/schemas.py": ("ARTIFACTS = {\n", SCHEMA),
    "figures/kinds.py": ("KINDS: dict[str, Kind] = {\n", KIND),
}


def named_in(section):
    """The files of the package that a section's list names."""
    listed = re.search(rf"## {section}\n.*?\n((?:\d\. .*\n(?:   .*\n)*)+)", TEXT, re.S)[1]
    return re.findall(r"^\d\. `([^`]+)`", listed, re.M)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the project with the throw-away probe in exactly the places that CONTRIBUTING.md names."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "depth_lib", folder / "depth_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for kept in ("params", "notebooks"):
        shutil.copytree(ROOT / kept, folder / kept)
    for place in named_in("Add a probe"):
        behind, added = PLACES[place]
        path = folder / "depth_lib" / place.replace("<name>", "stream_length")
        source = path.read_text(encoding="utf-8") if behind else ""
        assert behind is None or source.count(behind) == 1
        path.write_text(source.replace(behind, behind + added) if behind else added, encoding="utf-8")
    return folder


def run(house, *command):
    environment = os.environ | {"PYTHONPATH": str(house), "JUPYTER_PREFER_ENV_PATH": "1"}
    done = subprocess.run([sys.executable, *command], cwd=house, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_probe_is_one_file_and_two_rows(house):
    assert named_in("Add a probe") == list(PLACES)


@pytest.fixture(scope="module")
def swept(house):
    """The folder of results that a sweep of the new probe leaves, and how it was asked for."""
    asked = ("--models", "toy-4l", "--datasets", "gsm8k", "--source", "embedded", "--probes", "stream_length")
    asked += ("--out", "outputs")
    run(house, "-m", "depth_lib", "sweep", *asked)
    return house / "outputs/gsm8k/toy-4l", asked


@pytest.mark.slow
def test_the_new_probe_is_public_and_right(house, swept):
    run(house, "-c", "import depth_lib as dl; assert 'stream_length' in dir(dl)")
    found = torch.load(swept[0] / "stream_length.pt")
    known = dl.relative_contribution(dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 10, source="embedded"))
    torch.testing.assert_close(found["length"], known["norm_residual"][:-1])


@pytest.mark.slow
def test_a_sweep_runs_it_its_notebook_draws_it_and_status_knows_it(house, swept):
    folder, asked = swept
    assert (folder / "stream_length.pt").is_file()
    assert (folder / "probe.ipynb").read_text().count('"image/png"') == 1
    assert re.match(r"dataset +model +stream\n +length\n", run(house, "-m", "depth_lib", "status", *asked))
