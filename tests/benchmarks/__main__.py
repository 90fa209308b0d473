"""`python -m tests.benchmarks`: measure, print, write. Every option has an environment variable, for `make bench`."""

import argparse
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is built here
import torch  # noqa: E402

from depth_lib.probes.residual_stream import token_budget  # noqa: E402
from tests.benchmarks import maps, table  # noqa: E402
from tests.benchmarks.further import costs_of_parts, further_workloads, text_and_pair  # noqa: E402
from tests.benchmarks.memory import peak_in_own_process  # noqa: E402
from tests.benchmarks.run import compare, doubled, with_less_memory  # noqa: E402
from tests.benchmarks.shapes import REAL, SHAPES, model_of  # noqa: E402
from tests.benchmarks.workloads import workloads  # noqa: E402


def settings(arguments=None):
    """The options, from the command line or else the environment."""
    environment = os.environ.get
    device = environment("BENCH_DEVICE", "cpu")
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default=device, help="BENCH_DEVICE")
    add(
        "--shape",
        choices=[*SHAPES, REAL],
        default=environment("BENCH", "7B" if device == "cuda" else "small"),
        help="BENCH",
    )
    add("--probes", default=environment("PROBES", ""), help="PROBES: words in the names of workloads, parted by ;")
    add("--repeats", type=int, default=int(environment("REPEATS", 3)), help="REPEATS: rounds in turns")
    add("--patience", type=float, default=float(environment("PATIENCE", 90)), help="PATIENCE: s, then no further round")
    add(
        "--literal-parts",
        type=int,
        default=int(environment("LITERAL_PARTS", 0)),
        help="LITERAL_PARTS: prompts or layers of the literal way, scaled up; 0: all (big, 1.5B, 7B: 4)",
    )
    add("--threads", type=int, default=int(environment("THREADS", 2)), help="THREADS of the CPU")
    add("--size", default=environment("SIZE", ""), help="SIZE: few, ten or tiny prompts; default few, on cuda ten")
    add("--no-memory", action="store_true", default=environment("MEMORY") == "0", help="MEMORY=0: not the peak memory")
    add("--no-checks", action="store_true", default=environment("CHECKS") == "0", help="CHECKS=0: nothing is doubled")
    add("--out", default=environment("OUT", "outputs/bench"), help="OUT: folder of bench.md, .csv and .json")
    asked = parser.parse_args(arguments)
    if asked.shape not in (*SHAPES, REAL):  # argparse does not look at what the environment says
        parser.error(f"no shape is called {asked.shape!r}; there are: {', '.join(SHAPES)}, {REAL}")
    if asked.shape == REAL:
        asked.size, asked.no_checks = REAL, True
    asked.size = asked.size or ("ten" if asked.device == "cuda" else "few")
    asked.dtype = "bfloat16" if asked.device == "cuda" else "float32"
    asked.literal_parts = asked.literal_parts or (4 if asked.shape in ("big", "1.5B", "7B") else None)
    return asked


def chosen(names, words):
    """The names that hold one of the words, parted by semicolons; all without words."""
    words = [word.strip().replace("_", " ") for word in words.split(";") if word.strip()]
    return [name for name in names if not words or any(word in name for word in words)]


def measure(asked):
    """(rows, checks) of one run."""
    torch.set_num_threads(asked.threads)
    llm = model_of(asked.shape, asked.device, getattr(torch, asked.dtype))
    makers = workloads(llm, asked.size) | further_workloads(llm, asked.size)
    names = chosen(makers, asked.probes)
    if not names:
        sys.exit(f"no workload is called {asked.probes!r}; there are: {'; '.join(makers)}")
    rows, checks = [], []
    for name in names:
        workload = makers[name]()
        row = compare(llm, name, workload, asked.device, asked.repeats, asked.patience, asked.literal_parts)
        rows.append(row)
        say(
            f"{name}: ours {row['seconds_ours']:.3g} s, literal {row['seconds_literal']:.3g} s, {row['ratio']:.2f}×, "
            f"ours / floor {row['floor']:.2f}, difference {row['difference']:.1e}"
        )
        if not asked.no_checks and workload.probe in ("layer_effects", "residual_erasure", "integrated_gradients"):
            checks.append(with_less_memory(name, workload, asked.device, token_budget(llm, None) // 8))
    if not asked.no_checks:
        checks += doublings(llm, names, asked)
    if any(name.startswith("local effects") for name in names):
        checks += costs_of_parts(llm, *text_and_pair(llm, asked.size), asked.device, asked.repeats)
    del llm, makers, workload
    if not asked.no_memory:
        for row in rows:
            add_memory(row, asked)
        for row in checks:
            if "goal_memory" in row:
                add_memory_of_part(row, asked)
    return rows, checks


def doublings(llm, names, asked):
    """Time against twice the prompts (as their arithmetic grows: positions differ) and, for effects and erasure, twice
    the blocks (at most quadratic)."""
    checks = []
    once, twice = workloads(llm, asked.size), workloads(llm, asked.size, times=2)
    for name, name_twice in zip(once, twice, strict=True):
        if name in names and name != name_twice:
            pair = once[name](), twice[name_twice]()
            least, more = (workload.floor(None).flops() for workload in pair)
            run = [workload.ours for workload in pair]
            bound = round(1.1 * more / least, 2)
            checks.append(doubled(f"twice the prompts: {name}", *run, asked.device, asked.repeats, bound))
    shallow = model_of(asked.shape, asked.device, llm.dtype, blocks=llm.config.num_hidden_layers // 2)
    halved = workloads(shallow, asked.size)
    for name in names:
        if name.startswith(("layer effects", "residual erasure")):
            pair = halved[name]().ours, once[name]().ours
            checks.append(doubled(f"twice the blocks: {name}", *pair, asked.device, asked.repeats, bound=4.2))
    return checks


def peak(asked, name, way):
    """Peak memory of one way in its own process, and that before it."""
    return peak_in_own_process(asked.shape, asked.device, asked.dtype, asked.threads, asked.size, name, way)


def add_memory_of_part(row, asked):
    """Peak memory above the model of a part and of what it extends."""
    for way in ("extended", "part"):
        highest, before = peak(asked, row["check"], way)
        row[f"memory_{way}"] = highest - before
    row["memory"] = row["memory_part"] / row["memory_extended"]
    say(f"{row['check']}: peak memory above the model {row['memory']:.2f} of it")


def add_memory(row, asked):
    """Peak memory of both ways."""
    for way in ("ours", "literal"):
        row[f"memory_{way}"], row[f"memory_{way}_before"] = peak(asked, row["workload"], way)
    row["memory"] = row["memory_ours"] / row["memory_literal"]
    say(f"{row['workload']}: peak memory {row['memory']:.2f} of literal")


def say(line):
    print(line, file=sys.stderr, flush=True)


def main(arguments=None):
    if arguments is None and os.environ.get("BENCH") == "maps":
        return maps.main()
    asked = settings(arguments)
    where = table.circumstances(asked.shape, asked.device, asked.dtype, asked.threads)
    rows, checks = measure(asked)
    print(table.write(asked.out, "bench", rows, checks, where))


if __name__ == "__main__":
    main()
