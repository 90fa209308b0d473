"""Every probe on NDIF's own code, in process and in its sandbox: the numbers of the same model here, bit for bit."""

import functools

import pytest

from depth_lib import remote, session
from tests.calls import EVERY, FIVE, PAIRWISE
from tests.marks import slow
from tests.remote.conditions import differences
from tests.remote.loopback import MISSING

if MISSING:
    pytest.skip(f"the remote tests run on NDIF's own code, without {MISSING}: make ndif", allow_module_level=True)

WORK = {  # model, dtype of its weights and whether in the sandbox: probes, of which those with gradients run in process
    ("loopback/llama", "bfloat16", True): EVERY,
    ("loopback/llama", "bfloat16", False): FIVE[:-1],
    ("loopback/llama", "float32", True): (*FIVE, "increments"),
    ("loopback/gpt2", "bfloat16", False): PAIRWISE,
    ("loopback/hybrid", "bfloat16", True): PAIRWISE,
}
QUICK = ("gradients", "relative_contribution")


def runs():
    for place, probes in WORK.items():
        for probe in probes:
            quick = probe in QUICK and place == ("loopback/llama", "bfloat16", True)
            yield (*place, probe) if quick else slow(*place, probe)


@pytest.mark.parametrize("name, dtype, sandbox, probe", list(runs()))
def test_every_probe_gives_the_local_numbers(name, dtype, sandbox, probe, loopback):
    with loopback.faults(sandbox=sandbox and "gradients" not in probe, dtype=dtype):
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
