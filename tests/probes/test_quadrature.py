"""Adaptive quadrature on functions with known integrals: the nodes it takes, and whether its error is the true one."""

import numpy as np
import pytest
import torch

from depth_lib.probes.quadrature import gauss_kronrod, panels


def path(*steps, smooth=0.3):
    """(sample, integrals): F(r) = smooth · r² + Σ height · sigmoid((r − place) / width), a part each, float64."""

    def sample(points):
        calls.append(len(points))
        r = torch.tensor(points, dtype=torch.float64)
        parts, values = [2 * smooth * r], [smooth * r**2]
        for height, place, width in steps:
            y = torch.sigmoid((r - place) / width)
            parts.append(height * y * (1 - y) / width)
            values.append(height * y)
        return torch.stack(parts, 1).float(), sum(values).tolist()

    calls = sample.calls = []
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    rise = [height * torch.sigmoid((ends - place) / width).diff().item() for height, place, width in steps]
    return sample, torch.tensor([smooth, *rise])


def integrate(sample, tolerance, eps):
    """What `panels` returns when it is sent what it asks for; `sample` may take the number of the path too."""
    rule = panels(tolerance, eps)
    points, number = next(rule)
    while True:
        try:
            points, number = rule.send(sample(points, number) if number else sample(points))
        except StopIteration as finished:
            return finished.value


def rounded(sample, share, seed):
    """`sample` with slopes v off by a share of themselves, half of the variance alike on a path, and F of F (1 − F)."""
    n_parts = sample([0.5])[0].shape[1]

    def again(points, number=0):
        v, f = sample(points)
        common = torch.Generator().manual_seed(100 * seed + number)
        along = torch.randn(n_parts, generator=common)
        single = torch.Generator().manual_seed(hash((seed, number, *points)) % 2**32)
        noise = 0.5**0.5 * (along + torch.randn(v.shape, generator=single))
        f = torch.tensor(f)
        f += share * f * (1 - f) * torch.randn(len(f), generator=single)
        return v * (1 + share * noise), f.tolist()

    return again


def true_error(found, truth):
    return ((found["integral"] - truth).abs().max() / found["integral"].abs().max()).item()


def test_the_rules_are_exact_for_the_polynomials_that_they_should_be_exact_for():
    for n, rule in gauss_kronrod().items():
        nodes, points = np.array(rule["nodes"]), np.array([0, *rule["nodes"], 1])
        exact = {7: (14, 4), 15: (23, 14)}[n]  # below these degrees: the rule, and what it is compared with
        for degree in range(23):
            powers = nodes**degree
            for weights, below in zip((rule["fine"], rule["coarse"]), exact, strict=True):
                error = abs(powers @ weights.numpy() - 1 / (degree + 1))
                assert error < 1e-7 if degree < below else error > 1e-9
            if degree < n:
                truth = np.diff(points ** (degree + 1)) / (degree + 1)
                assert np.allclose(rule["gaps"].numpy() @ powers, truth, atol=1e-6)
    seven, fifteen = gauss_kronrod().values()
    assert fifteen["nodes"][1::2] == seven["nodes"] and fifteen["coarse"].count_nonzero() == 7


def test_a_smooth_path_takes_seven_nodes_in_one_batch_with_both_ends():
    sample, truth = path((0.4, 0.5, 0.5), (-0.1, 0.2, 1))
    found = integrate(sample, 0.01, 1e-7)
    assert found["n_nodes"] == 9 and sample.calls == [9]
    assert true_error(found, truth) <= found["error"] <= 0.01
    assert found["f"][1] - found["f"][0] == pytest.approx(truth.sum().item())


def test_a_less_smooth_one_takes_the_nodes_between_them_too():
    sample, truth = path((0.4, 0.5, 0.15), (-0.1, 0.2, 0.3))
    found = integrate(sample, 1e-3, 1e-7)
    assert found["n_nodes"] == 17 and sample.calls == [9, 8]
    assert true_error(found, truth) <= found["error"] <= 1e-3


@pytest.mark.parametrize("width", [0.03, 0.01, 0.001, 0.0001])
@pytest.mark.parametrize("place", [0.013, 0.1337, 0.52, 0.802])
def test_a_steep_step_is_found_and_resolved_within_the_papers_cost(place, width):
    sample, truth = path((0.5, place, width), (-0.2, place + 2 * width, width))
    found = integrate(sample, 0.01, 1e-7)
    assert true_error(found, truth) <= found["error"] <= 0.01
    assert found["n_nodes"] <= 256 and max(sample.calls) >= 14  # the nodes of several panels share a batch


def test_a_jump_that_no_node_sees_is_in_the_estimate():
    smooth, truth = path()

    def sample(points):
        values, f = smooth(points)
        return values, [y + 0.2 * (r > 0.3) for r, y in zip(points, f, strict=True)]

    found = integrate(sample, 0.01, 1e-7)
    missing = 0.2 / truth.item()
    assert missing <= found["error"] <= 2 * missing and found["n_nodes"] <= 256


def test_many_steps_leave_an_estimate_that_is_true_where_the_nodes_run_out():
    draw = np.random.default_rng(0)
    for _ in range(20):
        steps = [(draw.normal() / 4, draw.uniform(0.1, 0.2), 10 ** draw.uniform(-4, -2)) for _ in range(12)]
        sample, truth = path(*steps)
        found = integrate(sample, 1e-3, 1e-7)
        assert found["n_nodes"] <= 256
        assert true_error(found, truth) <= max(found["error"], 1e-5)


def test_parts_that_cancel_in_the_sum_are_judged_one_by_one():
    sample, truth = path((0.5, 0.3, 0.01), (-0.5, 0.3, 0.01))
    found = integrate(sample, 0.01, 1e-7)
    assert true_error(found, truth) <= found["error"] <= 0.01 and found["n_nodes"] > 9


@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize(
    "steps",
    [[(0.4, 0.5, 0.5), (-0.1, 0.2, 1), (0.3, 0.8, 0.4)], [(0.5, 0.3, 0.02), (-0.3, 0.6, 0.02), (0.3, 0.9, 0.1)]],
)
def test_rounding_is_told_from_the_quadratures_error(steps, share):
    sample, truth = path(*steps)
    exact, ratios, n_nodes = integrate(sample, 0.01, 1e-7), [], []
    for seed in range(40):
        found = integrate(rounded(sample, share, seed), 0.01, 0.0078)
        ratios.append(found["error"] / true_error(found, truth))
        n_nodes.append(found["n_nodes"])
        assert found["error"] == pytest.approx((found["rounding"] ** 2 + found["quadrature"] ** 2) ** 0.5)
    assert np.mean(n_nodes) <= exact["n_nodes"] + 24  # seven points of two paths measure the rounding
    within = [0.5 <= ratio <= 3 for ratio in ratios]
    assert np.mean(within) >= 0.7 and 0.7 <= np.median(ratios) <= 2.5


def test_without_half_precision_there_is_no_rounding():
    found = integrate(path((0.5, 0.3, 0.01))[0], 0.01, 1e-7)
    assert found["rounding"] == 0 and found["error"] == found["quadrature"] > 0


def test_what_rounding_leaves_is_not_cut_further():
    sample, _ = path((0.5, 0.3, 0.05))
    few, many = (integrate(sample, 0, rounding)["n_nodes"] for rounding in (9e-5, 4e-7))
    assert few < many < 256


def test_values_that_are_no_numbers_end_at_once():
    found = integrate(lambda points: (torch.full((len(points), 3), float("nan")), [0.5] * len(points)), 0.01, 1e-7)
    assert found["n_nodes"] == 9 and not found["integral"].isfinite().any()


@pytest.mark.parametrize("eps", [1e-7, 0.0078])
def test_a_constant_has_integral_and_error_zero(eps):
    found = integrate(lambda points, path=0: (torch.zeros(len(points), 3), [0.5] * len(points)), 0.01, eps)
    assert not found["integral"].any() and found["error"] == 0
