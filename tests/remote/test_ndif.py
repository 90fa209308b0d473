"""Every probe on NDIF's own code, in process and in its sandbox: the numbers of the same model here, bit for bit."""

import functools
import re

import pytest
import torch

from depth_lib import remote, session
from depth_lib.models.families import known
from tests.calls import EVERY, FIVE, PAIRWISE
from tests.remote.conditions import differences
from tests.remote.loopback import MISSING

if MISSING:
    pytest.skip(f"the remote tests run on NDIF's own code, without {MISSING}: make ndif", allow_module_level=True)

QUICK = {("gradients", False), ("layer_effects, future, layer", False)}  # probe, whether in the sandbox
QUICK |= {(probe, True) for probe in (*FIVE, "increments", "layer_effects, all, attention", "future_erasure")}
QUICK |= {(probe, True) for probe in ("local_effects, all", "depth_by_difficulty", "block_removal")}


def both_ways(probes, quick=()):
    """The probes in process and, those that need no gradients, in the sandbox; slow but for the quick ones."""
    names = {True: "in the sandbox", False: "in process"}
    ways = [(probe, sandbox) for probe in probes for sandbox in names if not (sandbox and "gradients" in probe)]
    runs = [
        pytest.param(*way, id=f"{way[0]}, {names[way[1]]}", marks=[] if way in quick else pytest.mark.slow)
        for way in ways
    ]
    return pytest.mark.parametrize("probe, sandbox", runs)


@both_ways(EVERY, quick=QUICK)
def test_every_probe_gives_the_local_numbers(probe, sandbox, loopback):
    assert not different(probe, loopback, "loopback/llama", sandbox)


@both_ways(PAIRWISE)
@pytest.mark.parametrize("name", ["loopback/gpt2", "loopback/hybrid"])
def test_other_families_give_the_local_numbers(name, probe, sandbox, loopback):
    assert not different(probe, loopback, name, sandbox)


@both_ways((*FIVE, "increments"))
def test_weights_in_float32_give_the_local_numbers(probe, sandbox, loopback):
    assert not different(probe, loopback, "loopback/llama", sandbox, dtype="float32")


def different(probe, loopback, name, sandbox, dtype="bfloat16"):
    with loopback.faults(sandbox=sandbox, dtype=dtype):
        result = EVERY[probe](there(loopback, name), remote=loopback.host)
    return differences(result, EVERY[probe](loopback.here(name, dtype)))


@functools.cache
def there(loopback, name):
    return loopback.model(name)


@pytest.fixture
def checked(llm, monkeypatch):
    """The client's model, whose check does not travel with a job."""
    monkeypatch.setattr(known(llm), "checked", {"measured": "before"})
    return llm


def test_what_crosses_the_socket_of_the_sandbox_is_counted(checked, loopback):
    """A read crosses to the code, and back, as it may have been edited; the last before a stop does not go back."""
    h = 100 * checked.config.hidden_size * 2  # bytes, in bfloat16
    assert not any(crossed(loopback, checked, 100, sandbox=False).values())
    few, many = [crossed(loopback, checked, n_tokens, sandbox=True) for n_tokens in (100, 200)]
    more = {key: (many[key] - few[key]) / h for key in few}
    assert (more["to_runner"], more["from_runner"], more["largest"]) == pytest.approx((2, 1, 1), abs=0.15)
    assert few["messages"] == many["messages"] > 4


def crossed(loopback, llm, n_tokens, **where):
    with loopback.faults(**where):
        session.run(_states, llm, [[5] * n_tokens], remote=loopback.host)
    return loopback.last_crossing()


def _states(llm, ids):
    with torch.no_grad():
        with llm.trace({"input_ids": torch.tensor(ids)}) as tracer:
            first = llm.model.layers[1].output
            last = llm.model.layers[2].output
            tracer.stop()
        return {"change": (last.float() - first.float()).norm()}


@pytest.mark.parametrize("sandbox", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_job_that_takes_longer_than_the_server_allows_is_ended_and_the_next_one_runs(llm, here, loopback, sandbox):
    says = r"exceeded the execution timeout of 2s\.; make smaller jobs"
    with loopback.faults(sandbox=sandbox, timeout=2), pytest.raises(remote.JobFailed, match=says):
        session.run(_endless, llm, remote=loopback.host)
    assert not different("logit_lens", loopback, "loopback/llama", sandbox)


def _endless(llm):
    while True:
        len(llm.config.name_or_path)


MUTATIONS = {
    # what is put back, and what the server says of it
    "a stop before another trace": (
        r"use_cache=False\):(\n(?: {8}.*\n)*? +)finish\(.*\)",
        r"use_cache=False) as tracer:\1tracer.stop()",
        "Broken pipe|unpack|empty|timeout",
    ),
    "a mask in llm.dtype": (r"(packed_inputs\(.*), h\[0\]\.dtype\)", r"\1, llm.dtype)", "dtype"),
}


@pytest.mark.parametrize("cause", MUTATIONS)
def test_what_cannot_run_in_the_sandbox_is_noticed(cause, llm, loopback, mutate):
    pattern, replacement, says = MUTATIONS[cause]
    mutate(pattern, replacement)
    with loopback.faults(sandbox=True, timeout=20), pytest.raises(remote.JobFailed) as caught:
        EVERY["layer_effects, future, layer"](llm, remote=loopback.host)
    assert re.search(says, caught.value.server_text)


@pytest.mark.parametrize("device", ["h", pytest.param("llm", marks=pytest.mark.slow)])
def test_a_budget_from_the_device_of_a_model_without_weights_is_noticed(device, checked, loopback, mutate):
    """Passes of a few tokens take more messages than one pass does; what is on no CPU gets the budget of a GPU."""
    probe = EVERY["layer_effects, all, layer"]
    with loopback.faults(sandbox=True):
        probe(checked, remote=loopback.host)
        one_pass = loopback.last_crossing()["messages"]
        mutate(r'if h(\.device\.type != "cpu":\n.*\n +forward = ).*', rf"if {device}\g<1>200")
        probe(checked, remote=loopback.host)
    assert (loopback.last_crossing()["messages"] > one_pass) == (device == "h")


@pytest.mark.parametrize("read, noticed", [pytest.param("h", False, marks=pytest.mark.slow), ("llm", True)])
def test_a_decision_from_the_dtype_of_a_config_is_noticed(read, noticed, llm, loopback, mutate):
    mutate(r"coarse = h(\.dtype\.itemsize < 4)", rf"coarse = {read}\g<1>")
    with loopback.faults(sandbox=True, dtype="float32"):
        result = EVERY["layer_effects, all, layer"](llm, remote=loopback.host)
    assert any("rounding_floor" in key for key in result) == noticed
