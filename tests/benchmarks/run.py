"""Every workload measured, one row each, and the checks by doubling and with a smaller budget."""

from statistics import median

from tests.benchmarks.floor import Rates
from tests.benchmarks.measure import in_turns, seconds
from tests.benchmarks.shapes import SHAPES
from tests.benchmarks.workloads import largest_difference


def spread(n, wanted):
    """`wanted` of 0..n−1 in the middle of equal stretches, so that what falls or rises along them averages out."""
    return [int((2 * k + 1) * n / (2 * wanted)) for k in range(wanted)]


def compare(llm, name, workload, device, repeats, patience, literal_parts=None):
    """One row of the table, without memory. `literal_parts`: so many parts of the literal way, scaled up; None: all."""
    n = workload.n_parts
    parts = None if literal_parts is None or literal_parts >= n else spread(n, literal_parts)
    _, result = seconds(workload.ours, device)  # not counted: what is compiled and allocated once
    ways = {
        "ours": workload.ours,
        "literal": lambda: workload.literal(parts),
        "floor": lambda: workload.floor(result).seconds(Rates(device, llm.dtype)),
    }
    if parts is not None and workload.fixed:
        ways["fixed"] = workload.fixed
    times, results = in_turns(ways, device, repeats, patience)
    ours, literal, least = median(times["ours"]), median(times["literal"]), median(results["floor"])
    if parts is not None:
        fixed = median(times["fixed"]) if "fixed" in times else 0.0
        literal = fixed + (literal - fixed) * n / len(parts)
    row = {
        "workload": name,
        "probe": workload.probe,
        "seconds_ours": ours,
        "seconds_literal": literal,
        "ratio": literal / ours,
        "seconds_floor": least,
        "floor": ours / least,
        "gflop_floor": workload.floor(result).flops() / 1e9,
        "difference": largest_difference(workload.compared(result, parts), results["literal"][-1]),
        "rounds": len(times["ours"]),
        "literal_parts": "all" if parts is None else f"{len(parts)} of {n}",
    }
    if llm.config.hidden_size in (SHAPES["small"]["hidden_size"], 576):  # 576: the real model's
        goals = zip(("goal_ratio", "goal_floor", "goal_memory"), workload.goal, strict=True)
        row |= {key: goal for key, goal in goals if goal is not None}
    if "completeness" in result:
        row["completeness"] = (result["completeness"] / result["f_difference"]).abs().max().item()
        row["error"] = result["error"].max().item()
        row["n_nodes"] = " ".join(str(int(n)) for n in result["n_nodes"])
    return row


def doubled(check, once, twice, device, repeats, bound):
    """One row of the checks: how much longer `twice()` takes than `once()`, and the most it should."""
    seconds_before = [seconds(run, device)[0] for run in (once, twice)]  # not counted
    times, _ = in_turns({"once": once, "twice": twice}, device, repeats, patience=20 * sum(seconds_before))
    before, after = median(times["once"]), median(times["twice"])
    return {"check": check, "before": before, "after": after, "ratio": after / before, "bound": bound}


def with_less_memory(name, workload, device, budget):
    """One row of the checks: the probe once more with at most `budget` tokens a pass; its numbers must stay."""
    before, whole = seconds(workload.ours, device)
    after, part = seconds(lambda: workload.ours(budget=budget), device)
    keys = [key for key, value in whole.items() if key not in ("tokens", "completeness", "n_nodes", "error")]
    difference = largest_difference({key: part[key] for key in keys}, {key: whole[key] for key in keys})
    return {"check": f"budget of {budget} tokens: {name}", "before": before, "after": after, "difference": difference}
