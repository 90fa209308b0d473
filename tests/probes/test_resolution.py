"""In half precision every probe that compares says what rounding alone does, and is right to within that."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.examples import Example
from depth_lib.data.tokens import tokenize
from tests import oracles as oracle
from tests.families import build
from tests.oracles.streams import in_float64
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, loaded

OTHERS = ["qwen3", "mixtral_dense", "olmo2", "gpt2", "cohere", "granite"]
FAMILIES = ["llama", "gemma2", "gpt_neox", "bloom", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """A model in bfloat16, and in float64 with the same weights."""
    model = build(request.param, torch.bfloat16)
    return loaded(model, tmp_path_factory.mktemp(request.param)), in_float64(model)


def within(result, key, truth):
    resolution = result[f"{key}_resolution"]
    assert ((result[key] - truth).abs() <= resolution + 1e-6).all(), key
    assert resolution.max() < 20 * torch.finfo(torch.bfloat16).eps, "as large as anything"


@pytest.mark.parametrize("part", ["layer", "attention", "mlp"])
def test_effects_in_bfloat16_are_those_of_float64_within_their_resolution(pair, part):
    llm, model = pair
    ids = [torch.tensor(x) for x in tokenize(llm, [SIXTY])]
    for mode in ("future", "all"):
        truth = oracle.layer_effects(model, ids, mode, part=part)
        result = dl.layer_effects(llm, [SIXTY], mode=mode, part=part)
        for key in (f"max_{mode}_layer", f"max_{mode}_out"):
            within(result, key, truth[key])


def test_local_effects_and_erasure_in_bfloat16_are_those_of_float64_within_their_resolution(pair):
    llm, model = pair
    ids = [torch.tensor(x) for x in tokenize(llm, [SIXTY])]
    key = "max_future_local"
    within(dl.local_effects(llm, [SIXTY]), key, oracle.local_effects(model, ids, "future")[key])
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    truth = oracle.residual_erasure(model, torch.tensor(x), span, ids)["erasure_effect"]
    within(dl.residual_erasure(llm, QUESTION, ANSWER, [SIXTY]), "erasure_effect", truth)
    result = dl.future_erasure(llm, QUESTION, ANSWER, [SIXTY])
    for key, truth in oracle.future_erasure(model, torch.tensor(x), ids).items():
        within(result, key, truth)


def test_float32_has_no_resolution_beside_its_results_unless_products_are_in_tf32(tmp_path):
    llm = loaded(build("llama"), tmp_path)
    examples = [Example(1, "5 + 7 = ", "12")]
    for result in (dl.layer_effects(llm, [SIXTY]), dl.local_effects(llm, [SIXTY])):
        assert not [key for key in result if key.endswith("resolution")]
    try:
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU
        assert dl.layer_effects(llm, [SIXTY]).keys() >= {"max_future_layer_resolution", "max_future_out_resolution"}
    finally:
        torch.set_float32_matmul_precision("highest")
    half = loaded(build("llama", torch.bfloat16), tmp_path)
    extra = dl.depth_by_difficulty(half, examples).keys() - dl.depth_by_difficulty(llm, examples).keys()
    assert extra == {"layer_effect_resolution", "output_effect_resolution"}
