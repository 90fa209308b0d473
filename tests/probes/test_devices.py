"""A model spread over several devices gives the numbers of one: no tensor is taken to lie where another does."""

import accelerate
import pytest
import torch

import depth_lib as dl
from depth_lib.models.families import describe
from depth_lib.residual.budget import tokens_in_pass
from tests.families import D, L, save_family
from tests.oracles.streams import PLACES
from tests.probes.device_tags import PretendDevices, place
from tests.probes.test_budget import TEXT


def halves(model, near, far, unembed):
    """A device map: embeddings and the first half of the blocks on `near`, the other half and the norm on `far`."""
    path, _, _, ln_final = PLACES[model.config.model_type]
    owner, _, blocks = path.rpartition(".")
    children = [name for name, _ in model.get_submodule(owner).named_children() if name != blocks]
    places = {f"{owner}.{name}": near for name in children}
    places |= {f"{path}.{l}": near if l < L // 2 else far for l in range(L)}
    return places | {ln_final: far, "lm_head": unembed}


def spread(model, unembed):
    """`model` on two pretended GPUs, by the code that transformers calls for a device_map."""
    device_map = halves(model, "cuda:0", "cuda:1", unembed)
    accelerate.dispatch_model(model, device_map, main_device="cuda:0", skip_keys=model._skip_keys_device_placement)


def test_memory_that_torch_keeps_for_reuse_counts_as_free(tmp_path):
    llm = dl.load_model(save_family("llama", tmp_path))
    with PretendDevices():
        for tensor in llm._module.parameters():
            place(tensor, "cuda:0")
        llm.config.intermediate_size, free = 10**6, 2**33 + 2**32 - 2**31
        h = torch.empty(1, D, device="meta")
        of_a_token = L * 7 * (D + 10**6) * 4 // 2
        assert tokens_in_pass(llm, describe(llm), h, gradients=True) == free // 2 // of_a_token > 1


def test_a_neighbour_taken_to_lie_on_the_same_device_is_caught(tmp_path):
    llm = dl.load_model(save_family("llama", tmp_path))

    def contributions_by_difference():
        with torch.no_grad(), llm.trace(TEXT, use_cache=False):
            h = [block.input for block in llm.blocks]
            c = [after - before for before, after in zip(h, h[1:], strict=False)].save()
        return c

    assert len(contributions_by_difference()) == L - 1  # on one device nothing is wrong with it
    with PretendDevices():
        spread(llm._module, "cuda:0")
        with pytest.raises(RuntimeError, match="same device, but sub found cuda:0, cuda:1"):
            contributions_by_difference()
