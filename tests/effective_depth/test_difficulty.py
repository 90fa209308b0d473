"""Depth scores by level: known values, the slope, and whether the intervals cover the truth."""

import numpy as np
import pytest

from depth_lib.effective_depth.difficulty import depth_scores, importance
from tests.effective_depth.coverage import scores_covered

L, N = 12, 20


def result_of(layer, output, levels):
    """What `depth_by_difficulty` returns, with these effects."""
    return {"level": np.asarray(levels), "layer_effect": np.asarray(layer), "output_effect": np.asarray(output)}


def as_map(importances):
    """Effects on later layers with this importance: the mean over later layers is e_s, the last row has none."""
    maps = np.zeros((*importances.shape, L))
    for s in range(L - 1):
        maps[:, s, s + 1 :] = importances[:, s : s + 1]
    return maps


def test_importance_is_the_mean_effect_on_later_layers_and_the_output_effect_itself():
    layer = np.arange(16.0).reshape(1, 4, 4)
    found = result_of(layer, [[4.0, 3.0, 2.0, 1.0]], [2])
    assert importance(found, "layer").tolist() == [[2.0, 6.5, 11.0, 0.0]]
    assert importance(found, "output").tolist() == [[4.0, 3.0, 2.0, 1.0]]


def test_an_effect_of_one_layer_per_level_gives_these_layers_and_their_slope_without_any_doubt():
    effects = np.eye(L)[np.repeat([2, 5, 8], N)]
    frame = depth_scores(result_of(as_map(effects), effects, np.repeat([2, 3, 4], N)))
    assert frame.effect.tolist() == ["layer"] * 3 + ["output"] * 3 and frame.examples.tolist() == [N] * 6
    for column in ("score", "low", "high"):
        assert frame[column].tolist() == pytest.approx([2, 5, 8] * 2)
    for column in ("slope", "slope_low", "slope_high"):
        assert frame[column].tolist() == pytest.approx([3] * 6)
    alone = depth_scores(result_of(as_map(effects), effects, [2] * 3 * N))
    assert alone.slope.isna().all() and alone.low.notna().all()


def test_the_slope_is_least_squares_with_the_error_of_each_level(stats):
    draw = np.random.default_rng(2)
    effects, levels = draw.gamma(2, 1, (3 * N, L)), np.repeat([2, 3, 5], N)
    rows = depth_scores(result_of(as_map(effects), effects, levels)).query("effect == 'output'")
    assert rows.slope.iloc[0] == pytest.approx(np.polyfit(rows.level, rows.score, 1)[0])
    weights = (rows.level - rows.level.mean()) / ((rows.level - rows.level.mean()) ** 2).sum()
    errors = (rows.high - rows.score) / stats.t.ppf(0.975, N - 1)
    half = stats.t.ppf(0.975, 3 * (N - 1)) * np.sqrt(((weights * errors) ** 2).sum())
    assert (rows.slope_high - rows.slope).iloc[0] == (rows.slope - rows.slope_low).iloc[0] == pytest.approx(half)


def test_examples_without_any_effect_are_left_out_and_too_few_are_a_note():
    effects, levels = np.random.default_rng(3).gamma(2, 1, (20, L)), np.repeat([2, 3], 10)
    idle = np.arange(20) < 6
    with_idle = np.where(idle[:, None], 0, effects)
    found = depth_scores(result_of(as_map(with_idle), with_idle, levels)).drop(columns="examples")
    without = depth_scores(result_of(as_map(effects[~idle]), effects[~idle], levels[~idle])).drop(columns="examples")
    assert found.equals(without)
    with_idle[:8] = 0
    row = depth_scores(result_of(as_map(with_idle), with_idle, levels)).query("effect == 'output'").iloc[0]
    assert (
        row.note == "only 2 examples have an effect; at least 3 are needed"
        and np.isnan(row.low)
        and np.isnan(row.slope_low)
    )
    assert row.score == pytest.approx(with_idle[8:10].sum(0) @ np.arange(L) / with_idle[8:10].sum())


@pytest.mark.slow
@pytest.mark.parametrize("n_examples", [5, 20])
@pytest.mark.parametrize("skewed", [False, True])
def test_the_intervals_of_scores_and_slope_cover_the_truth(skewed, n_examples):
    """As often as docs/coverage.md says, and no more: an interval of all layers would say nothing."""
    shares = scores_covered(n_examples, skewed, 400)[:, 0]
    assert shares.min() >= 0.87 and shares.mean() < 0.985, shares
