"""In place of papermill in tests of sweeps: notes how it was called, and leaves results without tensors.

It takes TAKES seconds, and as long as there is a file gate; with a file fail-<MODEL> it fails, with a file idle it
leaves nothing, and with a file fail-probe the probes named there fail.
"""

import json
import os
import time
import zipfile
from itertools import product
from pathlib import Path

from depth_lib.results.asked import RunSpec
from depth_lib.results.schemas import RANDOM
from depth_lib.sweep.table import TABLES

KEPT = ("REVISION", "DTYPE", "QUANTIZATION", "N_EXAMPLES", "SOURCE", "SEED")


class PapermillExecutionError(Exception):
    def __init__(self, ename, evalue):
        super().__init__(evalue)
        self.ename, self.evalue = ename, evalue


def execute_notebook(notebook, output, given, **_):
    call = {"notebook": notebook, "output": output, "threads": os.environ.get("OMP_NUM_THREADS"), **given}
    call["cuda_visible_devices"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    with open("calls.jsonl", "a") as calls:
        calls.write(json.dumps(call) + "\n")
    if output:  # of the first rank
        book = {"nbformat": 4, "nbformat_minor": 5, "cells": [], "metadata": {"papermill": {"parameters": given}}}
        Path(output).write_text(json.dumps(book))
    if "TAKES" in os.environ:
        print("FAILED: DeadKernelError, as when a signal ends a kernel", flush=True)
        time.sleep(float(os.environ["TAKES"]))
    while Path("gate").exists():
        time.sleep(0.02)
    if Path(f"fail-{given.get('MODEL')}").exists():
        raise PapermillExecutionError("RuntimeError", "no luck; remove the file\nand more")
    failed = Path("fail-probe").read_text().split() if Path("fail-probe").exists() else []
    for probe in failed:
        print(f"failed: {probe}: ValueError: texts are too short.")
    if notebook.endswith("effective_depth.ipynb"):
        for name in TABLES:
            Path(given["OUT"], name).write_text("table")
        return
    asked = RunSpec(given)
    for probe, changed in [*product(given["PROBES"], [{}]), *product(asked.controls, [RANDOM])]:
        path, meta = asked.path(probe, **changed), asked.provenance(probe, **changed) | {"version": 1}
        meta |= {name.lower(): value for name, value in asked.params.items() if name in KEPT}
        if probe not in failed and asked.state(probe, **changed).word != "done" and not Path("idle").exists():
            with zipfile.ZipFile(path, "w") as stored:
                stored.writestr("archive/meta.json", json.dumps(meta))
