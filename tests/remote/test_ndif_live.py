"""A few tokens through the real NDIF, for who has a key: NDIF_LIVE=1 NDIF_API_KEY=… HF_HUB_OFFLINE=0 pytest FILE."""

import os

import pytest
import torch

import depth_lib as dl
from tests.calls import EVERY, FIVE

MODEL = os.environ.get("NDIF_MODEL", "meta-llama/Llama-3.1-8B")


@pytest.fixture
def hurried():
    """No key and no pauses of the loopback server's."""


@pytest.fixture(scope="module")
def llm():
    if not os.environ.get("NDIF_LIVE") or not os.environ.get("NDIF_API_KEY") or os.environ["HF_HUB_OFFLINE"] == "1":
        pytest.skip("needs NDIF_LIVE=1, NDIF_API_KEY from login.ndif.us, and HF_HUB_OFFLINE=0")
    return dl.load_model(MODEL, remote=True)


@pytest.mark.parametrize("probe", FIVE)
def test_the_models_own_numbers_come_back(llm, probe):
    tensors = [x for x in EVERY[probe](llm, remote=True).values() if isinstance(x, torch.Tensor)]
    assert all(x.isfinite().all() for x in tensors)
    assert any(llm.config.num_hidden_layers in x.shape and x.any() for x in tensors)
