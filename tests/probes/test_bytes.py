"""What `bytes_held` says of each probe is what tensors take, counted on the CPU, within a fifth."""

import gc

import pytest
import torch
import transformers as tf

import depth_lib as dl
from depth_lib.models.families import describe
from depth_lib.models.load import wrapped
from depth_lib.probes import growing_batch
from depth_lib.probes.budget import bytes_held
from depth_lib.probes.residual_erasure import residual_erasure
from tests.benchmarks.counts import Kernels
from tests.benchmarks.workloads import random_prompt
from tests.families import randomise
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer

D, L, HEADS = 64, 6, 4
CONFIGS = {
    "llama": tf.LlamaConfig(num_hidden_layers=L, num_key_value_heads=2, head_dim=16),
    "gpt2": tf.GPT2Config(n_layer=L, n_inner=4 * D, bos_token_id=0, eos_token_id=0),
    "gemma2": tf.Gemma2Config(num_hidden_layers=L, num_key_value_heads=2, head_dim=16),
}
SHAPE = {"hidden_size": D, "num_attention_heads": HEADS, "max_position_embeddings": 4096}
MODELS = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("gpt2", "eager"), ("gemma2", "eager")]
UPDATES = {"contribution": "read", "future": "kept", "all": "kept", "local": "kept"}


class Enough(Exception):
    """Three packs of an erasure have run."""


def model_of(family, attention):
    config = CONFIGS[family]
    for name, value in (SHAPE | {"vocab_size": VOCABULARY_SIZE, "intermediate_size": 4 * D}).items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    randomise(model)
    return wrapped(model.eval().requires_grad_(False), char_tokenizer(bos=False))


def erased(llm, text):
    """The first packs of an erasure: those of a long prompt are thousands, and equally large."""
    ids, done = llm.tokenizer(text)["input_ids"], []

    def tick(cost, total):
        done.append(cost)
        if len(done) == 3:
            raise Enough("enough")

    arch = describe(llm) | {"fetched": None}
    with pytest.raises(Exception, match="enough"), llm.session():
        residual_erasure(llm, arch, ids, [len(ids) - 1], list(range(L)), [ids[:50]], None, tick)


def probes(llm, text):
    return {
        "contribution": lambda: dl.relative_contribution(llm, [text]),
        "lens": lambda: dl.logit_lens(llm, [text]),
        "future": lambda: dl.layer_effects(llm, [text]),
        "all": lambda: dl.layer_effects(llm, [text], mode="all"),
        "local": lambda: dl.local_effects(llm, [text]),
        "removal": lambda: dl.block_removal(llm, [text]),
        "erasure": lambda: erased(llm, text),
        "gradients": lambda: dl.integrated_gradients(llm, text[:-1], text[-1], quadrature=1.0, max_nodes=9),
    }


def counted_and_stated(llm, name, n_tokens, monkeypatch):
    """Bytes at the peak as counted, and as computed from the passes that ran."""
    passes, finals, change = set(), [0], growing_batch.output_change
    monkeypatch.setattr(
        growing_batch,
        "output_change",
        lambda llm, arch, h, next_tokens: finals.append(h.shape[:2].numel()) or change(llm, arch, h, next_tokens),
    )
    blocks = next(m for m in llm._module.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == L)
    hook = blocks[-1].register_forward_pre_hook(lambda module, args: passes.add(tuple(args[0].shape[:2])))
    gc.collect()
    with Kernels() as kernels:
        probes(llm, random_prompt(n_tokens, 0))[name]()
    hook.remove()
    monkeypatch.undo()
    unembedded = n_tokens * (L + 1) if name == "lens" else max(finals)
    how = {"updates": UPDATES.get(name, ""), "finals": max(finals), "unembedded": unembedded}
    how["gradients"] = name == "gradients"
    h = torch.empty(0, D)
    return kernels.peak, max(bytes_held(llm, h, L, n_tokens, batch, **how)[1] for batch in passes)


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("n_tokens", [50, *(pytest.param(n, marks=pytest.mark.slow) for n in (250, 1000, 2000))])
@pytest.mark.parametrize(("family", "attention"), MODELS)
def test_a_probe_holds_what_is_said_of_it(family, attention, n_tokens, monkeypatch):
    llm = model_of(family, attention)
    for name in probes(llm, ""):
        counted, stated = counted_and_stated(llm, name, n_tokens, monkeypatch)
        assert 0.8 <= stated / counted <= 1.2, (name, counted, stated)
