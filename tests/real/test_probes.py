"""On real weights, whose first token's residual is 60 times as long as the others', every probe equals its oracle."""

import os

import pytest
import torch

import depth_lib as dl
from depth_lib.api import tokenize
from depth_lib.prompts import ANSWER, QUESTION
from tests import oracles

SHORT = "The quick brown fox jumps over 13 lazy dogs, and then over 28 more."
LONG = dl.load_prompts("gsm8k", 1, source="sample")[0]
PAIR = (QUESTION, ANSWER)
BLOCKS, ERASED = range(30), range(31)
if not os.environ.get("DEPTH_LIB_LONG_TESTS"):  # the oracle makes a full forward pass for each intervention
    LONG, PAIR, BLOCKS, ERASED = LONG[:240], ("5 + 7 = ", "12"), [0, 1, 13, 28, 29], [0, 1, 2, 14, 29, 30]
CURVES = {"top1_agreement": "res_top1", "reciprocal_rank": "res_mrr"}  # the oracle's names


def close(ours, truth, tolerance=1e-5):
    """Whether the difference's norm is small relative to the true one's."""
    assert ours.shape == truth.shape and ours.dtype == torch.float32
    difference = (ours - truth).norm() / truth.norm()
    assert difference <= tolerance, f"{difference:.1e}"


@pytest.fixture(params=[SHORT, LONG], ids=["short", "long"])
def text(request):
    return request.param


def ids(llm, text):
    return [torch.tensor(x) for x in tokenize(llm, [text])]


def test_contributions_equal_the_oracle(llm, text):
    ours = dl.relative_contribution(llm, [text])
    for key, curve in oracles.relative_contribution(llm._module, ids(llm, text)).items():
        close(ours[key], curve)


def test_the_lens_equals_the_oracle(llm, text):
    ours = dl.logit_lens(llm, [text])
    for key, curve in oracles.logit_lens(llm._module, ids(llm, text)).items():
        close(ours[CURVES.get(key, key)], curve)


@pytest.mark.parametrize("mode", ["future", "all"])
def test_layer_effects_equal_the_oracle(llm, text, mode):
    ours = dl.layer_effects(llm, [text], mode=mode)
    for key, matrix in oracles.layer_effects(llm._module, ids(llm, text), mode, skips=BLOCKS).items():
        close(ours[key][BLOCKS], matrix[BLOCKS])


def test_residual_erasure_equals_the_oracle(llm):
    ours = dl.residual_erasure(llm, *PAIR, [SHORT, LONG])
    x, span = oracles.answer_span(llm.tokenizer, *PAIR)
    baseline = [*ids(llm, SHORT), *ids(llm, LONG)]
    truth = oracles.residual_erasure(llm._module, torch.tensor(x), span, baseline, ERASED)
    close(ours["erasure_effect"][ERASED], truth["erasure_effect"][ERASED])
