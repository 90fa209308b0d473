"""What crosses the socket of NDIF's sandbox is bounded, and what is computed of it is near that."""

import array
import fcntl
import socket
import termios

import pytest
import torch
from ndif.services.ray.sandbox import host, protocol

from depth_lib import session
from depth_lib.probes.arch import Arch
from tests.remote import traffic
from tests.remote.crossing import PER_SECOND, crossing, seconds
from tests.remote.loopback.fixture import TOY

FIRST = {"layer_effects, future": 217e6, "layer_effects, all": 70e6, "local_effects, future": 178e6}  # bytes, at first
L, D, TOKENS = 8, 128, 415  # of toy-8l; and of the prompts


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["relative_contribution", "logit_lens", *FIRST, "residual_erasure", "increments"])
def test_little_crosses_and_nearly_what_was_computed(probe, loopback, monkeypatch):
    llm, computed = loopback.model(TOY), []
    send, vocabulary = session._send, llm.config.vocab_size

    def counted(llm, probe, arguments, job):
        computed.append(crossing(probe.__name__, arguments, vocabulary))
        send(llm, probe, arguments, job)

    monkeypatch.setattr(session, "_send", counted)
    found = traffic.crossed(loopback, llm, traffic.calls(llm)[probe])
    to_runner, from_runner = found["to_runner"], found["from_runner"]
    if probe in FIRST:
        assert to_runner + from_runner <= FIRST[probe] / 3
    elif probe in ("relative_contribution", "logit_lens"):
        assert max(to_runner, from_runner) <= 3 * (L + 1) * TOKENS * D * 2
    assert 0.75 < computed[-1][0] / (to_runner + from_runner) < 1.25


def test_ranks_of_tensor_parallelism_send_a_value_once_and_are_each_sent_it():
    """On NDIF's own connections: of a model's ranks, and of the runner that they share."""
    pairs, crossed = [socket.socketpair() for _ in range(3)], {"to_runner": 0, "from_runner": 0}
    ranks = [kind(pair[0]) for kind, pair in zip([host.Connection, *[host.FollowerConnection] * 2], pairs, strict=True)]
    runner = protocol.Fanout([protocol.Channel(pair[1]) for pair in pairs])
    value = torch.zeros(10_000)
    for rank in ranks:
        rank.send(("value", value))
    crossed["to_runner"] = sum(unread(pair[1]) for pair in pairs)
    runner.recv()
    runner.send(["value", value])
    crossed["from_runner"] = sum(unread(pair[0]) for pair in pairs)
    one = crossed["from_runner"] / 3
    assert crossed["to_runner"] < 1.1 * one and one > value.nbytes
    arch = Arch(n_layers=80, width=8192)
    of_ranks = [crossing("logit_lens", {"arch": arch, "prompts": [range(9)]}, 9, n)[0] for n in (1, 3)]
    assert of_ranks[1] == 2 * of_ranks[0]  # a half of it three times


def unread(end):
    """Bytes that wait in a socket."""
    size = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, size)
    return size[0]


def test_increments_of_a_model_of_70b_are_computed_longer_than_they_cross():
    arch = Arch(n_layers=80, width=8192)
    job = {"arch": arch, "ids": range(159), "answer": range(156, 159), "layers": range(80), "steps": 16}
    n_bytes, n_tokens = crossing("integrated_gradients", job | {"method": "increments"}, 128_256)
    assert n_bytes / PER_SECOND < 3600 < seconds(n_bytes, n_tokens, 856_000_000)
    assert crossing("integrated_gradients", job | {"method": "gradients"}, 128_256) == (0, 0)
