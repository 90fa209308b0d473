"""A question and its answer: by name, drawn, or one's own."""

import pytest

from depth_lib.data.pairs import DRAWN_PAIRS, PAIRS, Pair, find_pair
from depth_lib.data.prompts import ANSWER, QUESTION, PromptError, load_prompts
from depth_lib.params import Params


def test_the_default_is_the_papers_sum_and_its_results_carry_no_name():
    pair = Pair("", QUESTION, ANSWER)
    assert find_pair() == find_pair("sum") == find_pair(question=QUESTION, answer=ANSWER) == pair


def test_a_named_pair_is_the_same_whether_asked_for_by_name_or_in_words():
    question, answer = PAIRS["spouse"]
    assert find_pair("spouse") == find_pair(question=question, answer=answer) == Pair("spouse", question, answer)


def test_the_help_lists_every_pair():
    listed = Params.model_fields["PAIR"].description.partition(": ")[2].replace(" or ", ", ")
    assert listed.split(", ") == [*PAIRS, *DRAWN_PAIRS]


@pytest.mark.parametrize("name", DRAWN_PAIRS)
def test_a_drawn_pair_is_the_first_prompt_that_the_same_seed_draws(name):
    pair = find_pair(name, seed=7)
    assert pair.question + pair.answer == load_prompts(name, 3, seed=7)[0]
    assert pair.question.endswith(" = ") and pair.answer.isdigit()
    assert find_pair(name, seed=8).question != pair.question


def test_pairs_of_ones_own_have_labels_that_tell_them_apart_and_that_a_folder_can_hold():
    asked = ["2 + 2 = ", "2 + 2 =", 'Who is "$x"?\n', "是谁?", "- " * 200, "who is it? " * 20]
    labels = [find_pair(question=question, answer=answer).label for question in asked for answer in ("4", " 4")]
    assert len(set(labels)) == len(labels)
    assert all(len(label) <= 33 and set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for label in labels)
    assert not set(labels) & {*PAIRS, *DRAWN_PAIRS, ""}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"name": "spous"}, 'unknown pair "spous"; did you mean "spouse"'),
        ({"question": "1 + 1 = "}, "provide both: set ANSWER too, or leave out both"),
        ({"answer": "2"}, "provide both: set QUESTION too, or leave out both"),
    ],
)
def test_half_a_pair_or_an_unknown_one_is_named_with_the_next_step(asked, said):
    with pytest.raises(PromptError, match=said):
        find_pair(**asked)
