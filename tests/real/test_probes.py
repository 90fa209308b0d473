"""On real weights, whose first token's residual is 60 times as long as the others', every probe equals its oracle."""

import json

import pytest
import torch

import depth_lib as dl
from depth_lib.api import tokenize
from tests import oracles
from tests.marks import slow
from tests.real import interventions
from tests.real.interventions import MODES, PAIR, TEXTS, erasure

TRUTH = {key: torch.tensor(value) for key, value in json.loads(interventions.KEPT.read_text()).items()}
each_text = pytest.mark.parametrize("name", ["short", slow("long")])
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


@pytest.mark.slow  # what they were is kept, see test_golden.py
def test_contributions_and_lens_equal_the_oracle(llm):
    texts = list(TEXTS.values())
    for probe in ("relative_contribution", "logit_lens"):
        ours = getattr(dl, probe)(llm, texts)
        for key, curve in getattr(oracles, probe)(llm._module, tokenize(llm, texts)).items():
            close(ours[key], curve)


@each_text
@each_mode
def test_the_effects_of_every_block_equal_the_oracle(llm, name, mode):
    ours = dl.layer_effects(llm, [TEXTS[name]], mode=mode)
    for key in (f"max_{mode}_layer", f"max_{mode}_out", f"{mode}_kl"):
        close_by_row(ours[key], TRUTH[f"{key}, {name}"])


@pytest.mark.slow
def test_the_erasure_of_every_layer_equals_the_oracle(llm):
    ours, some = dl.residual_erasure(llm, *PAIR, list(TEXTS.values()))["erasure_effect"], [0, 14, 30]
    here = erasure(llm, llm._module, some)[some]
    close(ours[some], here)
    close_by_row(ours[some].flatten(), here.flatten())
    close(ours, TRUTH["erasure_effect"], 5e-5)  # float32 is 1e-5 to 2.5e-5 from float64, on two kinds of CPU


@pytest.mark.slow
@each_mode
def test_the_effects_that_are_kept_are_those_that_are_computed(llm, in_float64, mode):
    skips = [1, 28]
    for key, found in oracles.layer_effects(in_float64, tokenize(llm, [TEXTS["short"]]), mode, skips=skips).items():
        torch.testing.assert_close(found[skips].float(), TRUTH[f"{key}, short"][skips], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_the_erasure_that_is_kept_is_the_one_that_is_computed(llm, in_float64):
    found = erasure(llm, in_float64, [14])
    torch.testing.assert_close(found[14].float(), TRUTH["erasure_effect"][14], rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_five_prompts_and_ten_agree_on_what_can_be_removed_within_their_intervals(llm):
    prompts = [text.split("Problem: ")[1][:115] for text in dl.load_prompts("gsm8k", 10, source="sample")]
    result = dl.block_removal(llm, prompts, sizes=[1, 2, 3])
    five = {"removal_loss_by_prompt": result["removal_loss_by_prompt"][:5]}
    five |= {"removal_loss": five["removal_loss_by_prompt"].mean(0), "removal_sizes": result["removal_sizes"]}
    for at_most in (0.05, 0.2, 0.5):
        few, many = dl.removable(five, at_most), dl.removable(result, at_most)
        assert few.low <= many.n <= few.high and many.low <= few.n <= many.high
