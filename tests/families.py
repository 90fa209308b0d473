"""Tiny random models of every supported family, with every parameter drawn.

Weights of norms, biases and scales are far from their neutral values, so that code which forgets one of them is wrong
by far more than rounding.
"""

import functools
import math
import zlib
from pathlib import Path

import torch
import transformers as tf
from torch import nn

from tests.marks import others_slow
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer

D, L, HEADS, KV_HEADS, MLP, WINDOW = 48, 4, 4, 2, 64, 8

SHAPE = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": D,
    "intermediate_size": MLP,
    "num_hidden_layers": L,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
HEAD_DIM = {"head_dim": 16}  # not D / HEADS: the heads' width need not be the residual's
ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * (L // 2)}
HALF_ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1.5e5,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    }
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT_SHAPE = {"n_embd": D, "n_layer": L, "n_head": HEADS, "n_positions": 256, "n_inner": MLP}
ONE_NORM_SHAPE = {k: v for k, v in SHAPE.items() if k not in ("intermediate_size", "num_key_value_heads")}


def _of(config_class, *parts, attention=None, **settings):
    """A function that builds the model class of a config whose settings are `parts` merged, then `settings`."""
    merged = functools.reduce(dict.__or__, [*parts, settings])

    def make(n_blocks=None):
        config = config_class(**merged)
        if n_blocks is not None:
            config.num_hidden_layers = n_blocks
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:n_blocks]
        return tf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)

    return make


# one entry a family, then the variants of it that compute something else
FAMILIES = {
    "llama": _of(tf.LlamaConfig, SHAPE, attention_bias=True, mlp_bias=True),
    "llama_tied": _of(tf.LlamaConfig, SHAPE, tie_word_embeddings=True),
    "llama_multi_query": _of(tf.LlamaConfig, SHAPE, num_key_value_heads=1),
    "mistral": _of(tf.MistralConfig, SHAPE, HEAD_DIM, sliding_window=None),
    "mistral_sliding": _of(tf.MistralConfig, SHAPE, sliding_window=WINDOW),
    "qwen2": _of(tf.Qwen2Config, SHAPE),
    "qwen2_tied": _of(tf.Qwen2Config, SHAPE, tie_word_embeddings=True),
    "qwen3": _of(tf.Qwen3Config, SHAPE, HEAD_DIM),
    "mixtral": _of(tf.MixtralConfig, SHAPE, EXPERTS, sliding_window=None),
    "mixtral_dense": _of(tf.MixtralConfig, SHAPE, EXPERTS, num_experts_per_tok=4, sliding_window=None),
    "qwen3_moe": _of(
        tf.Qwen3MoeConfig,
        SHAPE,
        HEAD_DIM,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        mlp_only_layers=[1],
        norm_topk_prob=True,
    ),
    "olmo2": _of(tf.Olmo2Config, SHAPE),
    "olmo3": _of(tf.Olmo3Config, SHAPE, ALTERNATING),
    "gemma2": _of(
        tf.Gemma2Config,
        SHAPE,
        HEAD_DIM,
        ALTERNATING,
        attention="eager",
        tie_word_embeddings=True,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        query_pre_attn_scalar=9,
    ),
    "gemma3_text": _of(
        tf.Gemma3TextConfig, SHAPE, HEAD_DIM, ALTERNATING, tie_word_embeddings=True, query_pre_attn_scalar=9
    ),
    "glm4": _of(tf.Glm4Config, SHAPE, HEAD_DIM),
    "gpt2": _of(tf.GPT2Config, SHAPE, GPT_SHAPE, tie_word_embeddings=True),
    "gpt_neox": _of(tf.GPTNeoXConfig, SHAPE),
    "gpt_neox_sequential": _of(tf.GPTNeoXConfig, SHAPE, use_parallel_residual=False),
    "phi": _of(tf.PhiConfig, SHAPE),
    "phi3": _of(tf.Phi3Config, SHAPE),
    "phi3_sliding": _of(tf.Phi3Config, SHAPE, sliding_window=WINDOW),
    "cohere": _of(tf.CohereConfig, SHAPE, logit_scale=1.7, tie_word_embeddings=True),
    "granite": _of(
        tf.GraniteConfig,
        SHAPE,
        residual_multiplier=0.31,
        logits_scaling=0.6,
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
    ),
    "gptj": _of(tf.GPTJConfig, SHAPE, GPT_SHAPE, rotary_dim=8),
    "falcon": _of(tf.FalconConfig, ONE_NORM_SHAPE, ffn_hidden_size=MLP, bias=True),
    "falcon_sequential": _of(
        tf.FalconConfig,
        ONE_NORM_SHAPE,
        ffn_hidden_size=MLP,
        parallel_attn=False,
        multi_query=False,
        alibi=True,
        bias=True,
    ),
    "falcon_new": _of(
        tf.FalconConfig, ONE_NORM_SHAPE, ffn_hidden_size=MLP, new_decoder_architecture=True, num_kv_heads=KV_HEADS
    ),
    "bloom": _of(tf.BloomConfig, ONE_NORM_SHAPE, n_layer=L, n_head=HEADS, tie_word_embeddings=True),
    "opt": _of(tf.OPTConfig, ONE_NORM_SHAPE, ffn_dim=MLP, dropout=0.0),
    "opt_projected": _of(tf.OPTConfig, ONE_NORM_SHAPE, ffn_dim=MLP, dropout=0.0, word_embed_proj_dim=32),
    "stablelm": _of(tf.StableLmConfig, SHAPE, HALF_ROTARY, use_qkv_bias=True, qk_layernorm=True),
    "stablelm_parallel": _of(tf.StableLmConfig, SHAPE, HALF_ROTARY, use_parallel_residual=True),
    "gpt_oss": _of(tf.GptOssConfig, SHAPE, HEAD_DIM, ALTERNATING, EXPERTS, YARN),
}

# one of each kind: plain, parallel, adding inside its modules, with windows and caps, with norms after what it adds,
# scaled, of experts, and projected between residual and vocabulary
ARCHETYPES = ("llama", "gpt_neox", "bloom", "gemma2", "olmo2", "granite", "qwen3_moe", "opt_projected")
QUICK = ("llama", "gemma2")  # the quick tests take these, all of them the slow


def of_families(names):
    """The names as parameters of a test, those that are not quick marked slow."""
    return others_slow(names, QUICK)


EACH_FAMILY = of_families(FAMILIES)

# the residual itself is normalised after each addition, so h_{l+1} = h_l + a_l + m_l cannot hold: to be refused
REFUSED = {
    "opt_post_norm": _of(tf.OPTConfig, ONE_NORM_SHAPE, ffn_dim=MLP, dropout=0.0, do_layer_norm_before=False),
    "bloom_post_norm": _of(
        tf.BloomConfig, ONE_NORM_SHAPE, n_layer=L, n_head=HEADS, apply_residual_connection_post_layernorm=True
    ),
}


def build(name, dtype=torch.float32, n_blocks=None):
    """The tiny model of family `name`, the same one every time; `n_blocks` other than 4 where a test needs it."""
    return _drawn(lambda: (FAMILIES | REFUSED)[name](n_blocks), zlib.crc32(name.encode())).to(dtype)


def drawn(config, attention=None):
    """The random model of any config, the same one every time."""
    return _drawn(lambda: tf.AutoModelForCausalLM.from_config(config, attn_implementation=attention), 0)


def _drawn(make, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        randomise(model)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def randomise(model):
    """Draws every parameter of `model` anew from the generator in use."""
    zero_centred = model.config.model_type.startswith("gemma")
    owner = {f"{path}.{name}": module for path, module in model.named_modules() for name in module._parameters}
    unembed = model.get_output_embeddings().weight
    for path, weight in model.named_parameters():
        if weight is unembed:
            weight.normal_(std=2 / math.sqrt(weight.shape[1]))  # logits with a spread of about 2
        elif isinstance(owner[path], nn.Embedding):
            weight.normal_()
        elif "norm" in type(owner[path]).__name__.lower() and path.endswith("weight"):
            weight.uniform_(-0.5, 0.5) if zero_centred else weight.uniform_(0.5, 1.5)
        elif path.endswith("bias"):
            weight.normal_(std=0.2)
        elif weight.ndim == 1:
            weight.normal_()  # attention sinks
        else:
            inputs = weight.shape[-2] if model.config.model_type in ("gpt2", "gpt_oss") else weight.shape[-1]
            weight.normal_(std=1.2 / math.sqrt(inputs))


# the last projections of attention and MLP: what they write is what is added, before any norm or scale
WRITERS = {"o_proj", "out_proj", "dense", "c_proj", "down_proj", "down_proj_bias", "fc2", "fc_out", "dense_4h_to_h"}


@torch.no_grad()
def make_identity(model, blocks):
    """Turns `blocks` into the identity in place, by zeroing all that writes to the residual stream; returns `model`."""
    for path, weight in model.named_parameters():
        steps = path.split(".")
        index = next((int(step) for step in steps if step.isdigit()), None)
        if index in blocks and WRITERS & set(steps):
            weight.zero_()
    return model


def save_family(name, folder, tokenizer=None, dtype=torch.float32):
    """Writes the model of family `name` and a tokenizer to `folder`, a checkpoint as a user would have it."""
    build(name, dtype).save_pretrained(folder)
    (tokenizer or char_tokenizer()).save_pretrained(folder)
    return Path(folder)
