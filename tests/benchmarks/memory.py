"""The peak memory of one way of one workload, in a process of its own: `python -m tests.benchmarks.memory …`."""

import argparse
import json
import os
import subprocess
import sys

import depth_lib as dl
from tests.benchmarks import literal
from tests.benchmarks.further import further_workloads, parts, text_and_pair
from tests.benchmarks.measure import peak_memory
from tests.benchmarks.shapes import model_of
from tests.benchmarks.workloads import prompt, workloads


def peak_in_own_process(shape, device, dtype, threads, size, name, way):
    """(peak, loaded model before it) in bytes, in a fresh process; way: "ours" or "literal", of parts "extended" or
    "part".

    glibc gives every tensor pages of its own: what its heap keeps of freed ones differs by 60 MiB from run to run.
    """
    asked = json.dumps([shape, device, dtype, threads, size, name, way])
    command = [sys.executable, "-m", "tests.benchmarks.memory", asked]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**18)}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return json.loads(answer.splitlines()[-1])


def main(asked):
    import torch

    shape, device, dtype, threads, size, name, way = json.loads(asked)
    torch.set_num_threads(threads)
    llm = model_of(shape, device, getattr(torch, dtype))
    for warm_up in (dl.relative_contribution, literal.relative_contribution):  # what is loaded once is nobody's
        warm_up(llm, [prompt(16, seed=0)])
    print(json.dumps(peak_memory(_way(llm, size, name, way), device)))


def _way(llm, size, name, way):
    """What is run."""
    if way in ("extended", "part"):
        return parts(llm, *text_and_pair(llm, size))[name][("extended", "part").index(way)]
    workload = (workloads(llm, size) | further_workloads(llm, size))[name]()
    return workload.ours if way == "ours" else lambda: workload.literal(workload.peak_parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", help="[shape, device, dtype, threads, size, workload, way] as JSON")
    main(parser.parse_args().asked)
