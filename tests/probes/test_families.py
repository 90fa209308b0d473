"""The tiny models show what they are made to show, and load from disk as a user's would."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.families import EACH_FAMILY, build
from tests.tiny_tokenizers import VOCABULARY_SIZE

SLIDING = ["mistral_sliding", "phi3_sliding", "olmo3", "gemma2", "gemma3_text", "gpt_oss"]
INPUT_IDS = torch.randint(4, VOCABULARY_SIZE, (1, 13), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_no_norm_bias_or_scale_can_be_forgotten_unseen(name):
    model = build(name)
    logits = model(INPUT_IDS).logits
    for path, weight in model.named_parameters():
        softmax_ignores = path.endswith("k_proj.bias") and model.config.model_type == "opt"  # shifts all scores alike
        if weight.ndim > 1 or softmax_ignores:
            continue
        kept = weight.clone()
        weight.fill_(1 if weight.min() > 0 else 0)  # only the weights of norms around 1 are drawn positive
        change = (model(INPUT_IDS).logits - logits).abs().max()
        weight.copy_(kept)
        assert change > 1e-4 * logits.abs().max(), path


@pytest.mark.parametrize(
    ("name", "setting", "neutral"),
    [
        *((name, "sliding_window", 64) for name in SLIDING),
        ("gemma2", "attn_logit_softcapping", None),
        ("gemma2", "final_logit_softcapping", None),
        ("cohere", "logit_scale", 1.0),
        ("granite", "residual_multiplier", 1.0),
        ("granite", "logits_scaling", 1.0),
        ("granite", "embedding_multiplier", 1.0),
        ("granite", "attention_multiplier", 0.25),
        ("gpt_neox", "use_parallel_residual", False),
    ],
)
def test_no_window_cap_or_scale_can_be_forgotten_unseen(name, setting, neutral):
    model = build(name)
    config = copy.deepcopy(model.config)
    setattr(config, setting, neutral)
    without = AutoModelForCausalLM.from_config(config).eval()
    without.load_state_dict(model.state_dict())
    logits = model(INPUT_IDS).logits
    assert (without(INPUT_IDS).logits - logits).abs().max() > 0.01 * logits.abs().max()
