"""On real weights, whose first token's residual is 60 times as long as the others', every probe equals its oracle."""

import json
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from tests import oracles
from tests.real import interventions
from tests.real.interventions import MODES, PAIR, TEXTS, erasure

pytestmark = pytest.mark.slow  # loading and measuring a real model takes half a minute

TRUTH = {key: torch.tensor(value) for key, value in json.loads(interventions.KEPT.read_text()).items()}
each_text = pytest.mark.parametrize("name", ["short", "long"])
each_mode = pytest.mark.parametrize("mode", MODES)


def close(ours, truth, tolerance=1e-5):
    """Whether the difference's norm is small relative to the true one's."""
    assert ours.shape == truth.shape and ours.dtype == torch.float32
    difference = (ours - truth).norm() / truth.norm()
    assert difference <= tolerance, f"{difference:.1e}"


def close_by_row(ours, truth, tolerance=1e-5):
    """Whether every difference is small relative to the largest true value of its row, or of a whole curve."""
    assert ours.shape == truth.shape and ours.dtype == torch.float32
    ours, truth = (x.flatten()[None] if x.ndim == 1 or x.shape[1] == 1 else x for x in (ours, truth))
    differences = (ours - truth).abs().amax(1) / truth.abs().amax(1).clamp_min(1e-9)
    assert differences.max() <= tolerance, f"{differences.max():.1e} in row {differences.argmax()}"


@pytest.fixture(scope="module")
def in_float64(llm):
    return oracles.in_float64(llm._module)


@each_text
@each_mode
def test_the_effects_of_every_block_equal_the_oracle(llm, name, mode):
    ours = dl.layer_effects(llm, [TEXTS[name]], mode=mode)
    for key in (f"max_{mode}_layer", f"max_{mode}_out", f"{mode}_kl"):
        close_by_row(ours[key], TRUTH[f"{key}, {name}"])


def test_the_erasure_of_every_layer_equals_the_oracle(llm):
    ours, some = dl.residual_erasure(llm, *PAIR, list(TEXTS.values()))["erasure_effect"], [0, 14, 30]
    here = erasure(llm, llm._module, some)[some]
    close(ours[some], here)
    close_by_row(ours[some].flatten(), here.flatten())
    close(ours, TRUTH["erasure_effect"], 5e-5)  # float32 is 1e-5 to 2.5e-5 from float64, on two kinds of CPU


def test_the_responses_that_the_docs_keep_are_the_models_own(llm):
    kept, some = torch.load(Path(__file__).parents[2] / "docs/responses/responses.pt"), [4, 10]
    questions = dl.load_prompts("gsm8k", 12, source="sample", part="question")
    chats = dl.chat_prompts(llm, [questions[k] for k in some])
    ours = dl.logit_lens(llm, chats, generate=64, per_token=True)
    for k, place in enumerate(some):
        assert ours["generated"][k] == kept["generated"][place] and ours["tokens"][k] == kept["tokens"][place]
        assert torch.equal(ours["settling"][k], kept["settling"][place])
        torch.testing.assert_close(ours["jsd"][k].float(), kept["jsd"][place].float(), atol=2e-3, rtol=0)
    close(ours["res_kl_divs_sums"], kept["res_kl_divs_sums"][some], 1e-4)
