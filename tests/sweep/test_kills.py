"""Ten real kills of a sweep of toys, each continued: the same tensors, nothing computed twice, no process left."""

import hashlib
import shutil
import signal
import time

import nbformat
import psutil
import pytest
import torch

import depth_lib as dl
from depth_lib.embedded import toy_path
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.run import Run
from tests.sweep.study import ROOT, new_study, start

PROBES = ("relative_contribution", "logit_lens", "residual_erasure", "answer_lens", "direct_effects")
SWEEP = ("sweep", "--models", "./mine", "--datasets", "gsm8k", "--n-examples", "2", "--source", "embedded")
# who is killed, how, and when: once it runs, or once there is one result more
KILLS = [
    ("sweep", signal.SIGTERM, "runs"),
    ("papermill", signal.SIGKILL, "runs"),
    ("sweep", signal.SIGKILL, "runs"),
    ("kernel", signal.SIGKILL, "runs"),
    ("kernel", signal.SIGKILL, "result"),
    ("sweep", signal.SIGKILL, "runs"),
    ("papermill", signal.SIGTERM, "runs"),
    ("papermill", signal.SIGKILL, "runs"),
    ("sweep", signal.SIGTERM, "runs"),
    ("sweep", signal.SIGKILL, "result"),
]


@pytest.fixture
def study(tmp_path):
    """A clone with the notebook of a run; the table's is empty."""
    folder = new_study(tmp_path)
    shutil.copy(ROOT / "notebooks/probe.ipynb", folder / "notebooks")
    shutil.copytree(toy_path("toy-4l"), folder / "mine")
    empty = nbformat.v4.new_notebook(metadata=nbformat.read(ROOT / "notebooks/probe.ipynb", 4).metadata)
    nbformat.write(empty, folder / "notebooks/effective_depth.ipynb")
    yield folder
    for process in processes(folder, 0)["any"]:
        process.kill()


def processes(study, sweep):
    """The processes of this sweep by kind, and all that run in this folder."""
    found = {"sweep": [], "papermill": [], "kernel": [], "any": []}
    for process in psutil.process_iter(["cmdline", "cwd", "pid", "status"]):
        if process.info["cwd"] is None or not process.info["cwd"].startswith(str(study)):
            continue
        words = " ".join(process.info["cmdline"] or ())
        found["any"].append(process)
        if process.pid == sweep:
            found["sweep"].append(process)
        elif "--parameters_yaml" in words:
            found["papermill"].append(process)
        elif "ipykernel" in words:
            found["kernel"].append(process)
    return found


def results(study):
    """The results that are whole, by path: a hash of each file, and when it was written."""
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in study.glob("outputs/*/*/*.pt")
    }


def until(state, seconds=120):
    end = time.monotonic() + seconds
    while not (found := state()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)  # under a minute where nothing else runs
def test_a_sweep_that_is_killed_ten_times_leaves_the_same_tensors_and_no_process(study):
    words = (*SWEEP, "--probes", ",".join(PROBES))
    sweeps, before = [], {}

    def running():
        """The sweep that runs; another one if it has ended, and nothing of it is left."""
        if not sweeps or sweeps[-1].poll() is not None:
            until(lambda: not processes(study, 0)["any"])
            sweeps.append(start(study, ".venv/bin/depth-lib", *words, REAL="1", OMP_NUM_THREADS="1"))
        return sweeps[-1]

    def ready(who, when):
        """What is killed next; None if it does not run yet."""
        pid = running().pid
        found = processes(study, pid)[who] if when == "runs" or len(results(study)) > len(before) else []
        return found[0] if found else None

    for who, number, when in KILLS:
        before = results(study)
        victim = until(lambda who=who, when=when: ready(who, when))
        victim.send_signal(number)
        victim.wait(60)
        after = results(study)
        assert {path: after[path] for path in before} == before, "a whole result was computed again"
    if sweeps[-1].poll() is None:
        sweeps[-1].communicate(timeout=120)
    last = running()
    said, _ = last.communicate(timeout=120)
    assert "outputs: 1 of 1 runs finished" in said and last.returncode == 0, said
    until(lambda: not processes(study, 0)["any"])
    final = results(study)
    assert {path: final[path] for path in after} == after
    given = {"MODEL": str(study / "mine"), "DATASET": "gsm8k", "SOURCE": "embedded", "N_EXAMPLES": 2, "PROBES": PROBES}
    run = Run(given | {"OUT": str(study / "outputs")})
    assert run.lacking == []
    for probe in PROBES:
        stored, computed = run.result(probe), plain(run, probe)
        tensors = [key for key, value in computed.items() if isinstance(value, torch.Tensor)]
        assert tensors and all(torch.equal(stored[key], computed[key]) for key in tensors), probe


def plain(run, probe):
    """The result of the public function alone."""
    if ARTIFACTS[probe].of_pair:
        baseline = [run.prompts] * (probe == "residual_erasure")
        return getattr(dl, probe)(run.llm, run.pair.question, run.pair.answer, *baseline)
    return getattr(dl, probe)(run.llm, run.prompts)
