"""The server under NDIF's own conditions: the same numbers, bit for bit, and a test that each condition is one."""

import pytest
import torch

from depth_lib import remote
from tests.remote.conditions import EVERY, differences, mutate  # noqa: F401 (a fixture)
from tests.remote.loopback.client import PROBES
from tests.remote.loopback.fixture import hurried, loopback, same  # noqa: F401 (fixtures)

MODELS = ("loopback/llama", "loopback/gpt2", "loopback/falcon")
MATRIX = [EVERY[name] for name in EVERY]


@pytest.fixture(scope="module", params=MODELS)
def both(request, loopback):  # noqa: F811
    """(the client's model without weights, the same model here in the server's dtype)."""
    return loopback.model(request.param), loopback.here(request.param)


@pytest.fixture(scope="module")
def llama(loopback):  # noqa: F811
    return loopback.model(MODELS[0]), loopback.here(MODELS[0])


@pytest.mark.parametrize("probe", EVERY)
def test_every_probe_gives_the_local_numbers_bit_for_bit(both, probe, loopback):  # noqa: F811
    there, here = both
    printed = len(loopback.asked()["printed"])
    assert not differences(EVERY[probe](there, remote=loopback.host), EVERY[probe](here))
    assert not loopback.asked()["printed"][printed:], "an attribute of a module was copied on the server"


@pytest.mark.parametrize("probe", PROBES)
def test_a_friendly_server_gives_the_numbers_of_float32(probe, loopback):  # noqa: F811
    import depth_lib as dl

    here = dl.load_model(loopback.models[MODELS[0]])
    with loopback.faults(friendly=True):
        same(PROBES[probe](loopback.model(MODELS[0]), remote=loopback.host), PROBES[probe](here))


@pytest.mark.parametrize("probe", EVERY)
def test_autocast_changes_nothing_that_a_probe_computes_of_given_residuals(llama, probe, loopback):  # noqa: F811
    """The model's own modules compute as ever there, so that all else must be within 1e-6 of the local numbers."""
    there, here = llama
    with loopback.faults(shielded=True):
        result = EVERY[probe](there, remote=loopback.host)
    for key, value in EVERY[probe](here).items():
        if isinstance(value, torch.Tensor):
            assert result[key].dtype == torch.float32
            assert (result[key] - value).abs().max() <= 1e-6 * value.abs().max(), key


@pytest.mark.parametrize("probe", EVERY)
def test_a_server_with_autocast_runs_every_probe(llama, probe, loopback):  # noqa: F811
    with loopback.faults(autocast=True):
        result = EVERY[probe](llama[0], remote=loopback.host)
    tensors = [value for value in result.values() if isinstance(value, torch.Tensor)]
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in tensors)


@pytest.mark.parametrize("probe", ["relative_contribution", "logit_lens", "gradients", "layer_effects, future, layer"])
def test_a_tensor_without_a_dtype_is_noticed(llama, loopback, mutate, probe):  # noqa: F811
    there, here = llama
    truth = EVERY[probe](here)
    mutate(r", dtype=torch\.float32", "")
    try:
        assert differences(EVERY[probe](there, remote=loopback.host), truth)
    except remote.JobFailed as error:
        assert "dtype" in str(error)


def test_reading_a_weight_is_noticed(llama, loopback, mutate):  # noqa: F811
    printed = len(loopback.asked()["printed"])
    mutate(r"llm\.config\.vocab_size", "llm.unembed.weight.shape[0]")
    EVERY["logit_lens"](llama[0], remote=loopback.host)
    assert "attribute `weight` of Linear" in loopback.asked()["printed"][printed]


@pytest.mark.parametrize(
    "statement, sentence",
    [
        ("llm.unembed.to(torch.float32)", "Attribute `to` cannot be accessed"),
        ("open('/etc/hostname')", "name 'open' is not defined"),
        ("__import__('functools')", "Module functools is not whitelisted"),
    ],
)
def test_what_the_server_refuses_is_noticed(llama, loopback, mutate, statement, sentence):  # noqa: F811
    mutate(r"( +)with torch\.no_grad\(\):\n", rf"\1{statement}\n\g<0>")
    with pytest.raises(remote.JobFailed, match=sentence):
        EVERY["logit_lens"](llama[0], remote=loopback.host)
