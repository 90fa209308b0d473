"""Adaptive quadrature on functions with known integrals: the nodes it takes, and whether its error is the true one."""

import numpy as np
import pytest
import torch

from depth_lib.residual.quadrature import CLENSHAW_CURTIS, PLACES, SIMPSON, converged
from tests.marks import slow


def path(*steps, smooth=0.3):
    """(sample, integrals): F(r) = smooth · r² + Σ height · sigmoid((r − place) / width), a part each, float64."""

    def sample(points):
        calls.append(len(points))
        r = points
        parts, values = [2 * smooth * r], [smooth * r**2]
        for height, place, width in steps:
            y = torch.sigmoid((r - place) / width)
            parts.append(height * y * (1 - y) / width)
            values.append(height * y)
        return torch.stack(parts, 1).float(), sum(values)

    calls = sample.calls = []
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    rise = [height * torch.sigmoid((ends - place) / width).diff().item() for height, place, width in steps]
    return sample, torch.tensor([smooth, *rise])


def integrate(sample, tolerance, eps, most=257):
    return converged(sample, tolerance, eps, most)


def true_error(found, truth):
    return ((found["integral"] - truth).abs().max() / found["integral"].abs().max()).item()


@pytest.mark.parametrize(("rule", "exact"), [(CLENSHAW_CURTIS, 5), (SIMPSON, 3)])
def test_a_rule_is_exact_up_to_its_degree(rule, exact):
    for degree in range(8):
        error = abs(sum(weight * place**degree for weight, place in zip(rule, PLACES, strict=True)) - 1 / (degree + 1))
        assert error < 1e-15 if degree <= exact else error > 1e-4


def test_a_smooth_path_takes_nine_nodes_in_one_batch_with_both_ends():
    sample, truth = path((0.4, 0.5, 0.5), (-0.1, 0.2, 1))
    found = integrate(sample, 0.01, 1e-7)
    assert found["n_nodes"] == 9 and sample.calls == [9]
    assert true_error(found, truth) <= found["error"] <= 0.01
    assert found["f"][1] - found["f"][0] == pytest.approx(truth.sum().item())


def test_a_steeper_one_takes_six_more_nodes_in_each_panel_that_is_halved():
    sample, truth = path((0.4, 0.25, 0.1))
    found = integrate(sample, 1e-3, 1e-7)
    assert found["n_nodes"] == 15 and sample.calls == [9, 6]
    assert true_error(found, truth) <= found["error"] <= 1e-3


@pytest.mark.parametrize("width", [0.03, 0.01, 0.001, 0.0001])
@pytest.mark.parametrize("place", [0.013, 0.1337, 0.52, 0.802])
def test_a_steep_step_is_resolved_or_the_stated_error_covers_it(place, width):
    sample, truth = path((0.5, place, width), (-0.2, place + 2 * width, width))
    found = integrate(sample, 0.01, 1e-7)
    assert true_error(found, truth) <= found["error"]
    assert found["error"] <= 0.01 or (width < 0.01 and found["n_nodes"] == 257)


def test_a_jump_that_no_node_sees_is_in_the_estimate():
    smooth, truth = path()

    def sample(points):
        values, f = smooth(points)
        return values, f + 0.2 * (points > 0.3)

    found = integrate(sample, 0.01, 1e-7)
    missing = 0.2 / truth.item()
    assert missing <= found["error"] <= 2.01 * missing
    assert found["n_nodes"] == 9 + 6 * 22, "halved until a panel is narrower than the rounding of r"


def test_many_steps_leave_an_estimate_that_is_true_where_the_nodes_run_out():
    draw = np.random.default_rng(0)
    for _ in range(20):
        steps = [(draw.normal() / 4, draw.uniform(0.1, 0.2), 10 ** draw.uniform(-4, -2)) for _ in range(12)]
        sample, truth = path(*steps)
        found = integrate(sample, 1e-3, 1e-7)
        assert found["n_nodes"] <= 257
        assert true_error(found, truth) <= max(found["error"], 1e-5)


def test_parts_that_cancel_in_the_sum_are_judged_one_by_one():
    sample, truth = path((0.5, 0.3, 0.01), (-0.5, 0.3, 0.01))
    found = integrate(sample, 0.01, 1e-7)
    assert true_error(found, truth) <= found["error"] <= 0.01 and found["n_nodes"] > 9


def drawn_steps(draw):
    """1 to 8 steps of widths from 0.001 to 1, some cut by the ends of the path."""
    n = draw.integers(1, 9)
    return path(*[(draw.normal() / 3, draw.uniform(-0.1, 1.1), 10 ** draw.uniform(-3, 0)) for _ in range(n)])


def drawn_cusps(draw):
    """1 to 5 parts |r - c|^p, p from 0.6 to 3, whose slopes at c are not smooth, or not bounded."""
    n = draw.integers(1, 6)
    height, c, p = (torch.tensor(x) for x in (draw.normal(size=n), draw.uniform(0, 1, n), draw.uniform(0.6, 3, n)))

    def rise(r):
        return height * (r - c).sign() * (r - c).abs() ** p

    def sample(points):
        r = points[:, None]
        return (height * p * (r - c).abs() ** (p - 1)).float(), rise(r).sum(1)

    return sample, rise(1) - rise(0)


@pytest.mark.parametrize(("seed", "n"), [(1, 100), slow(1, 300), slow(2, 300), slow(3, 300)])
@pytest.mark.parametrize(("drawn", "bounded"), [(drawn_steps, 0.99), (drawn_cusps, 0.97)])
def test_the_stated_error_bounds_the_true_one_in_nearly_all_draws_and_is_not_much_larger(drawn, bounded, seed, n):
    draw, covered, ratios = np.random.default_rng(seed), [], []
    for _ in range(n):
        sample, truth = drawn(draw)
        found = integrate(sample, 0.01, 1.2e-7)
        assert found["error"] <= 0.01 or found["n_nodes"] == 257, "it stops where the stated error is small enough"
        off = true_error(found, truth)
        covered.append(off <= found["error"] + 2e-6)  # float32's rounding of the sum
        ratios.append(found["error"] / max(off, 1e-6))
    assert np.mean(covered) >= bounded and np.median(ratios) <= 16, (np.mean(covered), np.median(ratios))


def test_no_more_points_than_the_limit_are_taken_and_the_error_says_what_that_leaves():
    sample, truth = path((0.5, 0.3, 0.01), (-0.3, 0.7, 0.02))
    few, many = (integrate(sample, 1e-3, 1e-7, limit) for limit in (40, 257))
    assert few["n_nodes"] <= 40 < many["n_nodes"]
    assert true_error(few, truth) <= few["error"] and many["error"] <= 1e-3 < few["error"]


def test_what_rounding_leaves_is_not_cut_further():
    sample, _ = path((0.5, 0.3, 0.05))
    few, many = (integrate(sample, 0, rounding)["n_nodes"] for rounding in (9e-5, 4e-7))
    assert few < many < 257


def test_values_that_are_no_numbers_end_at_once():
    found = integrate(
        lambda points: (torch.full((len(points), 3), float("nan")), torch.full((len(points),), 0.5)), 0.01, 1e-7
    )
    assert found["n_nodes"] == 9 and not found["integral"].isfinite().any()


@pytest.mark.parametrize("eps", [1e-7, 0.0078])
def test_a_constant_has_integral_and_error_zero(eps):
    found = integrate(lambda points: (torch.zeros(len(points), 3), torch.full((len(points),), 0.5)), 0.01, eps)
    assert not found["integral"].any() and found["error"] == 0
