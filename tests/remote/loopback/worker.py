"""The process that has the models: NDIF's own actor, in process and in its sandbox, without Ray and GPUs around it.

Started by server.py with the number of a pipe; see actor.py. The sandbox's runners are forks of a process that has
imported what they need, 0.3 s each instead of five, and this file is their main module too. Neither can import the
package under test.
"""

import multiprocessing
import runpy
import sys
from multiprocessing.connection import Connection

ABSENT = {"depth_lib", "tests"}


class Absent:
    """What is not installed where the model is, whatever this interpreter could find."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
sys.modules["rfc3987_syntax"] = None  # as in tests/conftest.py


def run_module(module, *argv):
    """python -m module …"""
    sys.argv[1:] = argv
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def forked(argv, **_):
    """Instead of subprocess.Popen([python, "-m", module, …])."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ndif.services.ray.sandbox.nns"])
    process = context.Process(target=run_module, args=argv[2:], daemon=True)
    process.start()
    process.poll, process.wait = lambda: process.exitcode, process.join
    return process


if __name__ == "__main__":
    import actor

    actor.main(Connection(int(sys.argv[1])), forked)
