"""Examples with difficulty levels: drawn, from files, from the samples that ship with the package, from the Hub."""

import random
import re
from collections import Counter

import pytest

from depth_lib.data.examples import Example, load_examples
from depth_lib.data.prompts import PromptError, load_prompts

MQUAKE = {"questions": ["Who leads it?", "Another?"], "answer": "Ann", "orig_triples": [["a", "b", "c"]] * 2}
MATH = {"problem": "Find $x$.", "level": "Level 3", "type": "Intermediate Algebra", "solution": "It is $\\boxed{2}$."}


def test_a_dataset_does_not_need_the_files_of_others(own):
    own(TYPO=1)
    assert len(load_examples("sums", 1)) == 5
    with pytest.raises(PromptError, match="'gsm8k' has no difficulty levels; choose from math, mquake, sums"):
        load_examples("gsm8k", 1)


def test_sums_have_as_many_terms_as_their_level_and_are_right():
    examples = load_examples("sums")
    assert Counter(one.level for one in examples) == dict.fromkeys(range(2, 7), 20)
    assert len({one.question for one in examples}) == 100
    for level, question, answer, within in examples:
        assert re.fullmatch(r"\d( \+ \d)* = ", question) and not within
        terms = [int(term) for term in question.removesuffix(" = ").split(" + ")]
        assert len(terms) == level and str(sum(terms)) == answer
    assert load_examples("sums", seed=42) == examples != load_examples("sums", seed=1)


def test_more_sums_of_two_terms_than_there_are_is_all_of_them_with_a_warning():
    with pytest.warns(UserWarning, match="^sums has only 100 of level 2, not 120; using all of them"):
        assert Counter(one.level for one in load_examples("sums", 120))[2] == 100


def test_a_row_of_mquake_is_written_letter_by_letter_and_its_hops_are_the_level(rows):
    with pytest.warns(UserWarning, match="has only 1 of level 2, not 20"):
        found = load_examples("mquake", source=rows(MQUAKE))
    assert found == [Example(2, "Question: Who leads it?\nAnswer:", " Ann")]
    assert load_prompts("mquake", 1, rows(MQUAKE)) == ["Question: Who leads it?\nAnswer: Ann"]


def test_a_row_of_math_is_measured_within_its_solution_and_has_the_printed_level(rows):
    path = rows(MATH, {**MATH, "level": "Level ?"})
    with pytest.warns(
        UserWarning, match=r"^1 of 2 rows of math from .* have no level \(a whole number, 0 or more\) and"
    ):
        found = load_examples("math", 1, source=path)
    assert found == [Example(3, "Problem: Find $x$.\nAnswer:", " It is $\\boxed{2}$.", True)]
    assert [one.level for one in load_examples("math", 1, source=rows({**MATH, "level": 2.0}))] == [2]
    path = rows({**MATH, "level": 1}, {**MATH, "level": 0})
    assert [one.level for one in load_examples("math", 1, source=path)] == [0, 1]


def test_rows_are_shuffled_by_42_and_the_first_of_each_level_taken_easy_levels_first(rows):
    items = [{**MATH, "problem": str(i), "level": f"Level {1 + i % 2}"} for i in range(12)]
    order = list(range(12))
    random.Random(42).shuffle(order)
    wanted = [i for i in order if i % 2 == 0][:3] + [i for i in order if i % 2 == 1][:3]
    found = load_examples("math", 3, source=rows(*items))
    assert [one.question for one in found] == [f"Problem: {i}\nAnswer:" for i in wanted]


@pytest.mark.parametrize(
    "asked, message",
    [
        (dict(dataset="sums", n_per_level=0), "n_per_level must be at least 1, got 0"),
        (dict(dataset="math", source="hug"), "hug is not a .jsonl"),
    ],
)
def test_what_cannot_be_loaded_is_named(asked, message):
    with pytest.raises(PromptError, match=re.escape(message)):
        load_examples(**asked)


def test_a_row_that_does_not_fit_is_named_and_so_is_a_file_without_levels(rows):
    with pytest.raises(PromptError, match="row 1 does not fit the template of mquake .'answer' is missing or null."):
        load_examples("mquake", source=rows({"questions": ["q"]}))
    for level in ("Level ?", "Level ²", "3 of 5", -1, 2.5, None):
        with pytest.raises(PromptError, match="has no row with a level in the field 'level'; write whole "):
            load_examples("math", source=rows({**MATH, "level": level}))


@pytest.mark.parametrize(
    "dataset, row, message",
    [
        ("mquake", {**MQUAKE, "questions": []}, " does not fit the template of mquake (list object has no element 0;"),
        ("mquake", {**MQUAKE, "answer": ""}, ": the answer is empty; write it, or leave the row out"),
        ("math", {**MATH, "solution": " "}, ": the answer is empty; write it, or leave the row out"),
    ],
)
def test_a_row_without_a_question_or_an_answer_is_named_when_it_is_loaded(rows, dataset, row, message):
    path = rows(MQUAKE if dataset == "mquake" else MATH, row)
    for load in (load_examples, load_prompts):
        with pytest.raises(PromptError, match=re.escape(f"{path} row 2{message}")):
            load(dataset, 3, path)


@pytest.mark.filterwarnings("ignore:m")
@pytest.mark.parametrize("dataset, levels, fewest", [("mquake", range(2, 5), 6), ("math", range(1, 6), 4)])
def test_the_samples_that_ship_have_every_level_in_the_hubs_schema(dataset, levels, fewest):
    for source in ("embedded", "sample"):
        examples = load_examples(dataset, source=source)
        assert Counter(one.level for one in examples) == dict.fromkeys(levels, fewest)
        assert len(set(examples)) == len(examples) and all(one.within == (dataset == "math") for one in examples)
