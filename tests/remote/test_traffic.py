"""What crosses the socket of NDIF's sandbox is bounded, and what is said of it before a job is sent is near that."""

import re

import pytest

from depth_lib import session
from depth_lib.remote.crossing import PER_SECOND, TOO_LONG, crossing, seconds
from tests.calls import EVERY
from tests.remote import traffic
from tests.remote.loopback.fixture import TOY

FIRST = {"layer_effects, future": 217e6, "layer_effects, all": 70e6, "local_effects, future": 178e6}  # bytes, at first
L, D, TOKENS = 8, 128, 415  # of toy-8l; and of the prompts


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["relative_contribution", "logit_lens", *FIRST, "residual_erasure", "increments"])
def test_little_crosses_and_nearly_what_was_computed(probe, loopback, monkeypatch):
    llm, computed = loopback.model(TOY), []
    monkeypatch.setattr(session, "crossing", lambda *job: computed.append(crossing(*job)) or computed[-1])
    found = traffic.crossed(loopback, llm, traffic.calls(llm)[probe])
    to_runner, from_runner = found["to_runner"], found["from_runner"]
    if probe in FIRST:
        assert to_runner + from_runner <= FIRST[probe] / 3
    elif probe in ("relative_contribution", "logit_lens"):
        assert max(to_runner, from_runner) <= 3 * (L + 1) * TOKENS * D * 2
    assert 0.75 < computed[-1][0] / (to_runner + from_runner) < 1.25


def test_a_job_that_would_take_hours_is_named_before_it_is_sent(llm, loopback, capsys, monkeypatch):
    EVERY["logit_lens"](llm, remote=loopback.host)
    assert "sandbox" not in capsys.readouterr().err
    monkeypatch.setattr(session, "TOO_LONG", 0)
    EVERY["relative_contribution"](llm, remote=loopback.host)
    says = r"relative_contribution: about 0.0 hours in NDIF's sandbox, .* if 0 GB cross .* which are guesses"
    assert re.search(says, capsys.readouterr().err)


def test_increments_of_a_model_of_70b_are_computed_longer_than_they_cross():
    arch = {"n_layers": 80, "width": 8192}
    job = {"arch": arch, "ids": range(159), "answer": range(156, 159), "layers": range(80), "steps": 16}
    n_bytes, n_tokens = crossing("integrated_gradients", job | {"method": "increments"}, 128_256)
    assert n_bytes / PER_SECOND < TOO_LONG < seconds(n_bytes, n_tokens, 856_000_000)
    assert crossing("integrated_gradients", job | {"method": "gradients"}, 128_256) == (0, 0)
