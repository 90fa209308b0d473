"""How long the five probes take, beside three other ways of getting the same numbers.

by hand: transformers and hooks alone, as one writes them; literal: nnsight traces, as the papers' scripts run them;
floor: the matrix products that cannot be avoided, at the rate that this machine has for their shapes.
Every option can also be set in the environment: `make bench BENCH=real DTYPE=bfloat16`. The table of docs/speed.md is
written by `make bench BENCH=real LAYERS=4 DOCS=docs/speed.md`, on a machine that does nothing else.
"""

import argparse
import os
import platform
import re
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched here
import pandas as pd  # noqa: E402
import torch  # noqa: E402

from tests.benchmarks.run import measure  # noqa: E402
from tests.benchmarks.shapes import REAL, SHAPES, model_of  # noqa: E402
from tests.benchmarks.workloads import SIZES, workloads  # noqa: E402


def options(arguments=None):
    """The options, from the command line or else the environment."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])

    def add(option, variable, default, about, kind=str, choices=None):
        value = os.environ.get(variable) or default
        parser.add_argument(option, type=kind, default=value, choices=choices, help=f"{variable}: {about}")

    add("--shape", "BENCH", "small", "the model", choices=[*SHAPES, REAL])
    add("--device", "BENCH_DEVICE", "cpu", "where it runs", choices=["cpu", "cuda"])
    add("--dtype", "DTYPE", "float32", "its precision", choices=["float32", "bfloat16"])
    add("--size", "SIZE", "few", "random prompts; those of the real model are fixed", choices=[*SIZES])
    add("--probes", "PROBES", "", "words in the names of probes, separated by semicolons; all if empty")
    add("--layers", "LAYERS", "0", "layers of the rivals' erasure and gradients, scaled up; 0 is all", int)
    add("--repeats", "REPEATS", "3", "rounds", int)
    add("--patience", "PATIENCE", "90", "seconds after which no further round starts", float)
    add("--threads", "THREADS", "2", "threads of the CPU", int)
    add("--out", "OUT", "outputs/bench", "folder of bench.md and bench.csv")
    add("--docs", "DOCS", "", "a page whose part between <!-- measured --> and <!-- end --> is written anew")
    asked = parser.parse_args(arguments)
    if asked.shape not in (*SHAPES, REAL):  # argparse does not check defaults
        parser.error(f"no model is called {asked.shape!r}; there are: {', '.join(SHAPES)}, {REAL}")
    return asked


def chosen(names, words):
    """The names that contain one of the words, separated by semicolons; all without words."""
    words = [word.strip().replace("_", " ") for word in words.split(";") if word.strip()]
    return [name for name in names if not words or any(word in name for word in words)]


def processor():
    """What the CPU calls itself."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def page_of(rows, asked, digits=3):
    """The table in Markdown, under what it was measured with."""
    device = torch.cuda.get_device_name() if asked.device == "cuda" else processor()
    facts = f"{asked.shape}, {asked.dtype}, {device}, {asked.threads} threads, load {os.getloadavg()[0]:.1f}"
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    for row in rows:
        cells = [f"{cell:.{digits}g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([f"{facts}, torch {torch.__version__}", "", *lines, ""])


DOCUMENTED = {"ours, s": "seconds", "by hand, s": "by hand, s", "× by hand": "× by hand", "× literal": "× literal"}
DOCUMENTED |= {"ours / floor": "ours / unavoidable"}


def write_docs(page, rows, asked):
    """Replace the measured part of a page by a table of `DOCUMENTED` columns."""
    shown = [{"probe": row["probe"]} | {name: row[key] for key, name in DOCUMENTED.items()} for row in rows]
    measured = f"<!-- measured -->\n{page_of(shown, asked, digits=2)}<!-- end -->"
    old = page.read_text(encoding="utf-8")
    new, n = re.subn("<!-- measured -->.*<!-- end -->", lambda _: measured, old, flags=re.DOTALL)
    if n != 1:
        raise SystemExit(f"{page} has no part between <!-- measured --> and <!-- end -->; add both lines")
    page.write_text(new, encoding="utf-8")


def main(arguments=None):
    asked = options(arguments)
    torch.set_num_threads(asked.threads)
    llm = model_of(asked.shape, asked.device, getattr(torch, asked.dtype))
    makers = workloads(llm, REAL if asked.shape == REAL else asked.size)
    rows = []
    for name in chosen(makers, asked.probes):
        row = measure(llm, makers[name], asked.device, asked.repeats, asked.patience, asked.layers)
        rows.append({"probe": name, **row})
        print(f"{name}: {row['ours, s']:.3g} s, {row['× by hand']:.2f} × by hand", flush=True)
    if not rows:
        raise SystemExit(f"no probe is called {asked.probes!r}; there are: {'; '.join(makers)}")
    page, folder = page_of(rows, asked), Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / "bench.csv", index=False)
    (folder / "bench.md").write_text(page, encoding="utf-8")
    if asked.docs:
        write_docs(Path(asked.docs), rows, asked)
    print(page)


if __name__ == "__main__":
    main()
