"""How long the five probes take, beside three other ways of getting the same numbers: `make bench`.

by hand: transformers and hooks alone, as one writes them; literal: nnsight traces, as the papers' scripts run them;
unavoidable: the matrix products that cannot be left out, at the rate that this machine has for their shapes.
Variables of the environment, such as `make bench BENCH=real DTYPE=bfloat16`:

BENCH         the model, of shapes.SHAPES, or "real"; "small" by default
BENCH_DEVICE  cpu or cuda
DTYPE         float32 or bfloat16
PROBES        part of the names of the probes to measure; all without it
LAYERS        so many layers of the other ways' erasure and gradients, scaled up; all without it
DOCS          a page whose part between <!-- measured --> and <!-- end --> becomes the table

The table of docs/speed.md is written by `make bench BENCH=real LAYERS=4 DOCS=docs/speed.md`, on a machine that does
nothing else.
"""

import os
import re
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched here
import torch  # noqa: E402

from benchmarks.markdown import markdown  # noqa: E402
from benchmarks.run import measure  # noqa: E402
from benchmarks.shapes import REAL, model_of  # noqa: E402
from benchmarks.workloads import workloads  # noqa: E402


def main(shape="small", device="cpu", dtype="float32", probes="", n_layers=None, size="few", rounds=3):
    """The table, under what it was measured with."""
    llm = model_of(shape, device, getattr(torch, dtype))
    rows = []
    for name, workload in workloads(llm, REAL if shape == REAL else size).items():
        if probes in name:
            row = measure(llm, workload, device, n_layers, rounds)
            rows.append({"probe": name} | {key: f"{value:.2g}" for key, value in row.items()})
            print(rows[-1], flush=True)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    facts = f"{shape}, {dtype}, {name}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    return "\n".join([facts, "", *markdown(rows), ""])


def write_docs(page, table):
    """Put the table between the two marks of a page."""
    marked = re.compile("(<!-- measured -->\n).*(<!-- end -->)", re.DOTALL)
    text, n = marked.subn(lambda marks: marks[1] + table + marks[2], page.read_text(encoding="utf-8"))
    if n != 1:
        raise SystemExit(f"{page} has no part between <!-- measured --> and <!-- end -->; add both lines")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    given = os.environ.get
    model = given("BENCH", "small"), given("BENCH_DEVICE", "cpu"), given("DTYPE", "float32")
    table = main(*model, given("PROBES", ""), int(given("LAYERS", 0)) or None)
    print(table)
    if given("DOCS"):
        write_docs(Path(given("DOCS")), table)
