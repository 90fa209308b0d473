"""What the measurements say together: intervals over seeds and prompts, and whether the published claim holds.

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
    """The measurements of every toy, a row a kind × loss × seed × task × quantity × level; # begins a comment."""
    return pd.read_csv(path, comment="#", dtype={"level": str})


def over_seeds(measured: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds with 95 % intervals over seeds and prompts: columns of `GROUPS`, value, low, high, seeds.

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


def conclusion(measured: pd.DataFrame) -> str:
    """Whether the published claim holds for the toys measured on sums: sentences made from the numbers alone."""
    found = over_seeds(measured[measured.task == "sums"]).set_index(GROUPS)
    if lacking := [f"{kind} {loss}" for kind, loss in _TOYS if (kind, loss) not in found.index.droplevel([2, 3, 4])]:
        return f"No conclusion: {', '.join(lacking)} not measured."

    def of(kind, loss, quantity, level):
        row = found.loc[(kind, loss, "sums", quantity, level)]
        return Estimate(row.value, row.low, row.high)

    slopes = {(kind, loss): of(kind, loss, "slope layer", "seen") for kind, loss in _TOYS}
    deep, plain = slopes["shared", "answers"], slopes["ordinary", "all"]
    sharing = mean_of([_minus(slopes["shared", loss], slopes["ordinary", loss]) for loss in ("all", "answers")])
    asking = mean_of([_minus(slopes[kind, "answers"], slopes[kind, "all"]) for kind in ("ordinary", "shared")])
    unseen = {(kind, loss): of(kind, loss, "accuracy", "unseen") for kind, loss in _TOYS}
    shared, ordinary = (_minus(unseen[kind, "answers"], unseen[kind, "all"]) for kind in ("shared", "ordinary"))
    grows, steeper = _sign(deep), _sign(_minus(deep, plain))
    gains, more = _sign(shared), _sign(_minus(shared, ordinary))
    verdict = "does not hold here" if -1 in (grows, steeper, gains, more) else "is not decided here"
    if (grows, steeper, gains, more) == (1, 1, 1, 1):
        verdict = "holds here"
    percent = {toy: f"{100 * one.value:.0f}" for toy, one in unseen.items()}
    return (
        f"With shared layers and loss on answers the depth score (on later layers) {_MOVES[grows]} with each term (by "
        f"{deep} layers, sums of 2 to 6 terms), and it {_STEEPER[steeper]} than with ordinary layers and loss on "
        f"everything ({plain}; difference {_minus(deep, plain)}). "
        f"By themselves, loss on answers changes that slope by {asking} and sharing layers by {sharing}. "
        f"On sums longer than those of the training, loss on answers alone moves accuracy from "
        f"{percent['shared', 'all']} to {percent['shared', 'answers']} % with shared layers and from "
        f"{percent['ordinary', 'all']} to {percent['ordinary', 'answers']} % with ordinary ones "
        f"(published, on another task: 36 → 63 % against 41 → 48 %). "
        f"The gain with shared layers, {_points(shared)} points, {_GAINS[gains]}, and against ordinary layers it "
        f"{_MORE[more]} (difference {_points(_minus(shared, ordinary))}). "
        f"So the published claim, that shared layers and unmodelled questions make depth grow with the number of "
        f"steps, {verdict}."
    )


_TOYS = [(kind, loss) for kind in ("ordinary", "shared") for loss in ("all", "answers")]
_MOVES = {1: "rises", 0: "may or may not rise", -1: "falls"}
_STEEPER = {1: "rises more steeply", 0: "is not surely steeper or flatter", -1: "rises less steeply"}
_GAINS = {1: "is above zero", 0: "is not surely above or below zero", -1: "is below zero"}
_MORE = {1: "is larger", 0: "is not surely larger or smaller", -1: "is smaller"}


def _sign(estimate: Estimate) -> int:
    """1 or -1 where the interval is above or below zero, 0 where it includes zero."""
    return int(estimate.low > 0) - int(estimate.high < 0)


def _minus(a: Estimate, b: Estimate) -> Estimate:
    """The difference of two independent estimates; distances to the ends add up as squares."""
    value = a.value - b.value
    below, above = math.hypot(a.value - a.low, b.high - b.value), math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value, value - below, value + above)


def _points(estimate: Estimate) -> str:
    low, high = (100 * end for end in (estimate.low, estimate.high))
    return f"{100 * estimate.value:+.0f} [{low:+.0f}, {high:+.0f}]"


def accuracies(measured: pd.DataFrame) -> pd.DataFrame:
    """Exact match on seen and unseen lengths, a row a toy, for sums and nested problems."""
    chosen = measured[(measured.quantity == "accuracy") & measured.level.isin(["seen", "unseen"])]
    return chosen.pivot(index=["kind", "loss", "seed"], columns=["task", "level"], values="value")


def largest_difference(measured: pd.DataFrame, committed: pd.DataFrame) -> float:
    """The largest difference of a value from the committed one of the same toy; inf where only one is missing."""
    both = measured.merge(committed, on=["seed", *GROUPS], how="left", suffixes=("", "_committed"))
    if (both.value.isna() != both.value_committed.isna()).any():
        return math.inf
    return float((both.value - both.value_committed).abs().max())
