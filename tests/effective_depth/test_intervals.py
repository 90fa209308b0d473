"""The one interval: its formula, what it does with few or equal prompts, and how often it covers the truth."""

import re
from pathlib import Path

import numpy as np
import pytest

from depth_lib.comparison import compare
from depth_lib.effective_depth.intervals import (
    EQUAL,
    NoInterval,
    depth_interval,
    depth_score,
    difference_interval,
    gaps_of,
    half_width,
    possible_layers,
    same_prompts,
    score_interval,
)
from depth_lib.effective_depth.rules import RULES
from depth_lib.effective_depth.tables import effective_depths
from tests.effective_depth.coverage import (
    CURVES,
    N_LAYERS,
    SHARED,
    depth_cells,
    depth_of,
    difference_cells,
    noise,
    shifted,
    spread,
)
from tests.effective_depth.coverage import result_of as prompts_of
from tests.marks import others_slow
from tests.synthetic import result_of

DOCUMENTED = (Path(__file__).parents[2] / "docs/coverage.md").read_text(encoding="utf-8")


def test_of_a_mean_the_interval_is_students(stats):
    values = np.random.default_rng(0).normal(size=7)
    without_each = (values.sum() - values) / 6
    half = stats.t.ppf(0.975, 6) * values.std(ddof=1) / np.sqrt(7)
    assert half_width(without_each) == pytest.approx(half)


def test_each_prompt_is_left_out_with_its_tokens_and_the_bias_of_a_maximum_is_taken_off():
    rule, draw = RULES["kl"], np.random.default_rng(1)
    curves, n_tokens = draw.uniform(1, 9, (5, 4)), draw.integers(10, 60, 5)
    sums = curves * n_tokens[:, None]
    mean = sums.sum(0) / n_tokens.sum()
    gaps = gaps_of({"res_kl_divs_sums": sums, "n_tokens": n_tokens, "res_kl_divs": mean}, rule)
    without = []
    for p in range(5):
        rest = [k for k in range(5) if k != p]
        pooled = sums[rest].sum(0) / n_tokens[rest].sum()
        without.append(pooled - pooled.max() / 2)
    np.testing.assert_allclose(gaps.without_each, without, rtol=1e-5, atol=1e-5)
    unbiased = 5 * (mean - mean.max() / 2) - 4 * np.mean(without, 0)
    np.testing.assert_allclose(gaps.value, unbiased, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_identical_prompts_give_an_interval_of_zero_width(rule):
    result = prompts_of(rule, [CURVES["steep"][rule]] * 7, "same")
    truth = depth_of(rule, CURVES["steep"][rule])
    assert depth_interval(result, RULES[rule]) == (truth, truth)
    assert difference_interval(result, result, RULES[rule]) == (0, 0)


def test_the_intervals_of_identical_prompts_have_a_note_and_others_have_none():
    curve = CURVES["steep"]["kl"]
    for curves, noted in (([curve] * 5, True), ([*[curve] * 4, 1.01 * np.asarray(curve)], False)):
        result = result_of("logit_lens", len(curve), 5) | prompts_of("kl", curves, "same")
        notes = effective_depths(result).note[0], compare({"a": result, "b": result}).frame.note[0]
        assert all((note == EQUAL) == noted for note in notes)


def test_an_overlap_of_exactly_the_threshold_in_all_prompts_has_not_crossed():
    assert depth_interval(prompts_of("overlap", [[0.1, 0.3, 0.3, 0.4, 0.9]] * 3), RULES["overlap"]) == (3, 3)


def test_prompts_of_which_some_never_cross_leave_the_end_open():
    crosses, never = [0.1, 0.1, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]
    assert depth_interval(prompts_of("overlap", [crosses] * 2 + [never] * 3), RULES["overlap"])[1] is None
    earlier = prompts_of("overlap", [[0.1, 0.4, 0.9, 0.9]] * 2 + [crosses] * 3)
    assert depth_interval(earlier, RULES["overlap"]) == (1, 2)
    assert depth_interval(prompts_of("overlap", [never] * 3), RULES["overlap"]) == (None, None)


@pytest.mark.parametrize("rule", RULES)
def test_the_possible_layers_are_those_of_all_curves_within_the_band(rule):
    """Every curve whose values are at the ends of the band, by brute force."""
    draw = np.random.default_rng(0)
    for _ in range(60):
        low = draw.normal(size=5).round()  # some are exactly at the level
        high = low + draw.exponential(0.7, 5).round()
        found = set()
        for corner in np.ndindex(*[2] * 5):
            gap = np.where(corner, high, low)
            depth = RULES[rule].layer(gap)
            found.add(depth if depth is not None else 4 if not RULES[rule].last_turn or gap[-1] < 0 else -1)
        assert {*possible_layers(RULES[rule], low, high)} <= found | {-1, 4}
        layers = possible_layers(RULES[rule], low, high)
        assert min(found) == min(layers) and max(found) == max(layers)


def test_without_sums_with_too_few_prompts_or_with_nan_there_is_no_interval_and_a_reason():
    theirs = {"res_kl_divs": result_of("logit_lens", 8)["res_kl_divs"]}
    for result, reason in (
        (theirs, "the file has no sums per prompt"),
        (prompts_of("kl", [[3.0, 2.0, 1.0]] * 2), "at least 3 prompts are needed, got 2"),
        (prompts_of("kl", [[3.0, float("nan"), 1.0]] * 4), "not finite"),
    ):
        with pytest.raises(NoInterval, match=reason):
            depth_interval(result, RULES["kl"])


def test_noise_that_both_share_at_least_halves_the_interval_of_a_difference():
    rule, curve, widths = RULES["kl"], CURVES["slow"]["kl"], []
    for seed, n_prompts in ((1, 10), *((seed, 30) for seed in range(6))):
        draw = np.random.default_rng(seed)
        prompts = curve + spread(curve) * noise(draw, (n_prompts, N_LAYERS), 0.9)
        other = prompts + 0.001 * spread(curve) * noise(draw, (n_prompts, N_LAYERS), 0)
        base, ends = prompts_of("kl", prompts, "same"), []
        for one in (other, other[::-1]):
            low, high = difference_interval(base, prompts_of("kl", one, "same"), rule)
            assert low <= 0 <= high
            ends.append(high - low)
        widths.append(ends)
    paired, in_another_order = np.transpose(widths)
    assert 2 * paired[0] <= in_another_order[0] + 1e-9
    assert 2 * paired[1:].mean() <= in_another_order[1:].mean()


def test_prompts_are_the_same_if_both_results_have_the_same_hash_of_them():
    one, other, none = ({"meta": {"prompts_hash": hashed}} if hashed else {} for hashed in ("a", "b", ""))
    pairs = [(one, one), (one, other), (one, none), (none, one), (none, none)]
    assert [same_prompts(*pair) for pair in pairs] == [True, False, False, False, False]


def test_a_difference_of_models_of_other_depths_is_in_shares_and_open_where_one_has_none():
    shallow, deep = ([[9.0] * n + [1.0] * n] * 4 for n in (2, 4))
    found = difference_interval(prompts_of("kl", shallow, "a"), prompts_of("kl", deep, "a"), RULES["kl"])
    assert found == (5 / 8 - 3 / 4, 5 / 8 - 3 / 4)
    crosses, never = [0.1, 0.1, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]
    some, every = prompts_of("overlap", [crosses] * 2 + [never] * 3), prompts_of("overlap", [[0.1, 0.1, *crosses]] * 5)
    low, high = difference_interval(every, some, RULES["overlap"])
    assert low is not None and high is None
    assert difference_interval(some, every, RULES["overlap"])[0] is None


@pytest.mark.parametrize("rule", RULES)
def test_a_difference_of_different_prompts_has_the_ends_of_both_intervals(rule):
    draw, open_ends = np.random.default_rng(0), 0
    for _ in range(40):
        ends, results = [], []
        for n_layers in (5, 7):
            curve = CURVES["slow"][rule][:: N_LAYERS // n_layers][:n_layers]
            results.append(prompts_of(rule, curve + 0.6 * np.ptp(curve) * draw.normal(size=(4, n_layers))))
            ends.append(
                [None if end is None else (end + 1) / n_layers for end in depth_interval(results[-1], RULES[rule])]
            )
        (low, high), (low_after, high_after) = ends
        if None in (low, low_after) and None in (high, high_after):
            continue
        found = difference_interval(*results, RULES[rule])
        if None not in (high, low_after):
            assert found[0] == pytest.approx(low_after - high)
        if None not in (low, high_after):
            assert found[1] == pytest.approx(high_after - low)
        assert found[0] is None or high is not None
        assert found[1] is None or high_after is not None
        open_ends += None in found
    assert open_ends > 3


def test_the_depth_score_is_the_centre_of_the_mean_profile_with_the_error_of_a_ratio(stats):
    profiles = np.random.default_rng(0).gamma(2, 1, (400, 6))
    estimate = score_interval(profiles)
    assert estimate.value == pytest.approx(depth_score(profiles.mean(0)))
    mass, moment = profiles.sum(1), profiles @ np.arange(6)
    error = np.sqrt(((moment - estimate.value * mass) ** 2).sum() * 400 / 399) / mass.sum()
    assert estimate.high - estimate.low == pytest.approx(2 * stats.t.ppf(0.975, 399) * error, rel=0.01)
    equal = score_interval(np.tile([0.0, 1.0, 3.0], (4, 1)))
    assert equal.low == pytest.approx(1.75) and equal.high == pytest.approx(1.75)
    at_ends = [score_interval(profiles[:4] * (np.arange(6) == [[layer]] * 4) + 0.05 * profiles[:4]) for layer in (0, 5)]
    assert at_ends[0].low == 0 < at_ends[0].value < 1 and at_ends[1].high == 5 > at_ends[1].value > 4
    some = profiles[:5]
    assert score_interval(np.vstack([some, np.zeros((4, 6))])) == score_interval(some)
    with pytest.raises(NoInterval, match="only 2 examples have an effect; at least 3 are needed"):
        score_interval(np.vstack([some[:2], np.zeros((4, 6))]))


@pytest.mark.parametrize("n_prompts", others_slow([3, 10], [10]))
@pytest.mark.parametrize("rule", RULES)
def test_intervals_cover_the_true_depth_as_often_as_they_say(rule, n_prompts):
    """Where curves cross steeply and slowly; prompts that differ evenly and a few by much, by layer and as a whole."""
    shares = [share for kind in CURVES for share, _ in depth_cells(rule, CURVES[kind][rule], n_prompts, 60)]
    # of 60 intervals that cover the truth with 93%, fewer than 50 do in one of 1,000 cells
    assert np.mean(shares) >= 0.95 and np.min(shares) >= 50 / 60, shares


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shared", others_slow([0, *SHARED.values()], [0]))
def test_intervals_cover_the_true_difference_as_often_as_they_say(rule, shared):
    shares = [share for kind in CURVES for share, _ in difference_cells(rule, CURVES[kind][rule], 10, 20, shared)]
    assert np.mean(shares) >= 0.95, shares
    if not shared and rule == "kl":  # and no more: an interval of all layers would say nothing
        assert difference_cells(rule, CURVES["steep"][rule], 10, 20, 0)[0][1] < 0.4
    assert depth_of(rule, shifted(CURVES["steep"][rule], 3)) < depth_of(rule, CURVES["steep"][rule])


def test_the_documented_coverage_of_depths_and_differences_is_93_percent_or_more_and_of_scores_88():
    depths, scores = DOCUMENTED.split("## What random")[0].split("**A depth score**")
    found = [[int(lowest) for lowest in re.findall(r"\((\d+)\)", part)] for part in (depths, scores)]
    assert len(found[0]) == 63 and min(found[0]) >= 93
    assert len(found[1]) == 12 and min(found[1]) >= 88
    widths = [float(width) for width in re.findall(r"\), ([\d.]+)", depths.split("**The difference")[1])]
    assert len(widths) == 27 and np.mean(widths) <= 0.25  # an interval of all layers would cover the truth too
