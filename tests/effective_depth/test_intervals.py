"""The intervals hold the truth as often as they say, and say when there is none."""

import numpy as np
import pytest
import torch

from depth_lib.effective_depth.intervals import (
    NoInterval,
    bootstrap_curves,
    centre_of_mass,
    depth_interval,
    depths_of,
    drawn_centres,
)
from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS, depth_score
from tests.synthetic import result_of

DEPTH = np.linspace(0, 1, 28)
STEEP = {
    "cosine": 0.24 * (DEPTH - 0.25) * (DEPTH - 0.62) - 0.005,
    "kl": 0.3 + 15 / (1 + np.exp((DEPTH - 0.8) / 0.06)),
    "overlap": 0.8 / (1 + np.exp((0.88 - DEPTH) / 0.05)),
}
LINGERING = {
    "cosine": np.where(DEPTH < 0.5, -0.01, 0.004),
    "kl": 12 * (1 - DEPTH) + 1,
    "overlap": np.where(DEPTH < 0.5, 0.1, np.where(DEPTH < 0.8, 0.31, 0.6)),
}


def prompts_of(metric, curves, n_tokens=None):
    """A result in which each prompt has its own mean curve, [P, L]."""
    curves = torch.as_tensor(np.asarray(curves), dtype=torch.float32)
    n_tokens = torch.full((len(curves),), 50.0) if n_tokens is None else torch.tensor(n_tokens)
    return {f"{key}_sums": curves * n_tokens[:, None] for key in METRICS[metric].keys} | {"n_tokens": n_tokens}


def holds(interval, layer):
    return (interval.low is None or interval.low <= layer) and (interval.high is None or layer <= interval.high)


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_identical_prompts_give_an_interval_of_zero_width(metric):
    interval = depth_interval(prompts_of(metric, [STEEP[metric]] * 7), metric)
    assert interval.low == interval.high == depths_of(metric, STEEP[metric][None])[0]
    assert (interval.same, interval.without, interval.n_prompts) == (1, 0, 7)


def test_an_overlap_of_exactly_the_threshold_in_all_prompts_has_not_crossed():
    interval = depth_interval(prompts_of("overlap", [[0.1, 0.3, 0.3, 0.4, 0.9]] * 3), "overlap")
    assert interval.low == interval.high == 3


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_vectorised_depths_are_those_of_the_rule(metric):
    rule, n_curves = METRICS[metric].rule, len(METRICS[metric].keys)
    curves = np.random.default_rng(1).normal(0.2, 0.4, (300, 6)).astype(np.float32)
    curves = abs(curves) if metric == "kl" else curves
    for curve, depth in zip(curves, depths_of(metric, curves), strict=True):
        ed = rule(*[curve] * n_curves)
        assert depth == ed if ed is not None else depth in (-1, 5)


def test_draws_are_token_pooled_means_of_prompts_drawn_with_replacement():
    sums, n_tokens = np.array([[10.0, 20.0], [300.0, 60.0]]), np.array([10.0, 30.0])
    curve, drawn = bootstrap_curves(sums, n_tokens, 400, seed=3)
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
@pytest.mark.parametrize("n_prompts", [5, 10])
@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_intervals_hold_the_true_depth_at_least_as_often_as_they_say(metric, n_prompts):
    """Curves that cross steeply and that linger about the threshold; prompts that differ evenly, and a few by much."""
    draw, n_held, repeats = np.random.default_rng(n_prompts), [], 60
    for curve in (STEEP[metric], LINGERING[metric]):
        for skewed in (False, True):
            held = 0
            for _ in range(repeats):
                noise = draw.standard_normal((n_prompts, 28))
                noise = (np.exp(0.8 * noise) - np.exp(0.32)) / 1.3 if skewed else noise
                prompts = prompts_of(metric, curve + 0.25 * abs(curve).mean() * noise)
                held += holds(depth_interval(prompts, metric, draws=500), depths_of(metric, curve[None])[0])
            n_held.append(held)
    # of 60 intervals that hold the truth with 95 % (90 % in any one population), fewer do in one of 1,000 runs
    assert sum(n_held) >= 0.92 * 4 * repeats and min(n_held) >= 0.78 * repeats, n_held


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
