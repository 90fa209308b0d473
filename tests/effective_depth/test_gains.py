"""Whoever looks for the best of many orders is not told noise."""

import numpy as np
import pytest

from depth_lib.effective_depth.accuracy import accuracy_change
from depth_lib.effective_depth.gains import best_order


def study(draw, n_orders, n_choices, gain=0.0):
    """Answers to choices, each order's as good as the model's but the first, which is better by `gain`."""
    hard = draw.random(n_choices)
    correct = (draw.random((n_orders + 1, n_choices)) < 0.3 + 0.4 * hard).astype(float)
    correct[1] = np.where(draw.random(n_choices) < gain, 1, correct[1])
    return {"correct": correct[1:], "unchanged_correct": correct[0]}


@pytest.mark.parametrize("n_orders, n_choices", [(5, 100), (30, 200)])
def test_where_no_order_gains_one_is_reported_in_at_most_one_study_of_twenty(n_orders, n_choices):
    draw = np.random.default_rng(0)
    studies = [study(draw, n_orders, n_choices) for _ in range(1000)]
    assert np.mean([best_order(one).change.low > 0 for one in studies]) <= 0.05
    naive = [max(one["correct"], key=np.mean) for one in studies]
    changes = [
        accuracy_change({"correct": one["unchanged_correct"]}, {"correct": best})
        for one, best in zip(studies, naive, strict=True)
    ]
    assert np.mean([change.low > 0 for change in changes]) > 0.05, "without the other half chance is taken for a gain"


def test_a_true_gain_is_found_and_said():
    draw = np.random.default_rng(1)
    found = [best_order(study(draw, 20, 400, gain=0.5)) for _ in range(20)]
    assert all(one.k == 0 and one.change.low > 0 and "it gains" in str(one) for one in found)
    assert all(one.n == 200 for one in found)


def test_a_result_of_one_order_is_refused():
    with pytest.raises(ValueError, match="of several orders"):
        best_order({"correct": np.ones(8), "unchanged_correct": np.ones(8)})
