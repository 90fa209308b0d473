"""papermill in tests of sweeps: notes how it was called, and leaves results without tensors.

It takes TAKES seconds, and as long as there is a file gate. With a file fail-<MODEL> it fails, with a file idle it
leaves no results, and with a file no-kernel its kernel does not start, once.
"""

import json
import os
import sys
import time
from pathlib import Path

import yaml

from depth_lib.run import Run


def papermill():
    """The command papermill: NOTEBOOK OUTPUT --parameters_yaml TEXT …"""
    notebook, output, _, parameters, *_ = sys.argv[1:]
    sys.exit(execute(notebook, output, yaml.safe_load(parameters)))


def execute(notebook, output, given):
    """Execute a notebook; the exit status."""
    call = {"threads": os.environ.get("OMP_NUM_THREADS"), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), **given}
    with open("calls.jsonl", "a") as calls:
        calls.write(json.dumps(call) + "\n")
    if Path("no-kernel").exists():
        Path("no-kernel").unlink()
        print("RuntimeError: Kernel died before replying to kernel_info")
        return 1
    if "TAKES" in os.environ:
        time.sleep(float(os.environ["TAKES"]))
    while Path("gate").exists():
        time.sleep(0.02)
    fails = Path(f"fail-{given.get('MODEL')}").exists()
    error = {"output_type": "error", "ename": "RuntimeError", "evalue": "no luck; remove the file\nand more"}
    error["traceback"] = []
    cell = {"cell_type": "code", "source": "", "metadata": {}, "execution_count": 1, "outputs": [error] * fails}
    Path(output).write_text(json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [cell]}))
    if fails:
        return 1
    if "PROBES" in given and not Path("idle").exists():
        run = Run(given)
        for probe, changed in run.asked.values():
            if not run.is_done(probe, **changed):
                run._note(run.path(probe, **changed), probe)
                run.path(probe, **changed).write_bytes(b"PK\5\6" + bytes(18))  # an empty zip file
    return 0
