"""Shares of right answers and their change: known intervals, and how often they cover the truth."""

import numpy as np
import pytest

import depth_lib as dl
from depth_lib.effective_depth.accuracy import accuracy, accuracy_change


def of(correct):
    return {"correct": np.asarray(correct, dtype=np.float32)}


def test_a_share_has_the_interval_of_wilson():
    found = accuracy(of([1] * 8 + [0] * 2))
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    of_all = accuracy(of([1] * 10))
    assert (of_all.low, of_all.high) == pytest.approx((0.7225, 1), abs=1e-4)


def test_a_change_is_that_of_the_same_questions():
    before, after = of([1] * 60 + [0] * 40), of([1] * 48 + [0] * 12 + [1] * 2 + [0] * 38)
    found = accuracy_change(before, after)
    # 2 of 100 gained, 12 lost: d = (2.5 - 12.5) / 102, its error sqrt(15 - 100 / 102) / 102
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.1700, -0.0261), abs=1e-4)
    with pytest.raises(ValueError, match="100 questions before and 10 after; use the same ones both times"):
        accuracy_change(before, of([1] * 10))
    of_texts = [of([1, 0]) | {"meta": {"prompts_hash": texts}} for texts in ("ab", "cd")]
    with pytest.raises(ValueError, match="before and after were measured on different questions"):
        accuracy_change(*of_texts)
    for other in (of_texts[0], of([1, 0])):
        assert accuracy_change(of_texts[0], other).value == 0


@pytest.mark.parametrize("result", [of([]), of([[0, 1]]), {"acc": 1}, [0, 1]])
def test_what_is_no_list_of_right_and_wrong_answers_is_refused(result):
    with pytest.raises(ValueError, match="pass a result from choice_accuracy"):
        accuracy(result)


@pytest.mark.parametrize("value", [np.nan, 100, -1, 0.5])
def test_what_is_neither_right_nor_wrong_is_refused_with_its_value(value):
    for call in (accuracy, lambda result: accuracy_change(of([1] * 3), result)):
        with pytest.raises(ValueError, match=f"^correct must hold 1 for each right .*, got {value:g}$"):
            call(of([1, value, 0]))


@pytest.mark.parametrize("n", [10, 40, 200])
@pytest.mark.parametrize("kept, gained", [(0.9, 0.1), (0.99, 0.02), (0.6, 0.4)])
def test_the_intervals_cover_the_truth(n, kept, gained):
    """Of 2,000 simulated sets of questions each."""
    rng, right = np.random.default_rng(0), 0.7
    truth, covered = right * kept + (1 - right) * gained - right, np.zeros(2)
    for _ in range(2000):
        before = rng.random(n) < right
        after = rng.random(n) < np.where(before, kept, gained)
        change, share = accuracy_change(of(before), of(after)), accuracy(of(before))
        covered += [change.low <= truth <= change.high, share.low <= right <= share.high]
    assert (covered / 2000 >= 0.93).all(), covered / 2000


def test_a_models_choices_with_blocks_and_without_are_compared(toy):
    choices = dl.load_choices("hellaswag", 6, source="embedded")
    whole, shorter = (dl.choice_accuracy(toy, choices, removed) for removed in (None, (1, 2)))
    change = dl.accuracy_change(whole, shorter)
    assert change.value == pytest.approx(float(shorter["acc_norm"] - whole["acc_norm"]))
    assert dl.accuracy(whole).low <= float(whole["acc_norm"]) < dl.accuracy(whole).high
