"""`bytes_held` states each probe's memory to within a fifth of what is counted on the CPU; where attention is fused it
grows in proportion to a prompt's tokens."""

import gc

import numpy as np
import pytest
import torch
import transformers as tf

import depth_lib as dl
from benchmarks.counts import Kernels
from benchmarks.workloads import random_prompt
from depth_lib.models.check import verified_arch
from depth_lib.models.load import wrapped
from depth_lib.probes import growing_batch
from depth_lib.probes.budget import bytes_held
from tests.families import randomise
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer

D, L, HEADS = 64, 3, 2
CONFIGS = {
    "llama": tf.LlamaConfig(num_hidden_layers=L, num_key_value_heads=1, head_dim=32),
    "gpt2": tf.GPT2Config(n_layer=L, n_inner=4 * D, bos_token_id=0, eos_token_id=0),
    "gemma2": tf.Gemma2Config(num_hidden_layers=L, num_key_value_heads=1, head_dim=32),
}
SHAPE = {"hidden_size": D, "num_attention_heads": HEADS, "max_position_embeddings": 4096}
MODELS = [("llama", "sdpa"), ("llama", "eager"), ("gpt2", "sdpa"), ("gpt2", "eager"), ("gemma2", "eager")]
PROBES = {
    "contribution": lambda llm, text: dl.relative_contribution(llm, [text]),
    "lens": lambda llm, text: dl.logit_lens(llm, [text]),
    "future": lambda llm, text, budget=None: dl.layer_effects(llm, [text], budget=budget),
    "all": lambda llm, text, budget=None: dl.layer_effects(llm, [text], mode="all", budget=budget),
    "local": lambda llm, text, budget=None: dl.local_effects(llm, [text], budget=budget),
    "removal": lambda llm, text, budget=None: dl.block_removal(llm, [text], budget=budget),
    "erasure": lambda llm, text, budget=None: dl.residual_erasure(llm, text[:-1], text[-1], [text[:50]], budget=budget),
    "gradients": lambda llm, text, budget=None: dl.integrated_gradients(
        llm, text[:-1], text[-1], quadrature=1.0, max_nodes=9, budget=budget
    ),
}
UPDATES = {"contribution": "read", "future": "kept", "all": "kept", "local": "kept"}
MOST = 5  # passes that a probe runs here: an erasure of a long prompt has thousands, all about as large


def model_of(family, attention):
    config = CONFIGS[family]
    for name, value in (SHAPE | {"vocab_size": VOCABULARY_SIZE, "intermediate_size": 4 * D}).items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    randomise(model)
    return wrapped(model.eval().requires_grad_(False), char_tokenizer(bos=False))


def counted(llm, call, most=MOST):
    """The peak of a probe's first passes in bytes, and the (rows, places) of these."""
    passes = []

    def count(module, args):
        if len(passes) == most:
            raise RuntimeError("enough passes")
        passes.append(tuple(args[0].shape[:2]))

    blocks = next(m for m in llm._module.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == L)
    hook = blocks[-1].register_forward_pre_hook(count)
    verified_arch(llm)  # anew, as there is a hook
    passes.clear()
    gc.collect()
    with Kernels() as kernels:
        try:
            call()
        except Exception as error:  # nnsight's, which quotes ours
            assert "enough passes" in str(error)
    hook.remove()
    return kernels.peak, set(passes)


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("n_tokens", [50, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("family", "attention"), MODELS)
def test_a_probe_holds_what_is_said_of_it(family, attention, n_tokens, monkeypatch):
    llm, h, compared, change = model_of(family, attention), torch.empty(0, D), [], growing_batch.output_change
    monkeypatch.setattr(
        growing_batch,
        "output_change",
        lambda llm, arch, h, next_tokens: compared.append(h.shape[:2]) or change(llm, arch, h, next_tokens),
    )
    text = random_prompt(n_tokens, 0)
    for name, probe in PROBES.items():
        compared.clear()
        peak, passes = counted(llm, lambda probe=probe: probe(llm, text))
        how = {"updates": UPDATES.get(name, ""), "gradients": name == "gradients"}
        in_pass = max(rows for rows, _ in passes)
        kept = name == "erasure"  # of its passes of one row each at least one final residual, though none was compared
        how["finals"] = max(((n_rows - in_pass) * n_places for n_rows, n_places in compared), default=int(kept))
        how["unembedded"] = n_tokens * (L + 1) if name == "lens" else max((x.numel() for x in compared), default=0)
        stated = max(bytes_held(llm, h, L, n_tokens, batch, **how)[1] for batch in passes)
        assert 0.8 <= stated / peak <= 1.2, (name, peak, stated)


@pytest.fixture(scope="module")
def llama():
    return model_of("llama", "sdpa")


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("name", PROBES)
def test_where_attention_is_fused_memory_grows_as_the_number_of_tokens(llama, name):
    """The slope in logarithms, of passes of one row."""
    lengths, one_row = (250, 1000, 4000), {} if name in ("contribution", "lens") else {"budget": 1}
    peaks = []
    for n_tokens in lengths:
        text = random_prompt(n_tokens, 0)
        peak, _ = counted(llama, lambda text=text: PROBES[name](llama, text, **one_row), most=3)
        peaks.append(peak)
    slope, _ = np.polyfit(np.log(lengths), np.log(peaks), 1)
    assert slope <= 1.05, (peaks, slope)
