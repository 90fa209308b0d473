"""The logit lens on tokens that the model generates, and the deep-thinking ratio of these."""

import pytest
import torch

import depth_lib as dl
from tests.families import save_family
from tests.marks import slow
from tests.oracles import curves
from tests.tiny_tokenizers import char_tokenizer

PROMPTS = ["5 + 7 + 5 = ", "1 + 2 = ", "the cat sat"]


def continuation(model, ids, n):
    """Greedy decoding as a loop."""
    stop = model.generation_config.eos_token_id
    new = []
    while len(new) < n and stop not in new:
        logits = model(input_ids=torch.tensor([ids + new])).logits[0, -1]
        new.append(int(logits.argmax()))
    return new


@pytest.fixture(scope="module")
def greedy(toy, plain_toy):
    """The prompts' tokens, and eight new ones at most of each."""
    encoded = [toy.tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    return encoded, [continuation(plain_toy, ids, 8) for ids in encoded]


def test_means_are_over_the_tokens_that_predict_what_the_model_generates(toy, plain_toy, greedy):
    found = dl.logit_lens(toy, PROMPTS, generate=4)
    encoded, new = greedy[0], [ids[:4] for ids in greedy[1]]
    assert found["generated"] == toy.tokenizer.batch_decode(new) and any(len(ids) < 4 for ids in new)
    assert found["n_tokens"].tolist() == [len(ids) for ids in new]
    for p, (ids, ours) in enumerate(zip(encoded, new, strict=True)):
        whole, before = (curves.logit_lens(plain_toy, [ids]) for ids in (ids + ours[:-1], ids[:-1]))
        for key in ("res_kl_divs", "res_settled"):
            truth = whole[key] * (len(ids + ours) - 1) - before[key] * (len(ids) - 1)
            torch.testing.assert_close(found[f"{key}_sums"][p], truth.float(), rtol=1e-4, atol=1e-4)
    frame, late = dl.deep_thinking_ratio(found), found["n_tokens"] - found["res_settled_sums"][:, 3]
    assert (frame.ratio * frame.tokens).tolist() == pytest.approx(late.tolist())


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.5},
        {"num_beams": 3},
        slow({"suppress_tokens": [49, 51]}),
        {"min_new_tokens": 6},
        {"do_sample": True, "temperature": 2.0},
        {"stop_strings": ["1", "2", "3"]},
        slow({"token_healing": True}),
        slow({"cache_implementation": "quantized"}),
        {"cache_implementation": "static"},
        slow({"prompt_lookup_num_tokens": 2}),
        {"return_dict_in_generate": True, "output_scores": True},
        slow({"use_cache": False}),
        slow({"forced_eos_token_id": 49}),
        {"max_length": 3},
        slow({"max_new_tokens": 1}),
        slow({"guidance_scale": 3.0}),
        slow({"bad_words_ids": [[49], [51]]}),
        slow({"sequence_bias": [[[49], 50.0]]}),
        slow({"penalty_alpha": 0.6, "top_k": 4}),
        slow({"dola_layers": "high"}),
        slow({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}),
        slow({"min_length": 200}),
        slow({"max_time": 0.0}),
        {"something_of_its_own": 5},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_checkpoints_own_settings_decide_no_token(asked, toy, plain_toy, greedy, monkeypatch):
    encoded, new = greedy
    for model in (plain_toy, toy._module):
        for name, value in asked.items():
            monkeypatch.setattr(model.generation_config, name, value, raising=False)
    found = dl.logit_lens(toy, PROMPTS, generate=8)
    assert found["generated"] == toy.tokenizer.batch_decode(new)
    assert found["n_tokens"].tolist() == [len(ids) for ids in new]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_more_tokens_than_the_model_has_positions_are_refused_like_a_prompt(family, tmp_path):
    llm = dl.load_model(save_family(family, tmp_path, char_tokenizer(bos=False)))
    text = "x" * 250
    assert dl.logit_lens(llm, [text], generate=7)["n_tokens"] <= 7
    line = "prompt 0 has 250 tokens; with 8 generated ones it exceeds the model's 256 positions; generate at most 7"
    with pytest.raises(ValueError, match=line):
        dl.logit_lens(llm, [text], generate=8)
