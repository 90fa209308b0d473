"""probe.ipynb by papermill on a server: the local numbers, one line a job, and nothing secret in what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from tests.remote.loopback.fixture import KEY, hurried, loopback  # noqa: F401 (fixtures)

ROOT = Path(dl.__file__).parent.parent


@pytest.fixture(scope="module")
def executed(loopback, tmp_path_factory):  # noqa: F811
    """(the executed notebook's cells, its folder of results, requests the server saw)"""
    folder = tmp_path_factory.mktemp("notebook")
    parameters = {
        "MODEL": "Hosted",
        "MODEL_ID": "loopback/toy-4l",
        "REMOTE": loopback.host,
        "DATASET": "gsm8k",
        "N_EXAMPLES": 2,
        "SOURCE": "embedded",
        "OUT": str(folder / "outputs"),
    }
    arguments = [part for name, value in parameters.items() for part in ("-p", name, str(value))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "JUPYTER"))}
    environment |= {
        "HOME": str(folder / "home"),
        "HF_ENDPOINT": loopback.host,
        "NDIF_API_KEY": KEY,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    since = len(loopback.asked()["log"])
    command = [
        sys.executable,
        "-m",
        "papermill",
        "--kernel",
        "python3",
        "--no-progress-bar",
        "--start-timeout",
        "300",
        str(ROOT / "notebooks" / "probe.ipynb"),
        "executed.ipynb",
        *arguments,
    ]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    cells = json.loads((folder / "executed.ipynb").read_text())["cells"]
    return cells, folder / "outputs" / "gsm8k" / "Hosted", loopback.requests("POST", "/request", since)


def test_the_notebook_leaves_the_local_numbers(executed, loopback):  # noqa: F811
    _, results, jobs = executed
    assert len(jobs) == 6  # one a probe, and layer effects in two modes
    here = loopback.here("loopback/toy-4l")
    prompts = dl.load_prompts("gsm8k", 2, source="embedded")
    stored = dl.load_artifact(results / "logitlens_2exps.pt")
    for key, value in dl.logit_lens(here, prompts).items():
        assert torch.equal(stored[key], value)
    assert len(list(results.glob("*.pt"))) == 5
    assert not list(results.glob("*.job"))


def test_the_notebook_shows_one_line_a_job_and_no_spinner(executed):
    cells, _, jobs = executed
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    lines = [
        text
        for output in outputs
        if "data" in output
        if ": done at http://" in (text := "".join(output["data"].get("text/plain", "")))
    ]
    assert len(lines) == len(jobs)
    streams = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    assert "\r" not in streams and "QUEUED" not in streams and "%|" not in streams


def test_the_key_is_nowhere_in_what_the_notebook_leaves(executed):
    cells, results, _ = executed
    assert KEY not in json.dumps(cells)
    for file in results.parent.parent.parent.rglob("*"):
        if file.is_file():
            assert KEY.encode() not in file.read_bytes(), file
