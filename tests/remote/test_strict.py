"""The server under NDIF's own conditions: the same numbers, bit for bit, and a test that each condition is one."""

from types import FunctionType

import pytest
import torch

import depth_lib as dl
from depth_lib import api, remote
from depth_lib.remote.travel import pickled
from tests.calls import EVERY, FIVE, PAIRWISE
from tests.remote.conditions import differences, others_slow
from tests.remote.loopback.fixture import same

# what one of several processes that run a request together may find otherwise than the others
OF_ONE_PROCESS = {"mem_get_info", "memory_reserved", "memory_allocated", "get_num_threads", "cpu_count"}


@pytest.mark.parametrize("probe", others_slow(PAIRWISE))
def test_every_probe_gives_the_local_numbers_bit_for_bit(probe, loopback, llm, here):
    same_numbers(probe, loopback, llm, here)


@pytest.mark.slow
@pytest.mark.parametrize("probe", FIVE)
@pytest.mark.parametrize("name", ["loopback/gpt2", "loopback/falcon"])
def test_other_families_give_the_local_numbers_bit_for_bit(name, probe, loopback):
    same_numbers(probe, loopback, loopback.model(name), loopback.here(name))


def same_numbers(probe, loopback, there, here):
    printed = len(loopback.asked()["printed"])
    assert not differences(EVERY[probe](there, remote=loopback.host), EVERY[probe](here))
    assert not loopback.asked()["printed"][printed:], "an attribute of a module was copied on the server"


@pytest.mark.slow
@pytest.mark.parametrize("probe", FIVE)
def test_a_friendly_server_gives_the_numbers_of_float32(llm, probe, loopback):
    with loopback.faults(friendly=True):
        same(EVERY[probe](llm, remote=loopback.host), EVERY[probe](dl.load_model(loopback.models["loopback/llama"])))


@pytest.mark.parametrize("probe", others_slow(("relative_contribution", "layer_effects, future, layer", "gradients")))
def test_autocast_changes_nothing_that_a_probe_computes_of_given_residuals(llm, here, probe, loopback):
    """Shielded, the model's own modules compute as ever, so that all else must be within 1e-6 of the local numbers."""
    with loopback.faults(autocast=True):
        whole = EVERY[probe](llm, remote=loopback.host)
    with loopback.faults(shielded=True):
        shielded = EVERY[probe](llm, remote=loopback.host)
    for key, value in EVERY[probe](here).items():
        if isinstance(value, torch.Tensor):
            assert whole[key].dtype == shielded[key].dtype == torch.float32 and whole[key].isfinite().all()
            assert close(shielded[key], value), key


def close(tensor, truth):
    return (tensor - truth).abs().max() <= 1e-6 * truth.abs().max()


@pytest.mark.parametrize("probe", ["relative_contribution", "layer_effects, future, layer"])
def test_a_tensor_without_a_dtype_is_noticed(llm, here, loopback, mutate, probe):
    truth = EVERY[probe](here)
    mutate(r", dtype=torch\.float32", "")
    try:
        assert differences(EVERY[probe](llm, remote=loopback.host), truth)
    except remote.JobFailed as error:
        assert "dtype" in str(error)


def test_reading_a_weight_is_noticed(llm, loopback, mutate):
    printed = len(loopback.asked()["printed"])
    mutate(r"llm\.config\.get_text_config\(\)\.vocab_size", "llm.unembed.weight.shape[0]")
    EVERY["logit_lens"](llm, remote=loopback.host)
    assert "attribute `weight` of Linear" in loopback.asked()["printed"][printed]


BEFORE = r"( +)with torch\.no_grad\(\):\n"  # where the mutations below put a statement


@pytest.mark.parametrize(
    "statement, sentence",
    [
        ("llm.unembed.to(torch.float32)", "Attribute `to` cannot be accessed"),
        ("open('/etc/hostname')", "name 'open' is not defined"),
        ("__import__('depth_lib')", "Module depth_lib is not whitelisted"),
    ],
)
def test_what_the_server_refuses_is_noticed(llm, loopback, mutate, statement, sentence):
    mutate(BEFORE, rf"\1{statement}\n\g<0>")
    with pytest.raises(remote.JobFailed, match=sentence):
        EVERY["logit_lens"](llm, remote=loopback.host)


@pytest.mark.parametrize("module", ["functools", "time"])
def test_a_forbidden_import_and_a_clock_are_refused_before_anything_is_sent(llm, loopback, mutate, module):
    mutate(BEFORE, rf"\1import {module}\n\g<0>")
    with loopback.faults() as submitted:
        with pytest.raises(remote.NotReady, match=f"uses the module {module}, which has no place on a server"):
            EVERY["logit_lens"](llm, remote=loopback.host)
        assert submitted() == 0


def of_one_process():
    """Which of these names the code that travels uses."""
    public = [f for f in vars(api).values() if isinstance(f, FunctionType)]
    probes = [f for f in public if ".probes." in f".{f.__module__}" or "mutated" in f.__module__]
    _, reached = pickled(probes)
    return {name for function in reached for name in function.__code__.co_names} & OF_ONE_PROCESS


def test_nothing_that_travels_depends_on_one_process(mutate):
    assert not of_one_process()
    mutate(BEFORE, r"\1torch.cuda.mem_get_info()\n\1torch.get_num_threads()\n\g<0>")
    assert of_one_process() == {"mem_get_info", "get_num_threads"}


NEED_EXACT = {"relative_contribution": "att_cos", "gradients": "igrads"}


@pytest.mark.parametrize("probe", NEED_EXACT)
def test_products_that_autocast_would_round_are_noticed(llm, here, loopback, mutate, probe):
    """Inner products and the quadrature are our own float32 products."""
    truth = EVERY[probe](here)
    mutate(r"enabled=False", "enabled=torch.is_autocast_enabled('cpu'), dtype=torch.bfloat16")
    with loopback.faults(shielded=True):
        result = EVERY[probe](llm, remote=loopback.host)
    changed = {key for key in truth if isinstance(truth[key], torch.Tensor) and not close(result[key], truth[key])}
    assert NEED_EXACT[probe] in changed, changed
