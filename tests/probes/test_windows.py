"""Attention that sees a window: every probe against plain hooks, with prompts of 1 to `max_position_embeddings` tokens,
below, at and above the window."""

from itertools import product

import pytest
import torch
import transformers as tf

import depth_lib as dl
from tests import oracles as oracle
from tests.families import HEAD_DIM, HEADS, MLP, SHAPE, D, L, randomise
from tests.oracles.streams import in_float64
from tests.probes.comparing import SIXTY, close, loaded

MOST = 64  # positions of the model
TEXT = SIXTY.replace(" ", "-") + "ab.c"
SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * (L // 2)}
SOFT = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 9}


def _neo(window, most=MOST):
    attention = [[["global", "local"], L // 2]]
    shape = {"hidden_size": D, "num_layers": L, "num_heads": HEADS, "intermediate_size": MLP}
    ids = {key: SHAPE[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return tf.GPTNeoConfig(**shape, **ids, window_size=window, attention_types=attention, max_position_embeddings=most)


def _of(config_class, **settings):
    shape = SHAPE | HEAD_DIM | settings | {"max_position_embeddings": MOST}
    return lambda window: config_class(**shape, sliding_window=window)


CONFIGS = {
    "gpt_neo": _neo,
    "gpt_neo_long": lambda window: _neo(window, 512),
    "mistral": _of(tf.MistralConfig),
    "gemma2": _of(tf.Gemma2Config, **SLIDING, **SOFT),
    "gemma3": _of(tf.Gemma3TextConfig, **SLIDING),
}
QUICK = {
    ("gpt_neo", 48, 40),
    ("gpt_neo_long", 48, 40),
    ("gpt_neo", 20, MOST),
    ("gpt_neo", 64, 60),
    ("mistral", 20, 21),
    ("gemma3", 20, 21),
}
SOME = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for name in CONFIGS
    for window in {"gpt_neo": (20, 48, 50, 64), "gpt_neo_long": (48,)}.get(name, (20,))
    for case in product([name], [window], (1, 2, 15, 19, 20, 21, 40, 49, 50, 51, 60, 63, MOST))
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function: the model of that name and window as a user loads it, and in float64."""
    made = {}

    def of(name, window):
        if (name, window) not in made:
            torch.manual_seed(0)
            attention = "eager" if name == "gemma2" else None
            model = tf.AutoModelForCausalLM.from_config(CONFIGS[name](window), attn_implementation=attention)
            randomise(model)
            model = model.eval().requires_grad_(False)
            made[name, window] = loaded(model, tmp_path_factory.mktemp(name)), in_float64(model)
        return made[name, window]

    return of


def test_a_prompt_shorter_than_gpt_neos_window_equals_plain_hooks(models):
    """151 tokens, window 256: an erasure was 0.767 where it is 0.0485, as several positions shared a sequence."""
    (llm, model), prompt = models("gpt_neo_long", 256), (3 * TEXT)[:150]
    x, span = oracle.answer_span(llm.tokenizer, prompt[:-1], prompt[-1])
    assert len(x) == 151
    effects, truth = dl.layer_effects(llm, [prompt]), oracle.layer_effects(model, [x], "future")
    close(effects["max_future_layer"], truth["max_future_layer"])
    close(effects["max_future_out"], truth["max_future_out"], scale=0.1)
    baseline = [llm.tokenizer(TEXT[:20])["input_ids"]]
    truth = oracle.residual_erasure(model, x, span, baseline, layers=[2])["erasure_effect"]
    close(dl.residual_erasure(llm, prompt[:-1], prompt[-1], [TEXT[:20]])["erasure_effect"][2], truth[2], scale=0.1)


@pytest.mark.parametrize("name, window, n_tokens", SOME)
def test_effects_and_erasure_equal_plain_hooks(name, window, n_tokens, models):
    llm, model = models(name, window)
    prompt = TEXT[: n_tokens - 1]
    ids = [llm.tokenizer(prompt)["input_ids"]]
    assert len(ids[0]) == n_tokens
    for mode in ("future", "all") if n_tokens >= 13 else ("all",):
        truth = oracle.layer_effects(model, ids, mode)
        ours = dl.layer_effects(llm, [prompt], mode)
        close(ours[f"max_{mode}_layer"], truth[f"max_{mode}_layer"])
        close(ours[f"max_{mode}_out"], truth[f"max_{mode}_out"], scale=0.1)
        truth = oracle.local_effects(model, ids, mode)[f"max_{mode}_local"]
        close(dl.local_effects(llm, [prompt], mode)[f"max_{mode}_local"], truth)
    if n_tokens < 2:
        return
    question, answer = prompt[:-1], prompt[-1]
    baseline = [llm.tokenizer(TEXT[:20])["input_ids"]]
    x, span = oracle.answer_span(llm.tokenizer, question, answer)
    truth = oracle.residual_erasure(model, x, span, baseline)["erasure_effect"]
    close(dl.residual_erasure(llm, question, answer, [TEXT[:20]])["erasure_effect"], truth, scale=0.1)
    ours = dl.future_erasure(llm, question, answer, [TEXT[:20]])
    for key, truth in oracle.future_erasure(model, torch.tensor(x), baseline).items():
        close(ours[key], truth, scale=0.1)
