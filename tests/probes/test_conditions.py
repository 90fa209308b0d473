"""Every probe gives the same bits whatever surrounds the call: PyTorch's defaults and modes, and where weights lie."""

import contextlib
import functools
from unittest import mock

import accelerate
import pytest
import torch

import depth_lib as dl
from depth_lib import session
from depth_lib.models.families import known
from tests.calls import EVERY, FIVE
from tests.families import L, save_family
from tests.marks import slow
from tests.oracles.streams import PLACES
from tests.probes.device_tags import CPU, PretendDevices, device_of, place

FAMILIES = ("llama", "olmo2", "bloom", "opt_projected")
CALLS = EVERY | {"check_model": dl.check_model}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a family's tiny model."""
    return functools.cache(lambda family: save_family(family, tmp_path_factory.mktemp(family)))


@pytest.fixture(scope="module")
def truth(folder):
    """What a call returns for a family's model as it is loaded without further ado."""
    loaded = functools.cache(lambda family, dtype: dl.load_model(folder(family), dtype=dtype))
    return functools.cache(lambda family, call, dtype: CALLS[call](loaded(family, dtype)))


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def halves(model, near, far):
    """A device map: the embedding, the first half of the blocks and the unembedding on `near`, the rest on `far`."""
    path, _, _, ln_final = PLACES[model.config.model_type]
    owner, _, blocks = path.rpartition(".")
    places = {f"{owner}.{name}": near for name, _ in model.get_submodule(owner).named_children() if name != blocks}
    places |= {f"{path}.{l}": near if l < L // 2 else far for l in range(L)}
    return places | {ln_final: far, "lm_head": near}


def with_default(dtype):
    def condition(folder, call):
        with default_dtype(dtype):
            return call(dl.load_model(folder, dtype="float32"))

    return condition


def under_autocast(folder, call):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return call(dl.load_model(folder, dtype="float32"))


def under_a_servers_autocast(folder, call):
    """The model itself computes as it would without; a server of early 2026 has this and bfloat16 by default."""
    llm = dl.load_model(folder, dtype="bfloat16")
    for module in llm._module.modules():
        if not isinstance(module, (type(llm._module), torch.nn.ModuleList)):
            module.forward = torch.autocast("cpu", enabled=False)(module.forward)
    known(llm).checked = None
    there = torch.autocast("cpu", dtype=torch.bfloat16)(session._where_the_model_is)
    with default_dtype(torch.bfloat16), mock.patch.object(session, "_where_the_model_is", there):
        return call(llm)


def in_inference_mode(folder, call):
    with torch.inference_mode():
        return call(dl.load_model(folder))


def on_two_gpus(folder, call):
    llm = dl.load_model(folder)
    with PretendDevices():
        accelerate.dispatch_model(
            llm._module,
            halves(llm._module, "cuda:0", "cuda:1"),
            main_device="cuda:0",
            skip_keys=llm._module._skip_keys_device_placement,
        )
        assert {str(weight.device) for weight in llm._module.parameters()} == {"cuda:0", "cuda:1"}
        known(llm).checked = None
        found = call(llm)
        assert all(device_of(value) == CPU for value in found.values() if isinstance(value, torch.Tensor))
        return found


def without_float64(folder, call):
    llm = dl.load_model(folder)
    with PretendDevices():
        for tensor in (*llm._module.parameters(), *llm._module.buffers()):
            place(tensor, "mps")
        known(llm).checked = None
        return call(llm)


def on_disk(folder, call):
    device_map = halves(dl.load_model(folder)._module, "cpu", "disk")
    return call(dl.load_model(folder, device_map=device_map))


CONDITIONS = {
    "bfloat16 is the default": with_default(torch.bfloat16),
    "float64 is the default": with_default(torch.float64),
    "autocast": under_autocast,
    "a server's autocast": under_a_servers_autocast,
    "inference mode": in_inference_mode,
    "two GPUs": on_two_gpus,
    "no float64": without_float64,
    "blocks on disk": on_disk,
}
QUICK = {("llama", condition, FIVE[2]) for condition in CONDITIONS} | {("llama", "autocast", FIVE[4])}


def cases():
    for condition in CONDITIONS:
        for family in FAMILIES if condition == "two GPUs" else FAMILIES[:1]:
            for call in CALLS:
                if condition == "no float64" and call == "logit_lens, generated":
                    continue  # transformers' generate asks the pretended device for an event
                case = family, condition, call
                yield case if case in QUICK else slow(*case)


@pytest.mark.filterwarnings("ignore:the integrated gradients")
@pytest.mark.parametrize("family, condition, call", list(cases()))
def test_the_bits_are_the_same(family, condition, call, folder, truth):
    dtype = "bfloat16" if condition == "a server's autocast" else "float32"
    found, expected = CONDITIONS[condition](folder(family), CALLS[call]), truth(family, call, dtype)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key].nan_to_num(9), value.nan_to_num(9)), key
