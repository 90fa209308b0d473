"""The numbers that answer the question, on matrices whose answer is seen, and the file and figure they come with."""

import numpy as np
import pytest

from depth_lib.figures import linear_maps_figure
from depth_lib.model_maps.stretch import stretch


def test_a_perfect_stretch_has_rank_correlation_one_no_distance_and_a_price_elsewhere():
    relative = np.full((5, 5), 0.8) - 0.7 * np.eye(5)
    expected = {"rank_correlation": 1, "distance": 0, "predicted": 1, "penalty": 0.7}
    assert stretch({"relative": relative}) == pytest.approx(expected)
    flat = stretch({"relative": np.ones((3, 4))})
    assert np.isnan(flat["rank_correlation"]) and flat["predicted"] == 0, "one best layer for all has no order"


def test_the_figure_shows_every_cell_the_best_ones_and_the_diagonal():
    relative = np.random.default_rng(2).random((4, 7))
    figure = linear_maps_figure({"relative": relative, "best": relative.argmin(0)}, "toy_4$l", "toy-8l")
    ax = figure.axes[0]
    assert np.array_equal(ax.images[0].get_array(), relative)
    diagonal, best = ax.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [6, 3]]
    assert np.array_equal(best.get_ydata(), relative.argmin(0))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Layer of toy-8l", "Layer of toy_4$l")
