"""A server of NDIF's older source, whose conditions are stricter (see loopback/february.py): the local numbers, and a
test that each condition is one."""

import pytest
import torch

from depth_lib import remote
from tests.calls import EVERY
from tests.remote.conditions import BEFORE, others_slow

QUICK = ("relative_contribution", "layer_effects, future, layer", "gradients")


@pytest.fixture(autouse=True)
def february(loopback):
    with loopback.faults(february=True):
        yield


@pytest.mark.parametrize("probe", others_slow(QUICK))
def test_the_numbers_are_those_computed_here(llm, here, probe, loopback):
    """To 1e-6: the model's own modules compute without autocast, but what stands between them does not."""
    printed = len(loopback.asked()["printed"])
    assert not changed(EVERY[probe](llm, remote=loopback.host), EVERY[probe](here))
    assert not loopback.asked()["printed"][printed:], "an attribute of a module was copied on the server"


def close(tensor, truth):
    within = 1e-6 * truth.nan_to_num().abs().max().item()
    return tensor.dtype == torch.float32 and torch.allclose(tensor, truth, rtol=0, atol=within, equal_nan=True)


def changed(result, truth):
    """The keys whose values are not those computed here."""
    return {key for key in truth if isinstance(truth[key], torch.Tensor) and not close(result[key], truth[key])}


@pytest.mark.parametrize("probe", ["relative_contribution", "layer_effects, future, layer"])
def test_a_tensor_without_a_dtype_is_noticed(llm, here, loopback, mutate, probe):
    truth = EVERY[probe](here)
    mutate(r", dtype=torch\.float32", "")
    try:
        assert changed(EVERY[probe](llm, remote=loopback.host), truth)
    except remote.JobFailed as error:
        assert "dtype" in str(error)


def test_changing_a_module_is_refused(llm, loopback, mutate):
    mutate(BEFORE, r"\1llm.unembed.to(torch.float32)\n\g<0>")
    with pytest.raises(remote.JobFailed, match="Attribute `to` cannot be accessed"):
        EVERY["logit_lens"](llm, remote=loopback.host)


def test_reading_a_weight_is_noticed(llm, loopback, mutate):
    printed = len(loopback.asked()["printed"])
    mutate(r"llm\.config\.get_text_config\(\)\.vocab_size", "llm.unembed.weight.shape[0]")
    EVERY["logit_lens"](llm, remote=loopback.host)
    assert "attribute `weight` of Linear" in "".join(loopback.asked()["printed"][printed:])


NEED_EXACT = {"relative_contribution": "att_cos", "gradients": "igrads"}


@pytest.mark.parametrize("probe", NEED_EXACT)
def test_products_that_autocast_would_round_are_noticed(llm, here, loopback, mutate, probe):
    """Inner products and the quadrature are our own float32 products."""
    truth = EVERY[probe](here)
    mutate(r"enabled=False", "enabled=torch.is_autocast_enabled('cpu'), dtype=torch.bfloat16")
    assert NEED_EXACT[probe] in changed(EVERY[probe](llm, remote=loopback.host), truth)
