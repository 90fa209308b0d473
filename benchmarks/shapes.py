"""The benchmark's models: random ones of given sizes, wrapped as `load_model` wraps a checkpoint, and a real one."""

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

import depth_lib as dl
from depth_lib.models.load import wrapped
from tests.families import randomise
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer


def _shape(blocks, d, heads, kv_heads, mlp, vocabulary):
    return {
        "num_hidden_layers": blocks,
        "hidden_size": d,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
    }


REAL = "real"
SHAPES = {
    "tiny": _shape(4, 48, 4, 2, 64, VOCABULARY_SIZE),
    "small": _shape(12, 384, 6, 2, 1536, 32_000),
    "big": _shape(24, 896, 14, 2, 4864, 151_936),  # Qwen2.5-0.5B, unembedding not tied
    "7B": _shape(28, 3584, 28, 4, 18_944, 152_064),  # Qwen2.5-7B
    "70B": _shape(80, 8192, 64, 8, 28_672, 128_256),  # Llama-3.1-70B
}


def model_of(shape, device="cpu", dtype=torch.float32, blocks=None):
    """An nnsight model of SHAPES[shape] (Qwen2) with seeded random weights, `blocks` other than the shape's; "real":
    SmolLM2-135M-Instruct with its own."""
    if shape == REAL:
        return dl.load_model("SmolLM2-135M-Instruct", dtype=dtype, device_map=device)
    config = Qwen2Config(
        **(SHAPES[shape] | ({"num_hidden_layers": blocks} if blocks else {})),
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    randomise(model)
    return wrapped(model, char_tokenizer(bos=False))


@torch.no_grad()
def give_answer(llm, ids, places):
    """Turn the unembedding so that the model gives each answer token the probability 1/2.

    A random model gives it 1 / V, a number so small that any quadrature rule integrates it well enough.
    """
    model = llm._module
    x = model.model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).last_hidden_state[0].float()
    for place in places:
        direction = x[place - 1]
        logits = model.lm_head(direction.to(model.dtype)).float()
        others = logits.clone()
        others[ids[place]] = -torch.inf
        step = (others.logsumexp(0) - logits[ids[place]]) / direction.square().sum()
        model.lm_head.weight[ids[place]] += (step * direction).to(model.dtype)
