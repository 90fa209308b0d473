"""Sweeps of runs on two ranks: killed, they end soon with a line; repeated, with the numbers of one process."""

import subprocess
import sys
import time

import psutil
import pytest
import torch

import depth_lib as dl
from tests.notebooks import ROOT
from tests.parallel import test_tensor_parallel  # noqa: F401 (skips where the pins cannot)

pytestmark = pytest.mark.timeout(900)  # two kernels and their models, twice, beside other tests
PROBES = {"relative_contribution": "relative_contribution.pt", "layer_effects": "layer_effects_2exps.pt"}


def sweep(out):
    """The process of a sweep on two ranks."""
    words = ["--models", "toy-4l", "--datasets", "gsm8k", "--out", str(out), "--probes", *PROBES]
    words += ["--TENSOR_PARALLEL=2", "--N_EXAMPLES=2", "--SOURCE=embedded"]
    command = [sys.executable, "-m", "depth_lib.sweep", "sweep", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def launcher(process):
    """torchrun, which starts the ranks."""
    children = psutil.Process(process.pid).children(recursive=True)
    return next(child for child in children if "torch.distributed.run" in child.cmdline())


def kernel(process):
    """The kernel of rank 1's notebook."""
    (rank,) = [child for child in launcher(process).children() if child.environ()["RANK"] == "1"]
    return rank.children()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim, says",
    [(kernel, "toy-4l: FAILED: rank 1: DeadKernelError: killed by SIGKILL"), (launcher, "toy-4l: FAILED")],
)
def test_a_killed_sweep_ends_soon_and_repeated_gives_the_numbers_of_one_process(tmp_path, victim, says):
    process, folder = sweep(tmp_path), tmp_path / "gsm8k/toy-4l"
    while not (folder / PROBES["relative_contribution"]).exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    victim(process).kill()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and says in printed
    again = sweep(tmp_path)
    printed, _ = again.communicate(timeout=400)
    assert again.returncode == 0, printed
    assert not list(tmp_path.rglob("*.part"))
    llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 2, source="embedded")
    for probe, file in PROBES.items():
        measured = torch.load(folder / file)
        for key, value in getattr(dl, probe)(llm, prompts).items():  # up to the rounding of sums in another order
            tolerance = 5e-5 * value.abs().max().clamp_min(1e-6)
            assert (measured[key] - value).abs().max() <= tolerance, f"{probe}: {key}"
