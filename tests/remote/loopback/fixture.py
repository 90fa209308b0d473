"""The loopback server's models, and what tests read of the journal."""

import json
from pathlib import Path

import pytest
import torch
from tenacity import wait_exponential
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from depth_lib import embedded
from depth_lib.files import cache_folder
from depth_lib.remote import job
from depth_lib.remote.server import tell_about
from tests.families import SHAPE, build, randomise
from tests.remote.loopback.server import KEY, Loopback
from tests.tiny_tokenizers import char_tokenizer

TOY = "loopback/toy-8l"


@pytest.fixture(scope="session")
def loopback(tmp_path_factory):
    loopback = Loopback(saved_models(tmp_path_factory.mktemp("loopback")))
    tell_about(loopback.host, KEY)  # which is said once
    return loopback


def saved_models(folder):
    """By name; their configs name another dtype than they run in, as many do."""
    named = LlamaForCausalLM(LlamaConfig(**SHAPE | {"max_position_embeddings": 4096}))  # as the sweep's params do
    models = {"loopback/llama": build("llama"), "loopback/gpt2": build("gpt2"), "loopback/hybrid": hybrid()}
    models["loopback/shared"] = shared()
    folders = {TOY: Path(embedded.__file__).parent / "toy-8l"}
    for name, model in (models | {"meta-llama/Llama-3.1-8B": named}).items():
        model.half().save_pretrained(folder / name)
        char_tokenizer().save_pretrained(folder / name)
        folders[name] = folder / name
    return folders


def hybrid():
    """Two blocks with linear attention and two with full attention."""
    heads = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "head_dim": 16}
    heads |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    experts |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    layers = {"layer_types": ["linear_attention", "full_attention"] * 2}
    return random(Qwen3NextForCausalLM, Qwen3NextConfig(**SHAPE | layers | heads | experts))


def shared():
    """Four blocks, of which the last two read the keys and values of earlier ones."""
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64}
    heads = {"num_kv_shared_layers": 2, "head_dim": 16, "global_head_dim": 16}
    inputs = {"vocab_size_per_layer_input": SHAPE["vocab_size"], "hidden_size_per_layer_input": 8}
    model = random(Gemma4ForCausalLM, Gemma4TextConfig(**SHAPE | layers | heads | inputs))
    for block in model.model.layers:  # what multiplies h + a + m, a number that a config does not know
        block.layer_scalar.fill_(0.9)
    return model


def random(kind, config):
    torch.manual_seed(0)
    model = kind(config)
    randomise(model)
    return model.eval()


@pytest.fixture(autouse=True)
def hurried(monkeypatch, tmp_path_factory):
    """A key, a cache folder of the test's own, and short pauses and patience, well below the time of a test."""
    monkeypatch.setenv("NDIF_API_KEY", KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("DEPTH_LIB_DEADLINE", str(150 / 3600))
    monkeypatch.setattr(job, "PAUSES", wait_exponential(0.01, exp_base=1.5, max=0.05))
    monkeypatch.setattr(job, "SILENCE", 30)


def journal(artifact=None):
    """What is journalled beside an artifact, or in the cache folder."""
    folder = Path(f"{artifact}.job") if artifact else cache_folder("jobs")
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
