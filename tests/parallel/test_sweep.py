"""Sweeps of runs on two ranks: killed, they end soon with a line; repeated, with the numbers of one process."""

import subprocess
import sys
import time

import psutil
import pytest
import torch

from tests.notebooks import ROOT
from tests.parallel import test_tensor_parallel  # noqa: F401 (skips where the pins cannot)

pytestmark = pytest.mark.timeout(900)  # four kernels and their models, twice, beside other tests
PROBES = ("relative_contribution", "logit_lens", "layer_effects")
FILES = ("relative_contribution.pt", "logitlens_2exps.pt", "layer_effects_2exps.pt")
MODELS = ("toy-4l", "toy-8l")


def sweep(out, ranks=2, **how):
    """The process of a sweep over two toys."""
    words = ["--models", *MODELS, "--datasets", "gsm8k", "--out", str(out), "--probes", *PROBES]
    given = [f"TENSOR_PARALLEL={ranks}", "N_EXAMPLES=2", "SOURCE=embedded"]
    words += [f"--{parameter}" for parameter in given]
    command = [sys.executable, "-m", "depth_lib.sweep", "sweep", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)


def results(out):
    return {(model, name): torch.load(out / "gsm8k" / model / name) for model in MODELS for name in FILES}


def assert_equal(out, truth):
    """The results in this folder are those of one process, up to the rounding of sums in another order."""
    measured = results(out)
    for run, expected in truth.items():
        for key, value in expected.items():
            if isinstance(value, torch.Tensor):
                tolerance = 5e-5 * value.abs().max().clamp_min(1e-6)
                assert (measured[run][key] - value).abs().max() <= tolerance, f"{run}: {key}"


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """What runs of one process give."""
    out = tmp_path_factory.mktemp("alone")
    process = sweep(out, ranks=1)
    printed, _ = process.communicate(timeout=400)
    assert process.returncode == 0, printed
    return results(out)


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
def test_a_killed_sweep_ends_soon_and_repeated_gives_the_numbers_of_one_process(tmp_path, truth, victim, says):
    process = sweep(tmp_path)
    while not (tmp_path / "gsm8k/toy-4l" / FILES[0]).exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    victim(process).kill()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and says in printed
    again = sweep(tmp_path)
    printed, _ = again.communicate(timeout=400)
    assert again.returncode == 0, printed
    assert_equal(tmp_path, truth)
    assert not list(tmp_path.rglob("*.part"))
