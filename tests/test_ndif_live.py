"""A few tokens through the real NDIF, for who has a key: NDIF_LIVE=1 NDIF_API_KEY=… HF_HUB_OFFLINE=0 pytest FILE."""

import os

import pytest
import torch

import depth_lib as dl

MODEL = os.environ.get("NDIF_MODEL", "meta-llama/Llama-3.1-8B")


@pytest.fixture(scope="module")
def llm():
    if not os.environ.get("NDIF_LIVE"):
        pytest.skip("asks the real NDIF only with NDIF_LIVE=1 (and NDIF_API_KEY)")
    if not os.environ.get("NDIF_API_KEY"):
        pytest.skip("NDIF_API_KEY is not set; get a key at https://login.ndif.us")
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        pytest.skip("HF_HUB_OFFLINE=1: the model's tokenizer comes from the Hub; run with HF_HUB_OFFLINE=0")
    return dl.load_model(MODEL, remote=True)


def test_the_models_own_numbers_come_back(llm):
    checked = dl.check_model(llm, remote=True)
    assert checked["identity_1"] <= checked["tolerance"]
    n_layers = llm.config.num_hidden_layers
    lens = dl.logit_lens(llm, ["The capital of France is Paris, and that of Italy is Rome."], remote=True)
    assert lens["res_kl_divs"].shape == (n_layers,) and torch.isfinite(lens["res_kl_divs"]).all()
    assert lens["res_kl_divs"][0] > lens["res_kl_divs"][-1]


def test_a_server_side_error_comes_back_as_one(llm):
    from depth_lib import remote, session

    with pytest.raises(remote.JobFailed, match="division by zero"):
        session.run(_divide, llm, 0, remote=True)


def _divide(llm, number):
    return {"x": 1 / number}
