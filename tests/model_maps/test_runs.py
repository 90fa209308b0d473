"""What surrounds the arithmetic: memory, names, dtypes and devices."""

import accelerate
import pytest
import torch

import depth_lib as dl
from depth_lib.model_maps import maps
from tests.model_maps.models import llama, words, wrapped
from tests.probes.device_tags import PretendDevices, place

TEXTS = words(20)
KEYS = {"relative", "relative_mean", "best", "strength", "relative_sums", "mean_sums", "n_tokens", "n_fit_tokens"}
PER_TARGET_LAYER = 2 * 4 * 17 * (17 + 24) * 8  # bytes of the moments of `pair`: float64, to fit and to choose


@pytest.fixture(scope="module")
def pair():
    return wrapped(llama()), wrapped(llama(seed=1, n_blocks=5, width=24))


@pytest.fixture(scope="module")
def truth(pair):
    return dl.linear_maps(*pair, TEXTS)


def test_target_layers_in_groups_that_fit_give_what_one_pass_gives(pair, truth, monkeypatch):
    passes, steps = [], maps.steps
    monkeypatch.setattr(maps, "steps", lambda *work: passes.append(1) or steps(*work))
    found = dl.linear_maps(*pair, TEXTS, memory=4 * PER_TARGET_LAYER)
    assert len(passes) == 2 and found.keys() == truth.keys() == KEYS
    for key, value in truth.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=key)
    n_tokens = truth["n_tokens"].sum()
    assert torch.allclose(truth["relative"], truth["relative_sums"].sum(0) / n_tokens)
    assert torch.allclose(truth["relative_mean"], truth["mean_sums"].sum(0) / n_tokens)


def test_less_memory_than_one_target_layer_takes_is_refused_with_both_numbers(pair):
    with pytest.raises(maps.TooLarge, match=r"the maps to a single layer need [\d.]+ GB and 0.00 GB may be used"):
        dl.linear_maps(*pair, TEXTS, memory=PER_TARGET_LAYER - 1)


def test_a_model_in_bfloat16_is_read_and_one_whose_half_precision_overflows_is_refused():
    llm = wrapped(llama(dtype=torch.bfloat16))
    assert dl.linear_maps(llm, llm, TEXTS)["relative"].diagonal().max() < 1e-5
    broken = wrapped(llama())
    broken._module.model.layers[1].mlp.down_proj.weight.data.mul_(1e9)
    broken._module.half()
    with pytest.raises(dl.ModelError, match="its logits are not finite in float16: "):
        dl.linear_maps(llm, broken, TEXTS)


@pytest.fixture
def few():
    """A model, a few texts, and its maps to itself."""
    llm, texts = wrapped(llama()), words(12)
    return llm, texts, dl.linear_maps(llm, llm, texts)


def test_models_on_a_device_without_float64_give_the_same_bits(few):
    llm, texts, truth = few
    with PretendDevices():
        for tensor in (*llm._module.parameters(), *llm._module.buffers()):
            place(tensor, "mps")
        found = dl.linear_maps(llm, llm, texts)
    assert all(torch.equal(found[key], truth[key]) for key in KEYS)


def test_weights_that_are_offloaded_are_here(few):
    llm, texts, truth = few
    accelerate.cpu_offload(llm._module.model.layers, execution_device=torch.device("cpu"))
    assert all(weight.is_meta for weight in llm._module.model.layers.parameters())
    assert torch.equal(dl.linear_maps(llm, llm, texts)["relative"], truth["relative"])
