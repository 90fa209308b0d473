"""What crosses the socket of NDIF's sandbox is bounded."""

import pytest

from tests.remote import traffic
from tests.remote.loopback.fixture import TOY

FIRST = {"layer_effects, future": 217e6}  # bytes, at first
COUNTED = {"residual_erasure": 15.6e6, "increments": 30e6}  # as docs/speed.md has them
L, D, TOKENS = 8, 128, 415  # of toy-8l; and of the prompts


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["relative_contribution", *FIRST, *COUNTED])
def test_little_crosses(probe, loopback):
    llm = loopback.model(TOY)
    found = traffic.crossed(loopback, llm, traffic.calls(llm)[probe])
    to_runner, from_runner = found["to_runner"], found["from_runner"]
    if probe in FIRST:
        assert to_runner + from_runner <= FIRST[probe] / 3
    elif probe in COUNTED:
        assert 0.75 < (to_runner + from_runner) / COUNTED[probe] < 1.25
    else:
        assert max(to_runner, from_runner) <= 3 * (L + 1) * TOKENS * D * 2
