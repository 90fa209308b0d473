"""The peak memory of one way of one workload, in a process of its own: `python -m tests.benchmarks.memory …`."""

import argparse
import json
import subprocess
import sys

import depth_lib as dl
from tests.benchmarks import literal
from tests.benchmarks.further import further_workloads
from tests.benchmarks.measure import peak_memory
from tests.benchmarks.shapes import model_of
from tests.benchmarks.workloads import prompt, workloads


def peak_in_own_process(shape, device, dtype, threads, size, name, way):
    """(peak, loaded model before it) in bytes, in a fresh process; way: "ours" or "literal"."""
    asked = json.dumps([shape, device, dtype, threads, size, name, way])
    command = [sys.executable, "-m", "tests.benchmarks.memory", asked]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(answer.splitlines()[-1])


def main(asked):
    import torch

    shape, device, dtype, threads, size, name, way = json.loads(asked)
    torch.set_num_threads(threads)
    llm = model_of(shape, device, getattr(torch, dtype))
    for warm_up in (dl.relative_contribution, literal.relative_contribution):  # what is loaded once is nobody's
        warm_up(llm, [prompt(16, seed=0)])
    workload = (workloads(llm, size) | further_workloads(llm, size))[name]()
    run = workload.ours if way == "ours" else lambda: workload.literal(workload.peak_parts)
    print(json.dumps(peak_memory(run, device)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("asked", help="[shape, device, dtype, threads, size, workload, way] as JSON")
    main(parser.parse_args().asked)
