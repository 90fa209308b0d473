"""The toys can do what they are there for, and the sample rows are what they say they are."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.embedded import TOYS, toy_path
from depth_lib.models.unroll import unroll
from experiments.training.corpus import ROWS, draw_sum, draw_text
from experiments.training.toys import PASSES


@pytest.fixture(scope="module", params=TOYS)
def toy(request):
    model = AutoModelForCausalLM.from_pretrained(toy_path(request.param), dtype=torch.float32).eval()
    return unroll(model, PASSES[request.param]) if request.param in PASSES else model


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


def test_a_text_of_each_kind_is_drawn_in_the_format_of_its_dataset():
    for dataset, row in ROWS.items():
        text, row = draw_text(random.Random(1), dataset), row(random.Random(1))
        assert text == draw_text(random.Random(1), dataset)
        if dataset == "hellaswag":
            assert row["ctx"] in text and row["endings"][int(row["label"])] in text
        else:
            question, answer = ("Problem", "Solution") if dataset == "aime24" else ("question", "answer")
            assert text.startswith("Given the following problem") and row[question] in text
            assert row[answer].partition("\n####")[0] in text
    assert draw_text(random.Random(1)) != draw_text(random.Random(2))
