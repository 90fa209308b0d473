"""The four toys of the training experiment that are kept: small, shared where they say so, and read by every probe."""

import pytest
import torch

from depth_lib import check_model, load_model
from experiments.training.experiment import TOYS
from experiments.training.shared import GROUP

NAMES = sorted(path.name for path in TOYS.iterdir())


@pytest.fixture(scope="module", params=NAMES)
def toy(request):
    return request.param, load_model(TOYS / request.param, dtype="float32")


def test_the_four_toys_are_float16_checkpoints_of_15_mb_together():
    files = [file for name in NAMES for file in (TOYS / name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= 15e6
    assert {tuple(load_model(TOYS / name, dtype="float32").config.architectures) for name in NAMES} == {
        ("Qwen3MoeForCausalLM",)
    }


def test_blocks_of_a_shared_toy_hold_equal_weights_and_those_of_an_ordinary_one_do_not(toy):
    name, llm = toy
    states = [layer.state_dict() for layer in llm._module.model.layers]
    for l in range(GROUP, len(states)):
        equal = [torch.equal(weight, states[l % GROUP][key]) for key, weight in states[l].items() if weight.ndim > 1]
        assert all(equal) if "shared" in name else not any(equal)
    assert not torch.equal(states[0]["self_attn.q_proj.weight"], states[1]["self_attn.q_proj.weight"])


def test_both_identities_hold(toy):
    found = check_model(toy[1])
    assert max(found["identity_1"], found["identity_2"]) <= found["tolerance"] <= 1e-5


@pytest.mark.parametrize("toy", [name for name in NAMES if "shared" in name], indirect=True)
def test_a_shared_toy_computes_what_its_two_blocks_in_a_loop_compute(toy):
    _, llm = toy
    model, ids = llm._module, llm.tokenizer("5 + 7 + 5 + 3 + 1 + 7 = 28", return_tensors="pt").input_ids
    with torch.no_grad():
        unrolled = model(input_ids=ids, use_cache=False).logits
        layers = list(model.model.layers)
        try:
            for l in range(GROUP, len(layers)):
                model.model.layers[l] = layers[l % GROUP]
            looped = model(input_ids=ids, use_cache=False).logits
        finally:
            model.model.layers = torch.nn.ModuleList(layers)
    torch.testing.assert_close(looped, unrolled, atol=1e-6, rtol=0)
