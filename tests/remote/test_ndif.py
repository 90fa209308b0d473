"""Every probe on NDIF's own code, in process and in its sandbox: the numbers of the same model here, bit for bit."""

import functools

import pytest

from depth_lib import remote, session
from tests.calls import EVERY, FIVE, PAIRWISE
from tests.remote.conditions import differences
from tests.remote.loopback import MISSING

if MISSING:
    pytest.skip(f"the remote tests run on NDIF's own code, without {MISSING}: make ndif", allow_module_level=True)

WORK = {  # model and dtype of its weights: probes
    ("loopback/llama", "bfloat16"): EVERY,
    ("loopback/llama", "float32"): (*FIVE, "increments"),
    ("loopback/gpt2", "bfloat16"): PAIRWISE,
    ("loopback/hybrid", "bfloat16"): PAIRWISE,
}
QUICK = {"gradients, in process", "layer_effects, future, layer, in process"}
QUICK |= {f"{probe}, in the sandbox" for probe in (*FIVE, "increments", "local_effects, all", "depth_by_difficulty")}


def runs():
    """Each probe in process and, unless it needs gradients, in the sandbox."""
    for (name, dtype), probes in WORK.items():
        for probe in probes:
            for sandbox in (False, True) if "gradients" not in probe else (False,):
                run = f"{probe}, {'in the sandbox' if sandbox else 'in process'}"
                quick = run in QUICK and (name, dtype) == ("loopback/llama", "bfloat16")
                marks = [] if quick else pytest.mark.slow
                yield pytest.param(name, dtype, probe, sandbox, id=f"{run}, {name}, {dtype}", marks=marks)


@pytest.mark.parametrize("name, dtype, probe, sandbox", list(runs()))
def test_every_probe_gives_the_local_numbers(name, dtype, probe, sandbox, loopback):
    with loopback.faults(sandbox=sandbox, dtype=dtype):
        result = EVERY[probe](there(loopback, name), remote=loopback.host)
    assert not differences(result, EVERY[probe](loopback.here(name, dtype)))


@functools.cache
def there(loopback, name):
    return loopback.model(name)


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", [False, True])
def test_a_job_that_takes_longer_than_the_server_allows_is_ended_and_the_next_one_runs(llm, truth, loopback, sandbox):
    says = r"exceeded the execution timeout of 2s\.; make smaller jobs"
    with loopback.faults(sandbox=sandbox, timeout=2), pytest.raises(remote.JobFailed, match=says):
        session.run(_endless, llm, remote=loopback.host)
    assert not differences(EVERY["logit_lens"](llm, remote=loopback.host), truth)


def _endless(llm):
    while True:
        len(llm.config.name_or_path)
