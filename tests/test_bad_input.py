"""Whatever a person gets wrong is answered in one line that names the thing and the next step."""

import numpy as np
import pandas as pd
import pytest

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.results.schemas import ArtifactError
from tests.families import save_family
from tests.probes.comparing import TOLERANCE
from tests.tiny_tokenizers import char_tokenizer

TEXT = "The quick brown fox jumps"
PROBES = (
    dl.relative_contribution,
    dl.logit_lens,
    dl.layer_effects,
    lambda llm, prompts: dl.residual_erasure(llm, "5 + 7 = ", "12", prompts),
)
ABOUT_ANSWERS = {
    "residual_erasure": lambda llm, question, answer: dl.residual_erasure(llm, question, answer, [TEXT]),
    "integrated_gradients": dl.integrated_gradients,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """A model with learned positions and a tokenizer without BOS: an empty text has no tokens."""
    return dl.load_model(save_family("gpt2", tmp_path_factory.mktemp("gpt2"), char_tokenizer(bos=False)))


def line(call, *args, **options):
    """The one line with which `call` fails; its exception must be one of ours, or a plain ValueError."""
    with pytest.raises((ValueError, ArtifactError)) as raised:
        call(*args, **options)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_a_series_or_an_array_of_texts_is_a_list_of_them(llm):
    texts = [TEXT, "Another text"]
    wanted = tokenize(llm, texts)
    assert tokenize(llm, pd.Series(texts)) == tokenize(llm, np.array(texts)) == wanted


@pytest.mark.parametrize(
    "prompts, message",
    [
        ("", "prompt 0 ('') has no tokens; leave it out."),
        ([TEXT, None], "prompt 1 is of type NoneType, not text; give a list of strings."),
        ([TEXT, 257 * "a"], "prompt 1 has 257 tokens, but the model has 256 positions; use a shorter text."),
    ],
)
def test_prompts_that_cannot_be_measured(llm, prompts, message):
    assert [line(probe, llm, prompts) for probe in PROBES] == [message] * len(PROBES)


def test_a_call_without_prompts(llm):
    said = [line(probe, llm, []) for probe in PROBES]
    assert said[:3] == ["there are no prompts to measure; load some with dl.load_prompts(...)."] * 3
    assert said[3].startswith("there are no baseline_prompts, of which the mean is taken")


def test_a_models_name_is_no_model():
    for probe in (*PROBES, lambda llm, texts: dl.integrated_gradients(llm, *texts)):
        with pytest.raises(ValueError, match=r"'toy-4l' is a name; give the model itself, dl.load_model\('toy-4l'\)"):
            probe("toy-4l", [TEXT, "28"])


def test_a_prompt_of_one_token_works_where_it_can_and_is_refused_where_it_cannot(llm):
    assert dl.relative_contribution(llm, ["a"])["n_tokens"].tolist() == [1]
    assert dl.logit_lens(llm, ["a"])["res_kl_divs"].isfinite().all()
    assert dl.layer_effects(llm, ["a"], mode="all")["max_all_out"].max() <= TOLERANCE  # token 0 is never skipped
    message = line(dl.layer_effects, llm, ["a"])
    assert message == "no prompt has the 13 tokens that future mode needs; use longer prompts or mode='all'."
    with pytest.warns(UserWarning, match=r"too short for future mode \(13 tokens\), left out: prompt 1 \(1 tokens\)"):
        assert len(dl.layer_effects(llm, [TEXT, "a"])["max_future_out_by_prompt"]) == 1


@pytest.mark.parametrize("probe", ABOUT_ANSWERS.values(), ids=ABOUT_ANSWERS)
@pytest.mark.parametrize(
    "question, answer, message",
    [
        ("5 + 7 = ", "", "the answer '' has no token in '5 + 7 = '; give a visible answer."),
        ("5 + 7 = ", " ", "the answer ' ' has no token in '5 + 7 =  '; give a visible answer."),
        ("", "12", "nothing precedes the answer '12', so no token predicts it; give a longer question."),
        ("5 + 7 = ", 12, "question and answer are of type str and int, not text; give two strings."),
        (256 * "a", "b", "the question with its answer has 257 tokens, but the model has 256 positions; use a shorter"),
    ],
)
def test_answers_that_no_token_predicts(llm, probe, question, answer, message):
    assert line(probe, llm, question, answer).startswith(message)


def test_unknown_modes_and_quadratures(llm):
    message = line(dl.layer_effects, llm, [TEXT], mode="futur")
    assert message == 'mode "futur" is not known; did you mean future? use "future", "all", "remove"'
    message = line(dl.integrated_gradients, llm, "5 = ", "5", quadrature="simpson")
    assert message == 'quadrature \'simpson\' is not known; use "gauss", "riemann" or a tolerance such as 0.01.'
    message = line(dl.integrated_gradients, llm, "5 = ", "5", at="norm")
    assert message == 'there are no gradients at \'norm\'; use "block", "attention" or "mlp".'
