"""A cluster's scheduler before each run's command; runs are stand-ins (study.py)."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sweep import slurm as real_slurm
from tests.sweep.study import ENVIRONMENT, ROOT, calls_in, needs_make, start_make

pytestmark = [needs_make, pytest.mark.slow]
SWEEP = ("sweep", "SET=demo")
TOY_4L = ("MODELS=toy-4l", "OUT=outputs/demo")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if not real_slurm.available:
        pytest.skip("needs root, slurm-wlm and munge")
    with real_slurm.slurm(Path(tmp_path_factory.mktemp("slurm"))) as environment:
        yield {key: environment[key] for key in ("SLURM_CONF",)}


def test_a_run_that_slurm_cancels_or_refuses_says_so_and_is_repeated(make, study, slurm):
    launch = "LAUNCH=srun --job-name=long"
    sweep = start_make(study, "-k", *SWEEP, *TOY_4L, "DATASETS=gsm8k", launch, TAKES="60", **slurm)
    while not calls_in(study):
        time.sleep(0.1)
    subprocess.run(["scancel", "--name=long"], env=ENVIRONMENT | slurm, check=True)
    printed, _ = sweep.communicate(timeout=60)
    word = r"gsm8k × toy-4l: stopped by the scheduler \(.*(STEP.* CANCELLED AT|Job step aborted)"
    assert sweep.returncode != 0 and re.search(word, printed), printed
    refused = make(*SWEEP, *TOY_4L, "DATASETS=gsm8k", "LAUNCH=srun --gres=gpu:9", **slurm)
    assert "FAILED: srun: error: " in refused.stdout and refused.calls == []
    assert make(*SWEEP, *TOY_4L, "DATASETS=gsm8k", "LAUNCH=srun", **slurm).returncode == 0


def test_a_term_signal_reaches_the_job_on_the_cluster(make, study, slurm):
    launch = "LAUNCH=srun --job-name=term"
    sweep = start_make(study, *SWEEP, *TOY_4L, "DATASETS=gsm8k", launch, TAKES="60", **slurm)
    while not calls_in(study):
        time.sleep(0.1)
    sweep.terminate()
    printed, _ = sweep.communicate(timeout=60)
    assert "stopped by SIGTERM" in printed
    for _ in range(100):
        queue = subprocess.run(["squeue", "-h"], env=ENVIRONMENT | slurm, capture_output=True, text=True).stdout
        if not queue:
            break
        time.sleep(0.1)
    assert queue == "", "nothing goes on computing"


@pytest.mark.timeout(600)
def test_the_job_array_of_the_documentation_does_each_run_and_goes_on_after_its_time_limit(study, command, slurm):
    """Slurm itself lets a task that was put back into the queue wait for two minutes."""
    (study / "gate").touch()
    block = re.search(r"## Slurm\n.*?```\n(.*?)```", (ROOT / "docs/sweeps.md").read_text(), re.DOTALL)[1]
    sweep = f"{sys.prefix}/bin/depth-lib sweep --set demo --datasets gsm8k"
    *lines, _ = block.replace("depth-lib sweep", sweep).splitlines()
    environment = ENVIRONMENT | slurm | {"PYTHONPATH": str(study / "stand_in")}
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=study, env=environment, check=True)

    def queue(*words):
        return subprocess.run(["squeue", "-h", *words], env=environment, capture_output=True, text=True).stdout.split()

    while not calls_in(study):
        time.sleep(0.5)
    task = queue("--states=RUNNING", "--format=%A")[0]
    subprocess.run(["scancel", "--batch", "--signal=USR1", task], env=environment, check=True)
    while queue("--jobs", task, "--format=%T") != ["PENDING"]:
        time.sleep(0.5)
    (study / "gate").unlink()
    while queue():
        time.sleep(0.5)
    assert {call["MODEL"] for call in calls_in(study)} == {"toy-4l", "toy-8l", "toy-16l"}
    assert re.search("1 run left.*done in", "".join(log.read_text() for log in study.glob("slurm-*.out")), re.DOTALL)
    assert "outputs/demo: 15 of 15 done" in command("status").output
