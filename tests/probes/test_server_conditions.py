"""The conditions under which a server runs requests change no number: its default dtype, and its autocast."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRotaryEmbedding

import depth_lib as dl
from depth_lib.data.examples import Example
from tests.families import build
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, loaded

TEXTS = [SIXTY, "abcdefghijklmnop"]
EFFECTS = [("future", "layer"), ("all", "attention"), ("remove", "mlp")]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return loaded(build("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return loaded(build("llama", torch.bfloat16), tmp_path_factory.mktemp("half"))


def measure(llm):
    """Every number of every public probe, in each mode and part."""
    results = {
        "contribution": dl.relative_contribution(llm, TEXTS),
        "lens": dl.logit_lens(llm, TEXTS),
        "erasure": dl.residual_erasure(llm, QUESTION, ANSWER, TEXTS),
        "future erasure": dl.future_erasure(llm, QUESTION, ANSWER, TEXTS),
        "difficulty": dl.depth_by_difficulty(llm, [Example(1, "5 + 7 = ", "12"), Example(2, QUESTION, ANSWER)]),
    }
    for mode, part in EFFECTS:
        results[f"{mode}, {part}"] = dl.layer_effects(llm, TEXTS, mode=mode, part=part)
    for mode in ("future", "all"):
        results[f"local, {mode}"] = dl.local_effects(llm, TEXTS, mode=mode)
    for at in ("block", "attention", "mlp"):
        results[f"gradients, {at}"] = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature=1.0, at=at)
    results["riemann"] = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature="riemann")
    values = {(name, key): value for name, result in results.items() for key, value in result.items()}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def measured(request, llama, half):
    llm = {"float32": llama, "bfloat16": half}[request.param]
    return llm, measure(llm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_no_bit(dtype, measured):
    llm, truth = measured
    torch.set_default_dtype(dtype)
    try:
        results = measure(llm)
    finally:
        torch.set_default_dtype(torch.float32)
    for name, value in truth.items():
        assert value.dtype == results[name].dtype == torch.float32, name
        assert torch.equal(results[name], value), name


@pytest.fixture
def shielded(tmp_path, monkeypatch):
    """A model whose own modules compute as ever under autocast, so that only the probes' arithmetic could change."""
    for module in (LlamaAttention, LlamaMLP, LlamaRotaryEmbedding, torch.nn.Linear):
        monkeypatch.setattr(module, "forward", torch.autocast("cpu", enabled=False)(module.forward))
    return loaded(build("llama"), tmp_path)


@pytest.mark.filterwarnings("ignore:CPU Autocast")
def test_autocast_does_not_reach_the_arithmetic_of_the_probes(shielded):
    truth = measure(shielded)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = measure(shielded)
    for name, value in truth.items():
        if name[0].startswith(("gradients", "riemann")):
            continue  # the backward pass is the model's, and autocast rounds it
        assert (results[name] - value).abs().max() <= 1e-6 * value.abs().max().clamp_min(1), name
