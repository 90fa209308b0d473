"""What probes count as tokens, where an answer's are found, and where effects on the future are measured."""

from types import SimpleNamespace

import pytest

import depth_lib as dl
from depth_lib.data.tokens import answer_span, future_positions, tokenize
from tests.families import save_family
from tests.tiny_tokenizers import char_tokenizer, merging_tokenizer

TOKENIZERS = {  # its tokenizer; tokens of "17 = 28"; places of the answer "28" among them, and the tokens
    "a character each": (lambda: char_tokenizer(bos=False), 7, [5, 6], list("17 = 28")),
    "behind a bos": (lambda: char_tokenizer(bos=True), 8, [6, 7], ["<bos>", *"17 = 28"]),
    "merging": (lambda: merging_tokenizer(bos=False), 5, [3, 4], ["17", " ", "=", " 2", "8"]),
    "merging, behind a bos": (lambda: merging_tokenizer(bos=True), 6, [4, 5], ["<bos>", "17", " ", "=", " 2", "8"]),
}


@pytest.mark.parametrize("tokenizer, n_tokens, places, tokens", TOKENIZERS.values(), ids=TOKENIZERS)
def test_tokens_are_counted_and_the_answers_are_found_as_they_stand_in_the_text(
    tokenizer, n_tokens, places, tokens, tmp_path
):
    llm = dl.load_model(save_family("llama", tmp_path, tokenizer()))
    assert [len(ids) for ids in tokenize(llm, ["17 = 28", "17 = 2817 = 28"])] == [n_tokens, 2 * n_tokens - bos(tokens)]
    for probe in (dl.relative_contribution, dl.logit_lens):
        assert probe(llm, ["17 = 28", "17 = 2817 = 28"])["n_tokens"].tolist() == [n_tokens, 2 * n_tokens - bos(tokens)]
    ids, found, strings = answer_span(llm, "17 = ", "28")
    assert (len(ids), found, strings) == (n_tokens, places, tokens)
    assert len(llm.tokenizer("28", add_special_tokens=False)["input_ids"]) == (1 if "17" in tokens else 2)
    for result in (
        dl.residual_erasure(llm, "17 = ", "28", ["abc"]),
        dl.integrated_gradients(llm, "17 = ", "28", quadrature=1.0),
    ):
        assert result["tokens"] == tokens
        curve = result.get("erasure_effect", result.get("igrads"))
        assert curve.shape[1] == n_tokens and not curve[:, -1].any() and curve[0, : places[-1]].all()


def test_a_character_split_over_tokens_makes_the_answer_as_many_tokens_as_it_has(toy):
    result = dl.residual_erasure(toy, "1 + 2 = ", "東京", ["3"])
    assert "".join(result["tokens"][:-6]) == "1 + 2 = " and result["n_answer"].tolist() == [6]
    assert int(result["n_answer"]) == 6


def bos(tokens):
    return tokens[0] == "<bos>"


def test_future_positions_are_the_papers_draw():
    """Written out by hand: candidates 8, 16, … below T − 4, shuffled by one generator that runs on through prompts."""
    drawn = future_positions([12, 13, 21, 60, 100])
    assert drawn == [[], [8], [16, 8], [48, 40, 16, 32], [64, 80, 32, 40]]
    assert future_positions([100]) != drawn[-1:]


def test_an_answer_is_found_in_two_texts_by_a_tokenizer_that_knows_their_places():
    llm = SimpleNamespace(tokenizer=SimpleNamespace(is_fast=False))
    with pytest.raises(ValueError, match="character offsets; load the model with a fast tokenizer"):
        answer_span(llm, "5 + 7 = ", "12")
