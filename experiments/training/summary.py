"""Intervals over seeds and prompts, and whether the published claim holds.

The claim (Csordás et al. 2025, section 6, MoEUT on DeepMind Mathematics): shared layers and unmodelled questions make
depth grow with the number of steps, and models answer longer questions than they were trained on (extrapolation:
36 → 63 % against 41 → 48 %).
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from depth_lib.effective_depth.intervals import Estimate

from .measure import mean_of, mean_with_interval

MEASURED = Path(__file__).with_name("measured.csv")
GROUPS = ["kind", "loss", "task", "quantity", "level"]


def load_measured(path: str | Path = MEASURED) -> pd.DataFrame:
    """The measurements of every toy, one row per kind × loss × seed × task × quantity × level; # begins a comment."""
    return pd.read_csv(path, comment="#", dtype={"level": str})


def over_seeds(measured: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, with 95% confidence intervals: columns of `GROUPS`, value, low, high, seeds.

    All seeds are measured on the same prompts, so what these decide by chance does not average out: the distances to
    the ends are sqrt(student² + prompts²), with Student's over the seeds and the root mean square of theirs over
    prompts. Of a single seed: over prompts alone. Missing values are left out; seeds counts the others.
    """
    rows = []
    for group, of in measured.groupby(GROUPS, sort=False):
        of = of[of.value.notna()]
        seeds = mean_with_interval(of.value.tolist())
        student = 0.0 if len(of) < 2 else seeds.high - seeds.value
        ends = {}
        for end, sign in (("low", -1), ("high", 1)):
            prompts = np.sqrt(((of[end] - of.value) ** 2).mean())  # nan where every end is open
            ends[end] = seeds.value + sign * math.hypot(student, 0 if np.isnan(prompts) else prompts)
            if "accuracy" in group:
                ends[end] = min(max(ends[end], 0.0), 1.0)
        rows.append((*group, seeds.value, ends["low"], ends["high"], len(of)))
    return pd.DataFrame(rows, columns=[*GROUPS, "value", "low", "high", "seeds"])


def contrasts(measured: pd.DataFrame) -> pd.DataFrame:
    """The numbers that decide on the claim, measured on sums: value, and its 95% confidence interval, low to high.

    Slopes are those of the depth score (on later layers), in layers per term; accuracies are those on sums longer than
    in training. The claim is that the first four are positive.
    """
    found = over_seeds(measured[measured.task == "sums"]).set_index(GROUPS)

    def by_toy(quantity, level):
        rows = found.xs((quantity, level), level=("quantity", "level")).droplevel("task")
        return {toy: Estimate(row.value, row.low, row.high) for toy, row in rows.iterrows()}

    slope, accuracy = by_toy("slope layer", "seen"), by_toy("accuracy", "unseen")
    gain = {kind: _minus(accuracy[kind, "answers"], accuracy[kind, "all"]) for kind in ("shared", "ordinary")}
    estimates = {
        "slope, shared layers and loss on answers": slope["shared", "answers"],
        "that slope minus the slope with ordinary layers and loss on all tokens": _minus(
            slope["shared", "answers"], slope["ordinary", "all"]
        ),
        "accuracy gained by loss on answers, with shared layers": gain["shared"],
        "that gain minus the gain with ordinary layers": _minus(gain["shared"], gain["ordinary"]),
        "slope gained by sharing layers alone": mean_of(
            [_minus(slope["shared", loss], slope["ordinary", loss]) for loss in ("all", "answers")]
        ),
        "slope gained by loss on answers alone": mean_of(
            [_minus(slope[kind, "answers"], slope[kind, "all"]) for kind in ("ordinary", "shared")]
        ),
    }
    return pd.DataFrame({name: one._asdict() for name, one in estimates.items()}).T


def conclusion(measured: pd.DataFrame) -> str:
    """Whether the published claim holds for these toys: confirmed if all four contrasts are positive with confidence,
    refuted if one is negative with confidence."""
    claimed = contrasts(measured)[:4]
    if (claimed.low > 0).all():
        verdict = "holds here"
    elif (claimed.high < 0).any():
        verdict = "does not hold here"
    else:
        verdict = "is not decided here"
    return f"The published claim, that shared layers and loss on answers make depth grow with the terms, {verdict}."


def _minus(a: Estimate, b: Estimate) -> Estimate:
    """The difference of two independent estimates; distances to the ends add up as squares."""
    value = a.value - b.value
    below, above = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value, value - below, value + above)


def accuracies(measured: pd.DataFrame) -> pd.DataFrame:
    """Exact match on seen and unseen lengths, one row per toy, for sums and nested problems."""
    chosen = measured[(measured.quantity == "accuracy") & measured.level.isin(["seen", "unseen"])]
    return chosen.pivot(index=["kind", "loss", "seed"], columns=["task", "level"], values="value")


def largest_difference(measured: pd.DataFrame, committed: pd.DataFrame) -> float:
    """The largest difference of a value from the committed one of the same toy; inf where only one is missing."""
    both = measured.merge(committed, on=["seed", *GROUPS], how="left", suffixes=("", "_committed"))
    if (both.value.isna() != both.value_committed.isna()).any():
        return math.inf
    return float((both.value - both.value_committed).abs().max())


def replaced(committed: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The committed measurements with these rows in place of their own, in the same order; five digits each."""
    keys = ["kind", "loss", "seed", "task", "quantity", "level"]
    found, rows = committed.set_index(keys), measured.set_index(keys)
    digits = [float(f"{x:.5g}") for x in rows[["value", "low", "high"]].to_numpy().flat]
    found.loc[rows.index, ["value", "low", "high"]] = np.reshape(digits, (-1, 3))
    found.loc[rows.index, "n"] = rows["n"]
    return found.reset_index()
