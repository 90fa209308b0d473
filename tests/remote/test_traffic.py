"""What crosses the socket of NDIF's sandbox is bounded, and what is said of it before a job is sent is near that."""

from pathlib import Path

import pytest

from depth_lib import embedded, session
from depth_lib.data.tokens import skips_of, tokenize
from depth_lib.models.families import describe
from depth_lib.remote import crossing
from tests.calls import EVERY
from tests.remote import traffic
from tests.remote.conditions import differences
from tests.remote.loopback.fixture import Loopback

FIRST = {"layer_effects, future": 217e6, "layer_effects, all": 70e6, "local_effects, future": 178e6}  # bytes, at first
L, D, TOKENS = 8, 128, 415  # of toy-8l; and of the prompts
MESSAGE = 2000  # bytes of one beside its tensor


@pytest.fixture(scope="module")
def toy():
    return Loopback({traffic.NAME: Path(embedded.__file__).parent / "toy-8l"})


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["relative_contribution", "logit_lens", *FIRST])
def test_little_crosses(probe, toy):
    llm = toy.model(traffic.NAME)
    found = traffic.crossed(toy, llm, traffic.calls(llm)[probe])
    if probe in FIRST:
        assert found["to_runner"] + found["from_runner"] <= FIRST[probe] / 3
    else:  # beside what torch.save adds to each tensor, which is little in models that are larger
        most = 3 * (L + 1) * TOKENS * D * 2 + MESSAGE * found["messages"] / 2
        assert max(found["to_runner"], found["from_runner"]) <= most


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["relative_contribution", "logit_lens", *FIRST])
def test_the_computed_bytes_are_near_those_that_are_counted(probe, toy):
    llm = toy.model(traffic.NAME)
    found, name, _, mode = traffic.crossed(toy, llm, traffic.calls(llm)[probe]), *probe.partition(", ")
    prompts = traffic.prompts_of(llm)
    work = skips_of(llm, prompts, mode, (mode,)) if mode else None
    arguments = {"arch": describe(llm), "prompts": tokenize(llm, prompts), "work": work}
    n_bytes, _ = crossing.crossing(name, arguments, llm.config.vocab_size)
    assert 0.75 < n_bytes / (found["to_runner"] + found["from_runner"]) < 1.25


def test_a_job_that_would_take_hours_is_named_before_it_is_sent(llm, loopback, capsys, monkeypatch):
    EVERY["logit_lens"](llm, remote=loopback.host)
    assert "GB cross the socket" not in capsys.readouterr().err
    monkeypatch.setattr(session, "TOO_MANY", 0)
    EVERY["relative_contribution"](llm, remote=loopback.host)
    assert "relative_contribution: about 0 GB cross the socket" in capsys.readouterr().err
