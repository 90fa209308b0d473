"""A cluster's job array does the runs of a list; runs are stand-ins (study.py)."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sweep import slurm as real_slurm
from tests.sweep.study import ENVIRONMENT, ROOT, calls_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if not real_slurm.available:
        pytest.skip("needs root, slurm-wlm and munge")
    with real_slurm.slurm(Path(tmp_path_factory.mktemp("slurm"))) as environment:
        yield {key: environment[key] for key in ("SLURM_CONF",)}


@pytest.mark.timeout(600)
def test_the_job_array_of_the_documentation_does_each_run_and_goes_on_after_its_time_limit(study, command, slurm):
    """Slurm itself lets a task that was put back into the queue wait for two minutes, unless it is told not to."""
    (study / "gate").touch()
    block = re.search(r"## Slurm\n.*?```bash\n(.*?)```", (ROOT / "docs/sweeps.md").read_text(), re.DOTALL)[1]
    sweep = f"{sys.prefix}/bin/depth-lib sweep --set demo --datasets gsm8k"
    lines = block.replace("depth-lib sweep", sweep).splitlines()
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
    subprocess.run(["scontrol", "update", f"JobId={task}", "StartTime=now"], env=environment, check=True)
    (study / "gate").unlink()
    while queue():
        time.sleep(0.5)
    assert {call["MODEL"] for call in calls_in(study)} == {"toy-4l", "toy-8l", "toy-16l"}
    assert re.search("1 run left.*done in", "".join(log.read_text() for log in study.glob("slurm-*.out")), re.DOTALL)
    assert "outputs/demo: 15 of 15 done" in command("status").output
