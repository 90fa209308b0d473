"""Depth scores by level: known values, the slope, and whether the intervals cover the truth."""

import numpy as np
import pytest

from depth_lib.effective_depth.difficulty import depth_scores, importance, score_rows
from depth_lib.effective_depth.intervals import NoInterval
from tests.effective_depth.coverage import scores_covered

L, N = 12, 20
HALVES = slice(N), slice(N, 2 * N)


def result_of(layer, output, levels):
    """What `depth_by_difficulty` returns, with these effects."""
    return {"level": np.asarray(levels), "layer_effect": np.asarray(layer), "output_effect": np.asarray(output)}


def drawn(rng, centres, n_examples=N):
    """Examples whose importance over layers lies about a centre of its level, and differs in size and form."""
    layers, effects = np.arange(L), []
    for centre in centres:
        mean = np.exp(-((layers - centre) ** 2) / 8)
        size = rng.lognormal(0, 0.5, (n_examples, 1))
        effects.append(mean * size * rng.gamma(2, 0.5, (n_examples, L)))
    return np.concatenate(effects)


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
    found = depth_scores(result_of(as_map(effects), effects, np.repeat([2, 3, 4], N)), "output")
    assert [(score.low, score.value, score.high) for score in found.scores.values()] == [(s, s, s) for s in (2, 5, 8)]
    assert (found.slope.value, found.slope.low, found.slope.high) == pytest.approx((3, 3, 3))
    assert str(found).startswith("Harder questions use more depth: ") and "+3.00 layers a level" in str(found)
    with pytest.raises(NoInterval, match="one level of difficulty, 2, has no slope"):
        depth_scores(result_of(as_map(effects), effects, [2] * 3 * N))


@pytest.mark.slow
@pytest.mark.parametrize("n_examples", [5, 20])
@pytest.mark.parametrize("skewed", [False, True])
def test_the_intervals_of_scores_and_slope_cover_the_truth(skewed, n_examples):
    """As often as docs/coverage.md says, and no more: an interval of all layers would say nothing."""
    shares = scores_covered(n_examples, skewed, 400)
    assert shares.min() >= 0.9 and shares.mean() < 0.985, shares


def test_a_slope_that_layer_0_alone_makes_is_no_use_of_depth():
    """Without it the effects of both levels are the same."""
    effects = drawn(np.random.default_rng(4), (6.0, 6.0))
    effects[:N, 0] += 5 * effects[:N].sum(1)  # easy questions: most of the effect is that of layer 0
    found = depth_scores(result_of(as_map(effects), effects, np.repeat([2, 3], N)), "output")
    assert found.slope.low > 1 and found.without_first.low < 0 < found.without_first.high
    assert str(found).startswith(
        "What moves with the level is the share of layer 0; the other layers may not move at all: "
    )
    assert str(found).endswith("Harder questions are often longer; length is not controlled for.")
    centres = [(effects[rows, 1:].mean(0) * np.arange(1, L)).sum() / effects[rows, 1:].mean(0).sum() for rows in HALVES]
    assert found.without_first.value == pytest.approx(centres[1] - centres[0])
    (row, _) = score_rows(result_of(as_map(effects), effects, np.repeat([2, 3], N)), "output")
    assert row["slope_without_layer_0"] == found.without_first.value


def test_every_level_draws_its_own_examples():
    """Two levels with the same examples: drawn alike, their slope would be 0 without any doubt."""
    effects = drawn(np.random.default_rng(2), (4.0,))
    twice = np.concatenate([effects, effects])
    found = depth_scores(result_of(as_map(twice), twice, np.repeat([2, 3], N)))
    assert found.slope.value == 0 and found.slope.low < -0.05 and found.slope.high > 0.05


def test_examples_without_any_effect_are_left_out():
    effects = drawn(np.random.default_rng(3), (3.0, 5.0), 10)
    levels, idle = np.repeat([2, 3], 10), np.arange(20) < 6
    with_idle = np.where(idle[:, None], 0, effects)
    found = depth_scores(result_of(as_map(with_idle), with_idle, levels), "output")
    assert found == depth_scores(result_of(as_map(effects[~idle]), effects[~idle], levels[~idle]), "output")
    with_idle[:8] = 0
    with pytest.raises(NoInterval, match="too few examples of level 2 with an effect: 2; run 3"):
        depth_scores(result_of(as_map(with_idle), with_idle, levels), "output")
