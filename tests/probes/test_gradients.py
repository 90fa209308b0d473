"""Integrated gradients: the same bits under any default dtype and autocast, and what they say of half precision."""

import warnings

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run
from tests.families import build
from tests.probes.comparing import loaded
from tests.probes.test_quadrature import integrate, path


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """gradients(at, steps): the probe's result for a small Llama."""
    llm = loaded(build("llama"), tmp_path_factory.mktemp("llama"))
    (ids, places, _), arch = answer_span(llm, "5 + 7 + 5 = ", "17"), describe(llm)

    def measured(at, steps):
        work = (arch, ids, places, [0, 2, 3], at, steps, 1e-3, None)
        return run(integrated_gradients, llm, *work, remote=False)

    return measured


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("at", "steps"), [("block", None), ("attention", None), ("mlp", 8)])
def test_the_default_dtype_changes_no_bit(at, steps, dtype, gradients, default_dtype):
    truth = gradients(at, steps)
    default_dtype(dtype)
    for key, value in gradients(at, steps).items():
        assert value.dtype == torch.float32 and torch.equal(value, truth[key]), key


@pytest.mark.parametrize("eps", [1e-7, 0.0078])  # rounding is measured in the second
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_autocast_and_the_default_dtype_change_no_bit_of_the_quadrature(dtype, eps, default_dtype):
    smooth, _ = path((0.5, 0.3, 0.01), (-0.2, 0.7, 0.1))

    def sample(points, number=0):  # the other paths' slopes differ a little
        v, f = smooth(points)
        return v * (1 + number * torch.tensor([0.01, -0.003, 0.005], dtype=torch.float32)), f

    truth = integrate(sample, 1e-3, eps)
    default_dtype(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = integrate(sample, 1e-3, eps)
    assert torch.equal(found["integral"], truth["integral"])
    for key in ("n_nodes", "error", "quadrature", "rounding"):
        assert found[key] == truth[key], key
    assert (found["rounding"] > 0) == (eps > 1e-4)


@pytest.fixture(scope="module")
def both():
    """toy-8l's gradients in both precisions, with the warnings of bfloat16."""
    results = []
    for dtype in ("float32", "bfloat16"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(dl.integrated_gradients(dl.load_model("toy-8l", dtype=dtype), "5 + 7 + 5 = ", "17"))
    return *results, [str(warning.message) for warning in caught]


def test_bfloat16_takes_float32s_nodes_and_says_how_far_it_is_off(both):
    exact, rough, _ = both
    assert rough["n_nodes"].sum() <= 1.3 * exact["n_nodes"].sum()
    largest = exact["igrads"].abs().amax(1)
    ratios = rough["error"] * largest / (rough["igrads"] - exact["igrads"]).abs().amax(1)
    assert (ratios >= 0.5).sum() >= 7 and ratios.median() <= 4, ratios


def test_what_is_rounding_and_what_is_quadrature_is_told_apart(both):
    exact, rough, said = both
    assert not exact["rounding"].any() and torch.equal(exact["error"], exact["quadrature"])
    assert (rough["rounding"] > 0.001).all()
    assert torch.allclose(rough["error"] ** 2, rough["rounding"] ** 2 + rough["quadrature"] ** 2)
    by_rounding = [line for line in said if "which is the rounding of bfloat16" in line]
    assert len(by_rounding) == 1 and all("of the largest attribution" in line for line in said)
