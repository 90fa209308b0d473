"""Intervals of a share of right answers, and of its change between two models asked the same questions."""

import math
from collections.abc import Mapping

import numpy as np

from ..results.means import paired_change
from .intervals import NORMAL, Estimate
from .rules import as_array


def accuracy(result: Mapping) -> Estimate:
    """The share of right answers, with its 95% confidence interval over questions (Wilson 1927).

    >>> print(dl.accuracy({"correct": [1, 1, 1, 0]}))
    0.75 [0.30, 0.95]

    - result: from `choice_accuracy`

    Raises ValueError for a result without questions.
    Cost: no forward pass.
    """
    correct = _right(result)
    n, share = len(correct), float(correct.mean())
    centre, half = share + NORMAL**2 / (2 * n), NORMAL * math.sqrt(share * (1 - share) / n + (NORMAL / (2 * n)) ** 2)
    return Estimate(share, *((centre + sign * half) / (1 + NORMAL**2 / n) for sign in (-1, 1)))


def accuracy_change(before: Mapping, after: Mapping) -> Estimate:
    """How much the share of right answers changes, with its 95% confidence interval over the same questions.

    >>> print(dl.accuracy_change({"correct": [1, 1, 1, 0]}, {"correct": [1, 1, 0, 0]}))
    -0.25 [-0.61, 0.28]

    - before, after: from `choice_accuracy`, on the same questions

    This is a Wald interval for paired proportions, with half a question added to each cell of the 2 × 2 table (right or
    wrong, before and after).

    Raises ValueError if before and after were measured on different questions (or, if the results do not record the
    questions, on different numbers of them).
    Source: Agresti and Min 2005, Statistics in Medicine 24.
    Cost: no forward pass.
    """
    right, still = _right(before), _right(after)
    if len(right) != len(still):
        raise ValueError(f"got {len(right)} questions before and {len(still)} after; use the same ones both times")
    hashes = {result.get("meta", {}).get("prompts_hash") for result in (before, after)} - {None}
    if len(hashes) == 2:
        raise ValueError("before and after were measured on different questions; use the same ones, in the same order")
    return Estimate(*paired_change(len(right), int((~right & still).sum()), int((right & ~still).sum())))


def _right(result):
    """Whether each question was answered rightly [C]."""
    correct = as_array(result.get("correct", [])) if isinstance(result, Mapping) else np.empty(0)
    if correct.ndim != 1 or not len(correct):
        problem = (
            f"correct has shape {[*correct.shape]}, not [n]" if correct.size else "the result has no values of correct"
        )
        raise ValueError(f"{problem}; pass a result from choice_accuracy")
    if (wrong := correct[(correct != 0) & (correct != 1)]).size:
        raise ValueError(f"correct must hold 1 for each right answer and 0 for each wrong one, got {wrong[0]:g}")
    return correct == 1
