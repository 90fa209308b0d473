"""Import, probes and runs of notebooks touch no name that only POSIX has; sweeps are tested on Linux."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Run in a fresh Python, in which the package finds what Windows has, and other packages what there is.
CODE = """
import os, signal, sys, types

LACKS = {"pwrite", "getuid", "geteuid", "sched_getaffinity", "O_DIRECTORY", "killpg", "setsid", "fork", "uname"}
LACKS |= {"SIGHUP", "SIGKILL", "SIGALRM"}

class Windows(types.ModuleType):
    def __getattribute__(self, name):
        if name in LACKS and sys._getframe(1).f_globals.get("__name__", "").startswith("depth_lib"):
            raise AttributeError(name)
        return super().__getattribute__(name)

os.__class__ = signal.__class__ = Windows
import depth_lib as dl
from depth_lib.sweep.run import Run
import depth_lib.figures, depth_lib.model_maps.maps, depth_lib.report.page
from depth_lib.sweep.cli import main

cell = {"MODEL": "toy-4l", "N_EXAMPLES": 2, "PROBES": ["logit_lens"], "OUT": sys.argv[1]}
assert Run(cell).result("logit_lens")["res_kl_divs"].shape == (4,)
assert main(["status", "--models", "toy-4l", "--datasets", "gsm8k", "--out", sys.argv[1]]) == 0
assert not {"fcntl", "resource"} & {name for room in sys.modules if room.startswith("depth_lib")
                                    for name in vars(sys.modules[room])}
try:
    eval("os.fork", {"os": os, "__name__": "depth_lib.some_module"})
    sys.exit("names that Windows lacks are found")
except AttributeError:
    pass
"""


@pytest.mark.slow
def test_import_probes_runs_and_status_need_no_name_that_windows_lacks(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CODE, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
