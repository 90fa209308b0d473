"""The toys can do what they are there for, and the sample rows are what they say they are."""

import json
import math
import random
import re
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from depth_lib.data.prompts import ANSWER, QUESTION, load_prompts
from depth_lib.embedded import DATASETS, TOYS, prompts_path, toy_path
from experiments.training.corpus import draw_sum, draw_text
from experiments.training.tasks import is_held_out


@pytest.fixture(scope="module", params=TOYS)
def toy(request):
    folder = toy_path(request.param)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(toy_path(TOYS[0]))


def rows(dataset):
    return [json.loads(line) for line in prompts_path(dataset).read_text(encoding="utf-8").splitlines()]


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


@pytest.mark.slow
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("source", ["fresh", "sample"])
def test_each_format_is_read_with_less_than_60_percent_of_a_unigram_models_loss(toy, tokenizer, dataset, source):
    rng = random.Random(7)
    texts = [draw_text(rng, dataset) for _ in range(8)] if source == "fresh" else load_prompts(dataset, 8, "embedded")
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        log_p = toy(**batch).logits[:, :-1].log_softmax(-1)
    ids, real = batch.input_ids[:, 1:], batch.attention_mask[:, 1:].bool()
    loss = -log_p.gather(2, ids[..., None]).squeeze(2)[real].mean().item()
    n, counts = real.sum().item(), Counter(ids[real].tolist())
    unigram = -sum(count / n * math.log(count / n) for count in counts.values())
    assert loss < 0.6 * unigram


def test_checkpoints_are_ordinary_float16_folders_of_12_mb_at_most():
    sizes = 0
    for name, blocks in zip(TOYS, (4, 8, 16), strict=True):
        config = json.loads((toy_path(name) / "config.json").read_text())
        assert (config["model_type"], config["num_hidden_layers"], config["dtype"]) == ("qwen2", blocks, "float16")
        assert config["max_position_embeddings"] >= 2048
        sizes += sum(file.stat().st_size for file in toy_path(name).iterdir())
    assert sizes <= 12e6


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


@pytest.mark.parametrize("dataset", DATASETS)
def test_there_are_twelve_short_sample_prompts_of_different_lengths(dataset, tokenizer):
    lengths = [len(tokenizer(prompt).input_ids) for prompt in load_prompts(dataset, 12, source="embedded")]
    assert len(set(lengths)) >= 8
    assert max(lengths) <= 700


def test_five_sample_problems_of_aime24_pass_its_length_filter(tokenizer):
    assert len(load_prompts("aime24", source="embedded", tokenizer=tokenizer)) == 5


def test_gsm8k_rows_calculate_right_and_end_with_their_last_result():
    for row in rows("gsm8k"):
        assert set(row) == {"question", "answer"}
        reasoning, answer = row["answer"].split("\n#### ")
        marks = re.findall(r"<<([\d+*/-]+)=(\d+)>>(\d+)", reasoning)
        assert len(marks) == reasoning.count("<<") > 0
        assert all(eval(formula) == int(result) == int(shown) for formula, result, shown in marks)
        assert answer == marks[-1][1]


def test_hellaswag_rows_have_the_hubs_fields_and_a_string_label():
    for row in rows("hellaswag"):
        assert set(row) >= {"ind", "activity_label", "source_id", "split", "split_type"}
        assert row["ctx"] == f"{row['ctx_a']} {row['ctx_b']}".strip()
        assert len(set(row["endings"])) == 4
        assert row["label"] in ("0", "1", "2", "3")
    assert len({row["label"] for row in rows("hellaswag")}) == 4


def test_aime24_rows_hold_true_equations_and_box_their_answer():
    for row in rows("aime24"):
        assert set(row) == {"ID", "Problem", "Solution", "Answer"}
        assert isinstance(row["Answer"], int) and 0 <= row["Answer"] <= 999
        assert row["Solution"].endswith(f"\\boxed{{{row['Answer']}}}")
        tex = re.sub(r"\\tfrac\{([^}]+)\}\{([^}]+)\}", r"(\1)/(\2)", row["Solution"])
        tex = re.sub(r"\\binom\{(\d+)\}\{(\d+)\}", r"math.comb(\1,\2)", tex)
        tex = re.sub(r"\)\(", ")*(", tex.replace("^", "**"))
        pieces = tex.split("$")
        for equation, after in zip(pieces[1::2], pieces[2::2], strict=True):
            if after.startswith(" modulo"):
                continue
            sides = [side for side in equation.split("=") if not re.search(r"\b[a-z]\b|\brs\b|\bab\b", side)]
            assert len({eval(side) for side in sides}) <= 1, equation
