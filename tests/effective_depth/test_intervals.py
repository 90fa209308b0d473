"""The intervals cover the truth as often as they say, and say when there is none."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from depth_lib.effective_depth.intervals import (
    NoInterval,
    bootstrap_curves,
    centre_of_mass,
    depth_interval,
    drawn_centres,
    widening,
)
from depth_lib.effective_depth.rules import PAPER_METRICS, depth_score
from tests.effective_depth.coverage import CURVES, depth_shares, depths_of, percent
from tests.effective_depth.coverage import result_of as prompts_of
from tests.synthetic import result_of


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_identical_prompts_give_an_interval_of_zero_width(metric):
    interval = depth_interval(prompts_of(metric, [CURVES["steep"][metric]] * 7), metric)
    assert interval.low == interval.high == depths_of(metric, CURVES["steep"][metric][None])[0]
    assert (interval.same, interval.without, interval.n_prompts) == (1, 0, 7)


def test_an_overlap_of_exactly_the_threshold_in_all_prompts_has_not_crossed():
    interval = depth_interval(prompts_of("overlap", [[0.1, 0.3, 0.3, 0.4, 0.9]] * 3), "overlap")
    assert interval.low == interval.high == 3


def test_draws_are_token_pooled_means_of_prompts_drawn_with_replacement():
    sums, n_tokens = np.array([[10.0, 20.0], [300.0, 60.0]]), np.array([10.0, 30.0])
    curve, drawn = bootstrap_curves(sums, n_tokens, 400)
    np.testing.assert_allclose(curve, [310 / 40, 80 / 40], rtol=1e-6)
    expected = {(1.0, 2.0): 0.25, (7.75, 2.0): 0.5, (10.0, 2.0): 0.25}
    values, counts = np.unique(drawn, axis=0, return_counts=True)
    assert {tuple(row) for row in values.tolist()} == set(expected)
    np.testing.assert_allclose(counts / 400, list(expected.values()), atol=0.08)


def test_prompts_of_which_some_never_cross_leave_the_end_open_and_count_the_draws_without_a_depth():
    crosses, never = [0.1, 0.1, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]
    interval = depth_interval(prompts_of("overlap", [crosses] * 2 + [never] * 3), "overlap")
    assert (interval.low, interval.high) == (2, None)
    assert 0.2 < interval.without < 0.5 and interval.same == pytest.approx(1 - interval.without)
    earlier = depth_interval(prompts_of("overlap", [[0.1, 0.4, 0.9, 0.9]] * 2 + [crosses] * 3), "overlap")
    assert (earlier.low, earlier.high) == (1, 2)
    nothing = depth_interval(prompts_of("overlap", [never] * 3), "overlap")
    assert (nothing.low, nothing.high, nothing.without, nothing.same) == (None, None, 1, 1)


def test_without_sums_with_too_few_prompts_or_with_nan_there_is_no_interval_and_a_reason():
    theirs = {"res_kl_divs": result_of("logit_lens", 8)["res_kl_divs"]}
    for result, reason in (
        (theirs, "no per-prompt sums in the file"),
        (prompts_of("kl", [[3.0, 2.0, 1.0]] * 2), "too few prompts to resample: 2; run 3 or more"),
        (prompts_of("kl", [[3.0, float("nan"), 1.0]] * 4), "not finite"),
    ):
        with pytest.raises(NoInterval, match=reason):
            depth_interval(result, "kl")


@pytest.mark.slow
@pytest.mark.parametrize("n_prompts", [3, 10])
@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_intervals_cover_the_true_depth_as_often_as_they_say(metric, n_prompts):
    """Where curves cross steeply and slowly; prompts that differ evenly and a few by much, by layer and as a whole."""
    shares = [depth_shares(metric, curves[metric], n_prompts, 60) for curves in CURVES.values()]
    # of 60 intervals that cover the truth with 92 %, fewer than 50 do in one of 100 cells
    assert np.mean(shares) >= 0.95 and np.min(shares) >= 50 / 60, shares


DOCUMENTED = (Path(__file__).parents[2] / "docs/coverage.md").read_text()


@pytest.mark.slow
def test_the_documented_coverage_is_what_the_command_writes():
    shares = depth_shares("overlap", CURVES["steep"]["overlap"], 3, 200)
    assert f"| overlap | steep | {percent(shares)} |" in DOCUMENTED


def test_the_documented_coverage_of_a_depth_is_92_percent_or_more_and_of_a_change_80():
    depth, change = DOCUMENTED.split("**A depth score**")[0].split("**A change**")
    assert all(92 <= int(lowest) for lowest in re.findall(r"\((\d+)\)", depth))
    assert all(80 <= int(lowest) for lowest in re.findall(r"\((\d+)\)", change))


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (99, 1.984)])
def test_students_quantile_is_the_tables(degrees, quantile):
    assert widening(degrees + 1) * 1.959964 / math.sqrt((degrees + 1) / degrees) == pytest.approx(quantile, abs=5e-4)


def test_the_centre_of_mass_is_that_of_the_mean_profile_and_its_errors_are_those_of_a_ratio():
    profiles = np.random.default_rng(0).gamma(2, 1, (400, 6))
    centres, errors = drawn_centres(profiles, 2000, 0)
    assert centres[0] == pytest.approx(depth_score(profiles.mean(0)))
    assert errors[0] == pytest.approx(centres[1:].std(), rel=0.1)
    estimate = centre_of_mass(profiles)
    assert (estimate.high - estimate.low) == pytest.approx(2 * 1.96 * errors[0], rel=0.1)


def test_equal_profiles_leave_no_doubt_and_those_without_an_effect_change_nothing():
    profiles = np.tile([0.0, 1.0, 3.0], (4, 1))
    estimate = centre_of_mass(profiles)
    assert estimate.low == estimate.value == estimate.high == 1.75
    some = np.random.default_rng(2).gamma(2, 1, (5, 3))
    assert centre_of_mass(np.vstack([some, np.zeros((4, 3))])) == centre_of_mass(some)
    with pytest.raises(NoInterval, match="too few prompts with an effect: 2; run 3 or more"):
        centre_of_mass(np.vstack([some[:2], np.zeros((4, 3))]))
