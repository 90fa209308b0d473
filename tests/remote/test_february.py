"""A server of NDIF's older source, whose conditions are stricter (see loopback/february.py): the local numbers."""

import pytest
import torch

from tests.calls import EVERY
from tests.remote.conditions import others_slow

QUICK = ("relative_contribution", "logit_lens, two keys", "layer_effects, future, layer", "gradients")


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
