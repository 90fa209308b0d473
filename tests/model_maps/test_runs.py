"""What surrounds the arithmetic: names, dtypes and devices."""

import accelerate
import pytest
import torch

import depth_lib as dl
from depth_lib.results.schemas import SCHEMAS
from tests.model_maps.models import llama, words, wrapped
from tests.probes.device_tags import PretendDevices, place


@pytest.fixture(scope="module")
def truth():
    """The maps of a model to itself."""
    llm = wrapped(llama())
    return dl.linear_maps(llm, llm, words(12))


def test_a_model_in_bfloat16_is_read_and_one_whose_half_precision_overflows_is_refused():
    llm, texts = wrapped(llama(dtype=torch.bfloat16)), words(20)
    assert dl.linear_maps(llm, llm, texts)["relative"].diagonal().max() < 1e-5
    broken = wrapped(llama())
    broken._module.model.layers[1].mlp.down_proj.weight.data.mul_(1e9)
    broken._module.half()
    with pytest.raises(dl.ModelError, match="its logits are not finite in float16: "):
        dl.linear_maps(llm, broken, texts)


def test_models_on_a_device_without_float64_give_the_same_bits(truth):
    llm = wrapped(llama())
    with PretendDevices():
        for tensor in (*llm._module.parameters(), *llm._module.buffers()):
            place(tensor, "mps")
        found = dl.linear_maps(llm, llm, words(12))
    assert found.keys() == SCHEMAS["linear_map"].required.keys() | {"n_fit_tokens"}
    assert all(torch.equal(found[key], truth[key]) for key in truth)


def test_weights_that_are_offloaded_are_here(truth):
    llm = wrapped(llama())
    accelerate.cpu_offload(llm._module.model.layers, execution_device=torch.device("cpu"))
    assert all(weight.is_meta for weight in llm._module.model.layers.parameters())
    assert torch.equal(dl.linear_maps(llm, llm, words(12))["relative"], truth["relative"])
