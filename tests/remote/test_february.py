"""The conditions of a server of NDIF's older source, bfloat16 as default dtype and autocast, change no number."""

import pytest
import torch

import depth_lib as dl
from tests.calls import EVERY
from tests.marks import others_slow
from tests.remote.conditions import differences

QUICK = ("relative_contribution", "logit_lens, two keys", "layer_effects, future, layer", "gradients")


@pytest.fixture(scope="module")
def shielded(loopback):
    """The model, whose blocks' parts, and all that stands beside the blocks, run without autocast."""
    llm = dl.load_model(loopback.models["loopback/llama"], dtype="bfloat16")
    inside = [module for block in llm._module.model.layers for module in list(block.modules())[1:]]
    beside = [module for module in llm._module.modules() if not list(module.children())]
    for module in dict.fromkeys(inside + beside):
        module.forward = torch.autocast("cpu", enabled=False)(module.forward)
    return llm


@pytest.fixture
def february():
    torch.set_default_dtype(torch.bfloat16)
    yield torch.autocast("cpu", dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("probe", others_slow(EVERY, QUICK))
def test_the_numbers_are_the_same(shielded, here, probe, february):
    with february:
        result = EVERY[probe](shielded)
    torch.set_default_dtype(torch.float32)
    assert not differences(result, EVERY[probe](here))
