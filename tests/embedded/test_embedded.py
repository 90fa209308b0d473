"""The toys can do what they are there for, and the sample rows are what they say they are."""

import random
import re
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.embedded import TOYS, prompts_path, toy_path
from experiments.training.corpus import draw_sum
from experiments.training.tasks import is_held_out


@pytest.fixture(scope="module", params=TOYS)
def toy(request):
    folder = toy_path(request.param)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(toy_path(TOYS[0]))


def replies(model, tokenizer, questions):
    """Greedy continuations of questions of one length, by the library's own generate()."""
    ids = tokenizer(questions, return_tensors="pt")
    with torch.no_grad():
        out = model.generate(**ids, max_new_tokens=4, do_sample=False)
    return tokenizer.batch_decode(out[:, ids.input_ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.slow
def test_at_least_95_percent_of_200_held_out_sums_are_answered_exactly(toy, tokenizer):
    rng, by_length = random.Random(20240), {}
    for question, answer in (draw_sum(rng, held_out=True) for _ in range(200)):
        by_length.setdefault(len(question), []).append((question, answer))
    right = 0
    for pairs in by_length.values():
        questions, answers = zip(*pairs, strict=True)
        right += sum(map(str.__eq__, replies(toy, tokenizer, list(questions)), answers))
    assert right >= 190


def test_the_sum_that_the_probes_look_at_is_answered(toy, tokenizer):
    assert replies(toy, tokenizer, [QUESTION]) == [ANSWER]


def test_drawn_sums_are_right_and_stay_on_their_side_of_the_split():
    rng, terms = random.Random(0), Counter()
    for held_out in [True, False] * 300:
        question, answer = draw_sum(rng, held_out)
        assert re.fullmatch(r"\d( \+ \d){1,5} = ", question)
        assert eval(question.removesuffix("= ")) == int(answer)
        assert is_held_out(question) == held_out
        terms[question.count("+") + 1] += 1
    assert set(terms) == {2, 3, 4, 5, 6}


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="toy-9l.*toy-4l, toy-8l, toy-16l"):
        toy_path("toy-9l")
    with pytest.raises(ValueError, match="mmlu.*aime24, gsm8k, hellaswag"):
        prompts_path("mmlu")


@pytest.mark.parametrize("name", TOYS)
def test_every_ascii_character_is_one_token_with_its_own_offsets(name):
    tokenizer, text = AutoTokenizer.from_pretrained(toy_path(name)), "".join(map(chr, range(128)))
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert encoded.offset_mapping == [(i, i + 1) for i in range(128)]
    assert tokenizer.decode(encoded.input_ids) == text
    assert tokenizer(QUESTION + ANSWER).input_ids == tokenizer(QUESTION).input_ids + tokenizer(ANSWER).input_ids


def test_any_other_text_round_trips_too(tokenizer):
    text = "naïve – 日本語 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
