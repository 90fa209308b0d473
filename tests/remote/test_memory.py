"""What a probe takes beside the weights on a GPU of a server fits into what ndif 0.1.2 lets a model's process have."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import depth_lib as dl
from benchmarks.counts import counted
from benchmarks.workloads import random_prompt
from depth_lib.models.load import wrapped
from depth_lib.probes.budget import logits_in_cache, rows_of_logits, tokens_in_pass
from tests.families import randomise
from tests.marks import others_slow
from tests.tiny_tokenizers import char_tokenizer

PROBES = {
    "contribution": lambda llm, text: dl.relative_contribution(llm, [text], remote="local"),
    "lens": lambda llm, text: dl.logit_lens(llm, [text], remote="local"),
    "future": lambda llm, text: dl.layer_effects(llm, [text[:350]], remote="local"),
    "all": lambda llm, text: dl.layer_effects(llm, [text], mode="all", remote="local"),
    "local": lambda llm, text: dl.local_effects(llm, [text[:350]], remote="local"),
    "erasure": lambda llm, text: dl.residual_erasure(llm, text[:40], text[40:42], [text[:50]], remote="local"),
    "increments": lambda llm, text: dl.integrated_gradients(
        llm, text[:20], text[20:22], quadrature=1.0, method="increments", steps=4, remote="local"
    ),
}


NDIF = {"8B": (32, 4096, 14_336, 1), "70B": (80, 8192, 28_672, 4)}  # blocks, d, MLP; GPUs


@pytest.mark.parametrize("size", NDIF)
def test_a_full_pass_of_a_published_model_fits_beside_its_weights_on_each_gpu(size):
    """With what lasts of a prompt of 300 tokens, residuals and float32 updates, and the logits compared at once."""
    n_layers, d, mlp, n_gpus = NDIF[size]
    heads = {"num_attention_heads": d // 128, "num_key_value_heads": 8, "vocab_size": 128_256}
    config = LlamaConfig(hidden_size=d, intermediate_size=mlp, num_hidden_layers=n_layers, **heads)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    llm, h = SimpleNamespace(_module=model, config=config), torch.empty(300, d, dtype=torch.bfloat16, device="meta")
    in_pass = tokens_in_pass(llm, h) * 7 * (d + mlp)  # bytes: three or four vectors of each width
    lasting = 300 * n_layers * d * (2 + 4)
    logits = rows_of_logits(llm, h) * config.vocab_size * 2 + 2 * logits_in_cache(h) * 4
    allowed = (0.15 * sum(weight.nbytes for weight in model.parameters()) + 500 * 2**20) / n_gpus
    assert allowed / 2 < in_pass + logits + lasting / n_gpus < allowed


@pytest.fixture(scope="module")
def llm():
    """Wide in the MLP, and of many words: the budgets of a pass and of logits are both reached with few tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=32_000,
        max_position_embeddings=4096,
    )
    model = AutoModelForCausalLM.from_config(config)
    randomise(model)
    return wrapped(model.eval().requires_grad_(False), char_tokenizer(bos=False))


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("name", others_slow(PROBES, ["lens"]))
def test_a_pass_fits_beside_the_weights(llm, name):
    weights = sum(weight.nbytes for weight in llm._module.parameters())
    text = random_prompt(1100, 0)
    peak = 1e6 * counted(llm, lambda: PROBES[name](llm, text))["peak, MB"]
    assert peak < 0.15 * weights + 500 * 2**20, (peak / 1e6, weights / 1e6)
