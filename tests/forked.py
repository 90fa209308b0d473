"""Processes that are forked from one which has imported the package and computed nothing, since torch's threads do not
survive a fork: they are there at once, where a fresh Python imports torch and nnsight for seconds."""

import inspect
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import ipykernel.kernelapp
import nnsight  # noqa: F401 (here and below: so that it is there)
import pandas  # noqa: F401

import depth_lib.api
import depth_lib.models.load
import depth_lib.report.table
import depth_lib.session
import depth_lib.sweep.run  # noqa: F401

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__])


class Kernel:
    """A notebook's kernel for jupyter_client, which takes it for the Popen of the kernel's command."""

    stdin = stdout = stderr = None

    def __init__(self, command, env, cwd=None, **_):
        leads = processes.Event()
        given = command[command.index("-m") + 1 :], dict(env), str(cwd or Path.cwd()), leads
        self.process = processes.Process(target=_kernel, args=given, daemon=True)
        self.process.start()
        self.pid = self.process.pid
        assert leads.wait(60), "or a signal to its group would reach this process"

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _kernel(words, environment, folder, leads):
    os.setsid()
    leads.set()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for name, value in list(vars(depth_lib).items()):  # a fresh Python has no room that nobody imported
        if inspect.ismodule(value) and value.__name__ == f"depth_lib.{name}":
            delattr(depth_lib, name)
    sys.argv = words
    ipykernel.kernelapp.launch_new_instance()
