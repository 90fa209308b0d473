"""The arithmetic of maps against numpy's least squares, which sees all tokens at once."""

import numpy as np
import pytest
import torch

from depth_lib.model_maps.regression import STRENGTHS, accumulate, solve

D_SOURCE, D_TARGET, TOKENS = 24, 40, 900


def draw(n, seed, massive=True):
    """Source [2, n, 24] and target [3, n, 40] states: the target a noisy affine function of the source."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(2, n, D_SOURCE)) @ g.normal(size=(D_SOURCE, D_SOURCE)) + 3
    maps = np.random.default_rng(7).normal(size=(3, D_SOURCE, D_TARGET)) / 5
    y = x[0] @ maps + 0.5 * g.normal(size=(3, n, D_TARGET)) + 2
    if massive:  # one token in fifty is long, and follows another law
        y[:, ::50] = 300 * g.normal(size=y[:, ::50].shape)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def moments(x, y, size=128):
    found = torch.zeros(len(x), len(y), D_SOURCE + 1, D_SOURCE + 1 + D_TARGET, dtype=torch.float64)
    for start in range(0, x.shape[1], size):
        accumulate(found, x[:, start : start + size], y[:, start : start + size])
    return found


def ridge_by_numpy(x, y, strength):
    """[W; b] of one pair by least squares on rows scaled by the root of their weights, with the ridge as more rows."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    w = 1 / np.maximum((y**2).sum(1), 1e-12)
    mean_x, mean_y = np.average(x, axis=0, weights=w), np.average(y, axis=0, weights=w)
    rows, goals = np.sqrt(w)[:, None] * (x - mean_x), np.sqrt(w)[:, None] * (y - mean_y)
    penalty = np.sqrt(strength * (rows**2).sum() / x.shape[1])
    rows = np.vstack([rows, penalty * np.eye(x.shape[1])])
    weights = np.linalg.lstsq(rows, np.vstack([goals, np.zeros((x.shape[1], y.shape[1]))]), rcond=None)[0]
    return np.vstack([weights, mean_y - mean_x @ weights])


def relative_errors(both, x, y):
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return np.linalg.norm(x @ both[:-1] + both[-1] - y, axis=1) / np.maximum(np.linalg.norm(y, axis=1), 1e-6)


@pytest.mark.parametrize(("m", "l"), [(0, 0), (1, 2)])
def test_a_map_from_streamed_moments_is_numpys_least_squares_with_the_same_ridge(m, l):
    x, y = draw(TOKENS, 1)
    fit = moments(x, y)
    strength, mean = solve(fit[m, l], moments(*draw(200, 2))[m, l])
    truth = ridge_by_numpy(x[m], y[l], strength)
    assert np.abs(fit[m, l, :, D_SOURCE + 1 :].numpy() - truth).max() <= 1e-6 * np.abs(truth).max()
    w = 1 / (y[l].double() ** 2).sum(1)
    assert torch.allclose(mean, (w[:, None] * y[l]).sum(0) / w.sum(), rtol=1e-9)


@pytest.mark.parametrize("n_fit", [30, 100, 900])
def test_the_ridge_is_the_one_with_the_least_weighted_squares_on_the_third_split(n_fit):
    (x, y), (x_choose, y_choose) = draw(n_fit, 3, massive=False), draw(200, 4, massive=False)
    strength, _ = solve(moments(x, y)[0, 1], moments(x_choose, y_choose)[0, 1])
    losses = [(relative_errors(ridge_by_numpy(x[0], y[1], s), x_choose[0], y_choose[1]) ** 2).sum() for s in STRENGTHS]
    assert losses[STRENGTHS.index(strength)] <= min(losses) * (1 + 1e-9)


def test_a_source_of_less_than_full_rank_has_a_finite_map():
    x, y = draw(TOKENS, 1)
    x[..., 5:] = 0
    x[..., 0] = 4
    fit = moments(x, y)
    solve(fit[0, 0], moments(*draw(200, 2))[0, 0])
    assert torch.isfinite(fit).all()
