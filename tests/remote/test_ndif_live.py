"""A few tokens through the real NDIF, for who has a key: NDIF_LIVE=1 NDIF_API_KEY=… HF_HUB_OFFLINE=0 pytest FILE."""

import os

import pytest
import torch

import depth_lib as dl

MODEL = os.environ.get("NDIF_MODEL", "meta-llama/Llama-3.1-8B")
TEXTS = ["The capital of France is Paris, and that of Italy, as everybody knows, is Rome."]
SUM = ("5 + 7 = ", "12")
CALLS = {
    "relative_contribution": lambda llm: dl.relative_contribution(llm, TEXTS, remote=True),
    "layer_effects": lambda llm: dl.layer_effects(llm, TEXTS, remote=True),
    "logit_lens": lambda llm: dl.logit_lens(llm, TEXTS, remote=True),
    "residual_erasure": lambda llm: dl.residual_erasure(llm, *SUM, TEXTS, remote=True),
    "integrated_gradients": lambda llm: dl.integrated_gradients(llm, *SUM, remote=True),
}


@pytest.fixture(scope="module")
def llm():
    if not os.environ.get("NDIF_LIVE"):
        pytest.skip("asks the real NDIF only with NDIF_LIVE=1 (and NDIF_API_KEY)")
    if not os.environ.get("NDIF_API_KEY"):
        pytest.skip("NDIF_API_KEY is not set; get a key at https://login.ndif.us")
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        pytest.skip("HF_HUB_OFFLINE=1: the model's tokenizer comes from the Hub; run with HF_HUB_OFFLINE=0")
    return dl.load_model(MODEL, remote=True)


def test_the_identities_hold_on_the_servers_model(llm):
    checked = dl.check_model(llm, remote=True)
    assert checked["identity_1"] <= checked["tolerance"] and checked["identity_2"] <= checked["tolerance"]


@pytest.mark.parametrize("probe", CALLS)
def test_the_models_own_numbers_come_back(llm, probe):
    n_layers = llm.config.num_hidden_layers
    result = CALLS[probe](llm)
    for key, value in result.items():
        assert key == "tokens" or torch.isfinite(value).all(), key
    if probe == "relative_contribution":
        assert result["rc_layer"].shape == (n_layers,) and (result["rc_layer"] > 0).all()
    if probe == "layer_effects":
        effects = result["max_future_layer"]
        assert effects.shape == (n_layers, n_layers) and not effects.tril(-1).any() and effects.diagonal(1).all()
    if probe == "logit_lens":
        assert result["res_kl_divs"].shape == (n_layers,) and (result["res_kl_divs"] >= 0).all()
    if probe == "residual_erasure":
        assert result["erasure_effect"].shape == (n_layers + 1, len(result["tokens"]))
        assert result["erasure_effect"].max() > 0
    if probe == "integrated_gradients":
        assert result["igrads"].shape == (n_layers, len(result["tokens"])) and result["igrads"].any()


def test_a_server_side_error_comes_back_as_one(llm):
    from depth_lib import remote, session

    with pytest.raises(remote.JobFailed, match="division by zero"):
        session.run(_divide, llm, 0, remote=True)


def _divide(llm, number):
    return {"x": 1 / number}
