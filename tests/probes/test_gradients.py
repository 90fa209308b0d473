"""What integrated gradients say of half precision, beside float32."""

import warnings

import pytest
import torch

import depth_lib as dl


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
    averaged = 2**-9 / 256**0.5  # the rounding unit of bfloat16 over as many points as there may be
    assert (rough["rounding"] > averaged).all()
    assert torch.allclose(rough["error"] ** 2, rough["rounding"] ** 2 + rough["quadrature"] ** 2)
    by_rounding = [line for line in said if "which is the rounding of bfloat16" in line]
    assert len(by_rounding) == 1 and all("of the largest attribution" in line for line in said)
