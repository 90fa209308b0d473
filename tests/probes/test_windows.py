"""Attention that sees a window: every probe against plain hooks, with prompts of 2 to `max_position_embeddings` tokens,
below, at and above the window."""

import functools

import pytest
import torch
import transformers as tf

import depth_lib as dl
from tests import oracles as oracle
from tests.families import HEAD_DIM, HEADS, MLP, SHAPE, D, L, drawn
from tests.marks import slow
from tests.oracles.streams import in_float64
from tests.probes.comparing import SIXTY, close, loaded

MOST = 32  # positions of the model
TEXT = SIXTY.replace(" ", "-")
SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * (L // 2)}
SOFT = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 9}


def neo(window, most=MOST):
    attention = [[["global", "local"], L // 2]]
    shape = {"hidden_size": D, "num_layers": L, "num_heads": HEADS, "intermediate_size": MLP}
    ids = {key: SHAPE[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return tf.GPTNeoConfig(**shape, **ids, window_size=window, attention_types=attention, max_position_embeddings=most)


def _of(config_class, **settings):
    shape = SHAPE | HEAD_DIM | settings | {"max_position_embeddings": MOST}
    return lambda window: config_class(**shape, sliding_window=window)


CONFIGS = {
    "gpt_neo": neo,
    "gpt_neo_long": lambda window: neo(window, 512),
    "mistral": _of(tf.MistralConfig),
    "gemma2": _of(tf.Gemma2Config, **SLIDING, **SOFT),
    "gemma3": _of(tf.Gemma3TextConfig, **SLIDING),
}
QUICK = [("gpt_neo", 12, MOST), ("gpt_neo_long", 24, 20), ("mistral", 12, 13)]
OTHERS = [
    ("gpt_neo", MOST, 30),
    ("gpt_neo", 24, 20),
    *((name, 12, n_tokens) for name in CONFIGS for n_tokens in (2, 11, 12, 13, MOST)),
]
SLOW = [slow(*case) for case in OTHERS if case not in QUICK]


@functools.cache
def models(name, window):
    """The model of that name and window as a user loads it, and in float64."""
    model = drawn(CONFIGS[name](window), "eager" if name == "gemma2" else None)
    return loaded(model), in_float64(model)


@pytest.mark.parametrize("name, window, n_tokens", [*QUICK, *SLOW])
def test_effects_and_erasure_equal_plain_hooks(name, window, n_tokens):
    llm, model = models(name, window)
    prompt, baseline = TEXT[: n_tokens - 1], "The quick brown fox"
    x, span = oracle.answer_span(llm.tokenizer, prompt[:-1], prompt[-1])
    assert len(x) == n_tokens
    for mode in ("future", "all") if n_tokens >= 13 else ("all",):
        truth = oracle.layer_effects(model, [x], mode)
        ours = dl.layer_effects(llm, [prompt], mode)
        close(ours[f"max_{mode}_layer"], truth[f"max_{mode}_layer"])
        close(ours[f"max_{mode}_out"], truth[f"max_{mode}_out"], scale=0.1)
        truth = oracle.local_effects(model, [x], mode)[f"max_{mode}_local"]
        close(dl.local_effects(llm, [prompt], mode)[f"max_{mode}_local"], truth)
    of_baseline = [llm.tokenizer(baseline)["input_ids"]]
    truth = oracle.residual_erasure(model, x, span, of_baseline)["erasure_effect"]
    close(dl.residual_erasure(llm, prompt[:-1], prompt[-1], [baseline])["erasure_effect"], truth, scale=0.1)
    ours = dl.future_erasure(llm, prompt[:-1], prompt[-1], [baseline])
    for key, truth in oracle.future_erasure(model, torch.tensor(x), of_baseline).items():
        close(ours[key], truth, scale=0.1)
