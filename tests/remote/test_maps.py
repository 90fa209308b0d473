"""Maps between a model here and one on the loopback server."""

import pytest
import torch

import depth_lib as dl
from depth_lib.model_maps import maps
from tests.model_maps.models import words

TEXTS = words(30)
pytestmark = pytest.mark.slow  # tests/remote proves each part of a remote call in less time


@pytest.mark.parametrize("what", ["residual", "contribution"])
def test_a_source_or_target_on_a_server_gives_what_it_gives_here(here, llm, loopback, what):
    truth = dl.linear_maps(here, here, TEXTS, what)
    assert truth["relative"].diagonal().max() < 1e-4
    for pair in ((llm, here), (here, llm)):
        found = dl.linear_maps(*pair, TEXTS, what, remote=loopback.host)
        assert found.keys() == truth.keys()
        assert all(torch.equal(found[key], truth[key]) for key in truth)
    assert all(weight.is_meta for weight in llm.parameters())


def test_jobs_are_as_many_as_their_bytes_ask_for(here, llm, loopback, monkeypatch):
    of_token = llm.config.hidden_size * llm.dtype.itemsize * (llm.config.num_hidden_layers + 1)
    monkeypatch.setattr(maps, "JOB_BYTES", 700 * of_token)
    truth = dl.linear_maps(here, here, TEXTS)
    with loopback.faults() as n_jobs:
        result = dl.linear_maps(llm, here, TEXTS, remote=loopback.host)
        assert 2 <= n_jobs() <= 4  # 1260 tokens
    assert all(torch.equal(result[key], truth[key]) for key in truth)


def test_two_models_on_servers_are_refused_and_so_is_one_without_remote(here, llm):
    with pytest.raises(maps.CannotRead, match="both models are on a server; load one of them here.*remote=False"):
        dl.linear_maps(llm, llm, TEXTS)
    with pytest.raises(maps.CannotRead, match="are on a server; give remote=True or its host"):
        dl.linear_maps(llm, here, TEXTS)
