"""Every kind of model that transformers reads as a language model, tiny and random."""

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from depth_lib.models.twin import twin

# What a default config lacks, or says in a way that is no model.
SETTINGS = {
    "cohere_compass_text": {"layer_types": ["full_attention"] * 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_n_heads": 16, "mamba_d_head": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "openai-gpt": {"n_positions": 64},
    "zamba": {"num_hidden_layers": 12},
    "zamba2": {"num_hidden_layers": 12, "hybrid_layer_ids": [4, 8]},
}


def config_of(kind):
    """A config of this kind with 4 layers."""
    for depth in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        try:
            return CONFIG_MAPPING[kind](**({depth: 4} | SETTINGS.get(kind, {})))
        except Exception as error:
            problem = error
    raise problem
