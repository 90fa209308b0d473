"""What discovery finds on a twin and on loaded weights: of deep models, in half precision, on GPUs, or offloaded."""

import pytest
import torch
from transformers import Gemma4TextConfig

from depth_lib.models import families
from depth_lib.models.discovery import ArchitectureError, discover
from depth_lib.models.families import FOUND, architectures, auto_class
from depth_lib.models.load import wrapped
from depth_lib.models.twin import twin
from tests.families import build
from tests.models.kinds import tiny
from tests.probes.device_tags import PretendDevices, place
from tests.probes.test_devices import spread
from tests.tiny_tokenizers import char_tokenizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_one_class_may_differ_by_their_place(dtype):
    """gemma4's attention has other widths in each sixth layer."""
    config = Gemma4TextConfig(num_hidden_layers=12)
    assert len(set(config.layer_types)) == 2
    model = twin(config, auto_class(config).from_config).to(dtype)
    found = FOUND[wrapped(model, char_tokenizer())]
    a = (("post_attention_layernorm", 1.0, None),)
    m = (("post_feedforward_layernorm", 1.0, None), ("post_per_layer_input_norm", 1.0, None))
    assert found.parts == ((a, m),) * 12 and found.rescales
    assert found.starts and found.grows and found.packs
    assert next(architectures(config)) == found


def test_weights_that_are_not_here_are_not_measured(monkeypatch):
    """As where accelerate holds the embedding on the disk."""

    def refuse(*_):
        raise ArchitectureError("its twin is of no use")

    monkeypatch.setattr(families, "_of_twin", refuse)
    model = build("llama")
    model.model.embed_tokens.to("meta")
    with pytest.raises(ArchitectureError, match="llama: its twin is of no use"):
        next(architectures(model.config, model))


@torch.no_grad()
@pytest.mark.parametrize("name, parts", [("llama", ("self_attn", "mlp")), ("gpt_neox", ("attention", "mlp"))])
@pytest.mark.parametrize("scale", [1.0, 0.1, 0.02])
def test_rounding_hides_no_part_of_what_a_block_adds(name, parts, scale):
    """In bfloat16 it is larger than all that these blocks add at a scale of 0.02."""
    model = build(name)
    for path, weight in model.named_parameters():
        if any(writer in path for writer in ("o_proj", "down_proj", "attention.dense", "dense_4h_to_h")):
            weight.mul_(scale)
    found = discover(model.to(torch.bfloat16))
    assert [[[path for path, _, _ in part] for part in block] for block in found.parts] == [[[p] for p in parts]] * 4
    scales = [scale for block in found.parts for ((_, scale, _),) in block]
    assert scales == pytest.approx([1.0] * 8, abs=0.1)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_a_model_on_one_gpu_is_found_as_on_the_cpu(name):
    model = build(name)
    found = discover(model)
    assert found.starts and found.grows == (name != "bloom")
    with PretendDevices():
        for tensor in (*model.parameters(), *model.buffers()):
            place(tensor, "cuda:0")
        assert discover(model) == found


def test_a_model_on_two_gpus_is_found_as_on_the_cpu():
    model = build("llama")
    found = discover(model)
    with PretendDevices():
        spread(model, "cuda:1")
        assert discover(model) == found


@pytest.mark.parametrize(
    "kind", ["llama", "gptj", "bloom", "nemotron_h", "gemma4_text", "falcon_h1", "mistral3", "openai-gpt"]
)
def test_contributions_go_by_common_names(kind):
    """`mixer` is attention's in some of nemotron_h's blocks, and the MLP's in others."""
    llm = wrapped(tiny(kind), char_tokenizer())
    parts = FOUND[llm].parts or [((), ())] * len(llm.blocks)
    assert bool(FOUND[llm].parts) == (kind != "openai-gpt")
    for block, found in zip(llm.blocks, parts, strict=True):
        for name, part in zip(("attention_contribution", "mlp_contribution"), found, strict=True):
            assert hasattr(block, name) == bool(part)
            if part:
                assert getattr(block, name)._module is block._module.get_submodule(part[0][0])
