"""Integrated gradients: the same bits under any default dtype, and under a server's autocast of the same values."""

import pytest
import torch

from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run
from tests.families import build
from tests.probes.test_parts import loaded
from tests.probes.test_quadrature import integrate, path


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """gradients(at, steps): the probe's result for a small Llama."""
    llm = loaded(build("llama"), tmp_path_factory.mktemp("llama"))
    (ids, places, _), arch = answer_span(llm, "5 + 7 + 5 = ", "17"), describe(llm)

    def measured(at, steps):
        how = {"at": at, "steps": steps, "tolerance": 1e-3}
        return run(integrated_gradients, llm, arch, ids, places, [0, 2, 3], how, None, remote=False)

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_autocast_and_the_default_dtype_change_no_bit_of_the_quadrature(dtype, default_dtype):
    sample, _ = path((0.5, 0.3, 0.01), (-0.2, 0.7, 0.1))
    truth = integrate(sample, 1e-3, 1e-7)
    default_dtype(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = integrate(sample, 1e-3, 1e-7)
    assert torch.equal(found["integral"], truth["integral"]) and found["n_nodes"] == truth["n_nodes"]
    assert found["error"] == truth["error"]
