"""Models at their published sizes are read from their configs alone, in seconds."""

import time

import pytest
from transformers import CONFIG_MAPPING

from depth_lib.models.errors import ArchitectureError
from depth_lib.models.families import architecture
from tests.marks import others_slow


def _longrope(n, **more):  # rotary frequencies of long prompts and short ones
    factors = {"rope_type": "longrope", "short_factor": [1.0] * n, "long_factor": [2.0] * n, "rope_theta": 1e4}
    return {"rope_parameters": factors | {"original_max_position_embeddings": 4096} | more}


def _sizes(hidden_size, n_layers, n_heads, intermediate_size, **more):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return dict(zip(names, (hidden_size, n_layers, n_heads, intermediate_size), strict=True)) | more


# Name: model type of transformers and settings; none where the defaults are those of a published model.
PUBLISHED = {
    "Llama-3.1-405B": ("llama", _sizes(16384, 126, 128, 53248, num_key_value_heads=8, vocab_size=128256)),
    "Llama-4-Scout": ("llama4_text", {}),
    "DeepSeek-V3": ("deepseek_v3", {}),
    "gpt-oss-120b": ("gpt_oss", {}),
    "Gemma-3-27B": ("gemma3_text", _sizes(5376, 62, 32, 21504, num_key_value_heads=16, head_dim=128)),
    "Gemma-4": ("gemma4_text", {}),
    "Qwen3-235B-A22B": ("qwen3_moe", _sizes(4096, 94, 64, 12288, num_key_value_heads=4, head_dim=128, num_experts=128)),
    "Qwen3-Next-80B": ("qwen3_next", {}),
    "Phi-3.5-mini": ("phi3", _sizes(3072, 32, 32, 8192, **_longrope(48), max_position_embeddings=131072)),
    "Nemotron-H": ("nemotron_h", {"layers_block_type": ["mamba", "moe", "mamba", "attention"] * 14}),
    "Falcon-H1": ("falcon_h1", {}),
    "OLMo-3": ("olmo3", {}),
}


@pytest.mark.parametrize("name", others_slow(PUBLISHED, ["Llama-3.1-405B"]))
def test_a_model_of_any_size_is_read_from_its_config_in_three_seconds(name):
    kind, settings = PUBLISHED[name]
    config, start = CONFIG_MAPPING[kind](**settings), time.process_time()
    found = architecture(config)
    assert time.process_time() - start < 3
    assert len(found.parts) == config.num_hidden_layers and found.can_skip_blocks and found.can_add_rows, found.missing


def test_a_config_whose_frequencies_are_chosen_by_numbers_is_refused_in_one_line():
    config = CONFIG_MAPPING["phimoe"](**_sizes(4096, 32, 32, 6400, **_longrope(64, short_mscale=1.2, long_mscale=1.2)))
    with pytest.raises(ArchitectureError, match=r"^phimoe: its code asks for numbers .* \(remote=False\)\.$"):
        architecture(config)
