"""`make sweep SET=ndif REMOTE=1` for real: its own params, its own notebook, a server that knows Llama by its name."""

import contextlib
import json
import os
import shutil
import signal

import psutil
import pytest

import depth_lib as dl
from tests.remote.conditions import same
from tests.remote.loopback.fixture import KEY
from tests.sweep.study import ENVIRONMENT, ROOT, new_study, run_make, start_make

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("make") is None, reason="needs make")]
SWEEP = (
    "sweep",
    "SET=ndif",
    "REMOTE=1",
    "MODELS=Llama-3.1-8B",
    "DATASETS=gsm8k",
    "SOURCE=embedded",
    "PROBES=relative_contribution logit_lens",
)
REAL = "-"  # the study's Python runs papermill itself, not its stand-in


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = new_study(tmp_path_factory.mktemp("study"))
    for name in ("probe", "effective_depth"):
        shutil.copy(ROOT / f"notebooks/{name}.ipynb", folder / "notebooks")
    return folder


@pytest.fixture
def ndif(loopback, tmp_path, monkeypatch):
    """The variables of a user of this server; the Hub is the server's too."""
    for name in [name for name in ENVIRONMENT if name.startswith(("HF_", "XDG_"))]:
        monkeypatch.delitem(ENVIRONMENT, name)
    return {
        "HOME": str(tmp_path),
        "HF_ENDPOINT": loopback.host,
        "NDIF_HOST": loopback.host,
        "NDIF_API_KEY": KEY,
        "REAL": REAL,
        "OMP_NUM_THREADS": "1",
    }


def journals(results):
    return [json.loads(file.read_text()) for file in results.glob("*.job/*.json")]


def kill(make):
    """kill -9 of make and of all that it started, the notebook's kernel too."""
    family = psutil.Process(make.pid).children(recursive=True)
    os.killpg(make.pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    make.communicate()


def test_a_killed_sweep_goes_on_with_the_job_that_runs_and_ends_with_the_local_numbers(loopback, study, ndif):
    results = study / "outputs" / "gsm8k" / "Llama-3.1-8B"
    with loopback.faults(hold="RUNNING") as submitted:
        first = start_make(study, *SWEEP, **ndif)
        loopback.until(lambda: loopback.is_running() and any(entry["job_id"] for entry in journals(results)))
        kill(first)
        (left,) = journals(results)
        assert (left["state"], left["host"], submitted()) == ("submitted", loopback.host, 1)
        loopback.switch()
        second = run_make(study, *SWEEP, **ndif)
        assert second.returncode == 0, second.stdout + second.stderr
        assert submitted() == 2, "one job a probe, and none twice"
        assert "1 of 1 runs finished" in run_make(study, *SWEEP, **ndif).stdout and submitted() == 2
    here = loopback.here("meta-llama/Llama-3.1-8B")
    prompts = dl.load_prompts("gsm8k", 10, source="embedded")
    for name, probe in (("logitlens_10exps", dl.logit_lens), ("relative_contribution", dl.relative_contribution)):
        stored = dl.load_artifact(results / f"{name}.pt")
        assert stored.pop("meta")["where"] == f"NDIF {loopback.host}"
        same(stored, probe(here, prompts))
    assert not list(results.glob("*.job"))
    written = [path for path in results.iterdir() if path.is_file()]
    assert {"probe.ipynb", "probe.log"} <= {path.name for path in written}
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
