"""The intervals hold the truth as often as they say, and say when there is none."""

import numpy as np
import pytest
import torch

from depth_lib.effective_depth.coverage import POPULATIONS, coverage, measured_coverage
from depth_lib.effective_depth.intervals import NoInterval, bootstrap_curves, depth_interval, depths_of
from depth_lib.effective_depth.rules import METRICS, PAPER_METRICS
from tests.synthetic import result_of


def prompts_of(metric, curves, n_tokens=None):
    """A result in which each prompt has its own mean curve, [P, L]."""
    curves = torch.as_tensor(np.asarray(curves), dtype=torch.float32)
    n_tokens = torch.full((len(curves),), 50.0) if n_tokens is None else torch.tensor(n_tokens)
    return {f"{key}_sums": curves * n_tokens[:, None] for key in METRICS[metric].keys} | {"n_tokens": n_tokens}


def noisy(metric, n_prompts, noise, seed=0):
    curve = POPULATIONS[metric, "steep"]
    return curve + noise * np.random.default_rng(seed).standard_normal((n_prompts, len(curve)))


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_identical_prompts_give_an_interval_of_zero_width(metric):
    curve = POPULATIONS[metric, "steep"]
    found = depth_interval(prompts_of(metric, [curve] * 7), metric)
    assert found.low == found.high == depths_of(metric, curve[None])[0]
    assert (found.same, found.without, found.n_prompts) == (1, 0, 7)


def test_an_overlap_of_exactly_the_threshold_in_all_prompts_has_not_crossed():
    found = depth_interval(prompts_of("overlap", [[0.1, 0.3, 0.3, 0.4, 0.9]] * 3), "overlap")
    assert found.low == found.high == 3


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_vectorised_depths_are_those_of_the_rule(metric):
    rule = METRICS[metric].rule
    draw = np.random.default_rng(1)
    curves = draw.normal(0.2, 0.4, (300, 6)).astype(np.float32)
    if metric == "kl":
        curves = abs(curves)
    for curve, depth in zip(curves, depths_of(metric, curves), strict=True):
        ed = rule(curve, curve, curve) if metric == "cosine" else rule(curve)
        assert depth == ed if ed is not None else depth in (-1, 5)


def test_a_cosine_without_a_turn_is_before_the_first_layer_or_beyond_the_last():
    never_negative, never_turns, downwards = [0.1, 0.2, 0.3], [-0.1, -0.2, -0.3], [0.1, -0.1, -0.2]
    assert list(depths_of("cosine", np.array([never_negative, never_turns, downwards]))) == [-1, 2, 2]


def test_draws_are_token_pooled_means_of_prompts_drawn_with_replacement():
    sums, n_tokens = np.array([[10.0, 20.0], [300.0, 60.0]]), np.array([10.0, 30.0])
    curve, drawn = bootstrap_curves(sums, n_tokens, 400, seed=3)
    np.testing.assert_allclose(curve, [310 / 40, 80 / 40], rtol=1e-6)
    expected = {(1.0, 2.0): 0.25, (7.75, 2.0): 0.5, (10.0, 2.0): 0.25}
    found, counts = np.unique(drawn, axis=0, return_counts=True)
    assert {tuple(row) for row in found.tolist()} == set(expected)
    np.testing.assert_allclose(counts / 400, list(expected.values()), atol=0.08)


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_the_same_seed_gives_the_same_interval_and_more_noise_a_wider_one(metric):
    scale = abs(POPULATIONS[metric, "steep"]).mean()
    quiet, loud = (prompts_of(metric, noisy(metric, 10, noise * scale)) for noise in (0.02, 1.5))
    assert depth_interval(quiet, metric) == depth_interval(quiet, metric)
    assert depth_interval(quiet, metric).same > depth_interval(loud, metric).same

    def width(found):
        return (27 if found.high is None else found.high) - (-1 if found.low is None else found.low)

    assert width(depth_interval(quiet, metric)) < width(depth_interval(loud, metric))


def test_long_prompts_weigh_more():
    shallow, deep = [0.1, 0.9, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.9, 0.9]
    prompts = [shallow] * 3 + [deep] * 3
    few, many = [1.0] * 3 + [1000.0] * 3, [1000.0] * 3 + [1.0] * 3
    depths = [depths_of("overlap", bootstrap_curves(*per_prompt(prompts, n), 10, 0)[0][None])[0] for n in (few, many)]
    assert depths == [3, 1]


def per_prompt(curves, n_tokens):
    return np.array(curves) * np.array(n_tokens)[:, None], np.array(n_tokens)


def test_prompts_of_which_some_never_cross_leave_the_end_open_and_count_the_draws_without_a_depth():
    crosses, never = [0.1, 0.1, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]
    found = depth_interval(prompts_of("overlap", [crosses] * 2 + [never] * 3), "overlap")
    assert (found.low, found.high) == (2, None)
    assert 0.2 < found.without < 0.5 and found.same == pytest.approx(1 - found.without)
    nothing = depth_interval(prompts_of("overlap", [never] * 3), "overlap")
    assert (nothing.low, nothing.high, nothing.without, nothing.same) == (None, None, 1, 1)


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_the_papers_files_have_no_interval_and_the_reason_says_so(metric):
    probe, keys = METRICS[metric].probe, METRICS[metric].keys
    theirs = {key: result_of(probe, 8)[key] for key in keys}
    with pytest.raises(NoInterval, match="no per-prompt sums in the file"):
        depth_interval(theirs, metric)


def test_too_few_prompts_and_sums_that_are_not_finite_have_no_interval():
    with pytest.raises(NoInterval, match="2 prompts are too few to resample; run 3 or more"):
        depth_interval(prompts_of("kl", [[3.0, 2.0, 1.0]] * 2), "kl")
    with pytest.raises(NoInterval, match="not finite"):
        depth_interval(prompts_of("kl", [[3.0, float("nan"), 1.0]] * 4), "kl")


def test_the_measured_coverage_in_the_package_is_enough_in_every_population():
    measured = measured_coverage()
    assert set(measured.n_prompts) == {5, 10, 30, 100} and measured.repeats.min() >= 300
    assert len(measured) == 4 * len(POPULATIONS) * 3 and set(measured.metric) == set(PAPER_METRICS)
    assert measured[measured.n_prompts == 10].coverage.min() >= 0.88
    assert measured[measured.n_prompts == 30].coverage.min() >= 0.92


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_measuring_the_coverage_again_gives_what_the_package_says(metric):
    again = coverage(metric, "lingering", "skewed", 10, repeats=40)
    assert again["coverage"] >= 0.88
    rows = measured_coverage().query("metric == @metric and population == 'lingering' and noise == 'skewed'")
    said = rows[rows.n_prompts == 10].iloc[0]
    assert again["coverage"] == pytest.approx(said.coverage, abs=0.1)
    assert again["width"] == pytest.approx(said.width, rel=0.25, abs=0.5)
