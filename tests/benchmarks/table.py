"""The benchmark's tables, printed and written as csv, md and json."""

import json
import os
import platform
from pathlib import Path

import pandas as pd
import torch

MEGABYTE = 2**20


def circumstances(shape, device, dtype, threads):
    """Where and with what the numbers were measured."""
    import nnsight
    import transformers

    return {
        "shape": shape,
        "dtype": dtype,
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "threads": threads,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nnsight": nnsight.__version__,
        "transformers": transformers.__version__,
    }


def _processor():
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _goal(row, key, sign, text):
    """A number with its goal, and "no" where that is missed."""
    goal = row.get(f"goal_{key}")
    if goal is None:
        return text
    met = row[key] >= goal if sign == "≥" else row[key] <= goal
    return f"{text} ({sign} {goal:g}{'' if met else ': no'})"


def _shown(row):
    """One row of the main table as people read it."""
    scaled = "" if row["literal_parts"] == "all" else "≈ "
    shown = {
        "workload": row["workload"],
        "ours, s": f"{row['seconds_ours']:.3g}",
        "literal, s": f"{scaled}{row['seconds_literal']:.3g}",
        "ratio": _goal(row, "ratio", "≥", f"{scaled}{row['ratio']:.2f}×"),
        "floor, s": f"{row['seconds_floor']:.3g}",
        "ours / floor": _goal(row, "floor", "≤", f"{row['floor']:.2f}"),
        "difference": f"{row['difference']:.1e}",
        "rounds": row["rounds"],
        "literal parts": row["literal_parts"],
    }
    if "memory" in row:
        ours, literal = (row[f"memory_{way}"] / MEGABYTE for way in ("ours", "literal"))
        over = [(row[f"memory_{way}"] - row[f"memory_{way}_before"]) / MEGABYTE for way in ("ours", "literal")]
        shown["peak memory, MiB"] = _goal(row, "memory", "≤", f"{ours:.0f} / {literal:.0f} = {row['memory']:.2f}")
        shown["above the model, MiB"] = f"{over[0]:.0f} / {over[1]:.0f}"
    return shown


def _markdown(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(str(row.get(c, "")) for c in columns) + " |" for row in rows])


def _check(row):
    ratio = f"{row['after'] / row['before']:.2f}"
    shown = {"check": row["check"], "before, s": f"{row['before']:.3g}", "after, s": f"{row['after']:.3g}"}
    if "difference" in row:
        return {**shown, "after / before": ratio, "difference": f"{row['difference']:.1e}"}
    if "memory" in row:
        both = " / ".join(f"{row[f'memory_{way}'] / MEGABYTE:.0f}" for way in ("part", "extended"))
        shown["peak above the model, MiB"] = _goal(row, "memory", "≤", f"{both} = {row['memory']:.2f}")
    return {**shown, "after / before": _goal({**row, "goal_ratio": row["bound"]}, "ratio", "≤", ratio)}


NOTES = """\
Medians of rounds in which ours, literal and floor take turns in one process. Ratio: literal / ours. Floor: the
unavoidable matrix products at the rate this machine has for their shapes. Peak memory, ours / literal: of a whole
process that does nothing else (CUDA: allocated by torch), and what of that is above the loaded model; literal with only
as many parts as reach its peak. Difference: largest, relative to the largest value; integrated gradients at equal nodes
(256 left-end steps). "≈": the literal way on some of its parts, scaled up. In brackets: goals on an idle two-core
machine."""


def report(rows, checks, where):
    """The page of one run: circumstances, table, checks."""
    facts = ", ".join(f"{key} {value}" for key, value in where.items())
    parts = [f"## {where['shape']}, {where['device']}", facts, _markdown([_shown(row) for row in rows]), NOTES]
    parts += [
        f"{row['workload']}: completeness {row['completeness']:.1e}, estimated error {row['error']:.1e}, "
        f"nodes of each block {row['n_nodes']}"
        for row in rows
        if "completeness" in row
    ]
    if checks:
        parts.append(_markdown([_check(row) for row in checks]))
    return "\n\n".join(parts) + "\n"


def write(folder, name, rows, checks, where):
    """`<name>.md`, `.csv` and `.json` in `folder`; returns the page."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    page = report(rows, checks, where)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    pd.DataFrame(rows).assign(**where).to_csv(folder / f"{name}.csv", index=False)
    (folder / f"{name}.json").write_text(json.dumps({"where": where, "rows": rows, "checks": checks}, indent=1))
    return page
