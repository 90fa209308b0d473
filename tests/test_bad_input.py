"""Whatever a person gets wrong is answered in one line that names the thing and the next step."""

import re
import signal

import numpy as np
import pandas as pd
import pytest
from torch import nn

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.session import run
from tests.families import save_family
from tests.probes.comparing import TOLERANCE
from tests.tiny_tokenizers import char_tokenizer

TEXT = "The quick brown fox jumps"
PROBES = (  # each reads its prompts in a way of its own
    dl.logit_lens,
    dl.layer_effects,
    lambda llm, prompts: dl.residual_erasure(llm, "5 + 7 = ", "12", prompts),
)
SUM, EXAMPLE = ("5 + 7 = ", "12"), [(1, "5 + 7 = ", "12")]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """A model with learned positions and a tokenizer without BOS: an empty text has no tokens."""
    return dl.load_model(save_family("gpt2", tmp_path_factory.mktemp("gpt2"), char_tokenizer(bos=False)))


def refused(message, call, *args, **options):
    """`call` fails with one line that begins like this; its exception is one of ours, or a plain ValueError."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}.*$"):
        call(*args, **options)


def test_a_series_or_an_array_of_texts_is_a_list_of_them(llm):
    texts = [TEXT, "Another text"]
    assert tokenize(llm, pd.Series(texts)) == tokenize(llm, np.array(texts)) == tokenize(llm, texts)


@pytest.mark.parametrize("probe", PROBES)
def test_prompts_that_cannot_be_measured(llm, probe):
    refused("prompt 0 ('') has no tokens; leave it out.", probe, llm, "")
    refused("prompt 1 is of type NoneType, not text; give a list of strings.", probe, llm, [TEXT, None])
    refused("prompt 1 has 257 tokens, but the model has 256 positions; use a shorter", probe, llm, [TEXT, 257 * "a"])
    none = "there are no prompts to measure; load some with dl.load_prompts(...)."
    if probe is PROBES[-1]:
        none = "there are no baseline_prompts, of which the mean is taken"
    refused(none, probe, llm, [])


@pytest.mark.parametrize(
    "given, said",
    [
        ("toy-4l", "'toy-4l' is a name; give the model itself, dl.load_model('toy-4l')"),
        (nn.Linear(2, 2), "a Linear is not what dl.load_model returns; give dl.load_model("),
    ],
)
def test_what_is_no_loaded_model_is_named_by_every_probe(given, said):
    for call in (
        *PROBES,
        dl.relative_contribution,
        dl.local_effects,
        dl.block_removal,
        lambda llm, prompts: dl.future_erasure(llm, *SUM, prompts),
        lambda llm, _: dl.integrated_gradients(llm, *SUM),
        lambda llm, _: dl.answer_lens(llm, *SUM),
        lambda llm, _: dl.depth_by_difficulty(llm, EXAMPLE),
        lambda llm, _: dl.choice_accuracy(llm, [("a", ["b", "c"], 0)]),
        lambda llm, _: dl.check_model(llm),
        lambda llm, _: dl.remove_blocks(llm, 1),
    ):
        refused(said, call, given, [TEXT])


def test_a_prompt_of_one_token_works_where_it_can_and_is_refused_where_it_cannot(llm):
    assert dl.relative_contribution(llm, ["a"])["n_tokens"].tolist() == [1]
    assert dl.logit_lens(llm, ["a"])["res_kl_divs"].isfinite().all()
    assert dl.layer_effects(llm, ["a"], mode="all")["max_all_out"].max() <= TOLERANCE  # token 0 is never skipped
    refused(
        "no prompt has the 13 tokens that future mode needs; use longer prompts or mode=", dl.layer_effects, llm, "a"
    )
    with pytest.warns(UserWarning, match=r"too short for future mode \(13 tokens\), left out: prompt 1 \(1 tokens\)"):
        assert len(dl.layer_effects(llm, [TEXT, "a"])["max_future_out_by_prompt"]) == 1


@pytest.mark.parametrize(
    "question, answer, message",
    [
        ("5 + 7 = ", "", "the answer '' has no token in '5 + 7 = '; give a visible answer."),
        ("5 + 7 = ", 12, "question and answer are of type str and int, not text; give two strings."),
        ("5 + 7 = ", " ", "the answer ' ' has no token in '5 + 7 =  '; give a visible answer."),
        ("", "12", "nothing precedes the answer '12', so no token predicts it; give a longer question."),
        (256 * "a", "b", "the question with its answer has 257 tokens, but the model has 256 positions; use a shorter"),
    ],
)
def test_answers_that_no_token_predicts(llm, question, answer, message):
    refused(message, dl.integrated_gradients, llm, question, answer)
    refused(message, dl.residual_erasure, llm, question, answer, [TEXT])


def test_unknown_modes_and_quadratures(llm):
    refused('mode "futur" is not known; did you mean future?', dl.layer_effects, llm, [TEXT], mode="futur")
    refused('at "norm" is not known; use "block", ', dl.integrated_gradients, llm, *SUM, at="norm")
    refused(
        "quadrature 'simpson' is not known; use \"gauss\",", dl.integrated_gradients, llm, *SUM, quadrature="simpson"
    )


def test_a_probe_that_is_interrupted_ends_with_its_name_and_without_the_engines_frames(llm):
    def interrupted(llm):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="^layer effects was interrupted; call it again") as stopped:
        run(interrupted, llm, label="layer effects")
    assert len(stopped.traceback) == 2 and stopped.value.__suppress_context__


def test_what_is_no_result_and_no_model_is_answered_by_what_to_give(llm):
    removal = dl.block_removal(llm, TEXT)
    ours = "give a result, several by name"
    refused(ours, dl.effective_depths, [removal])
    refused(ours, dl.effective_depths, "toy-4l", [TEXT])
    refused("blocks that can go are read from what dl.block_removal(llm, prompts) returned", dl.removable, {"x": 1})
    refused("this is a result; give what dl.removable(result) returns", dl.remove_blocks, llm, removal)
    refused("a is a TransformersModel; give a probe's result", dl.compare, {"a": llm, "b": llm})
    refused("a is a list; give a probe's result", dl.compare, {"a": [removal], "b": removal})
    refused("'toy-4l' is no folder of results; give one, a model of dl.load_model", dl.paper, "Figure 3a", "toy-4l")
    refused("3 is no folder of results", dl.paper, "3a", 3)
    refused("a TransformersModel cannot be loaded; give a name", dl.load_model, llm)
    refused("prompts is one text", dl.DepthLog, TEXT, llm.tokenizer)
    refused("nothing was measured yet", dl.DepthLog([TEXT], llm.tokenizer).plot)


def test_a_model_of_which_no_block_can_go_is_told_what_the_cheapest_costs_and_which_sizes_were_not_tried(llm):
    result = dl.block_removal(llm, [TEXT, "Another text"], sizes=[1, 2])
    cheapest = result["removal_loss"].numpy()[0].min()
    found = dl.removable(result, at_most=cheapest - 0.01)
    assert str(found).startswith(f"None of 4 blocks can go for {found.at_most:g} nats per token: the cheapest costs ")
    assert found.loss == pytest.approx(cheapest) and str(found).endswith("sizes tried: 1, 2")
    assert str(dl.removable(result, at_most=99)).endswith('sizes tried: 1, 2, not 3 (sizes="all" tries it)')
