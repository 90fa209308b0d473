"""What crosses the socket of NDIF's sandbox is bounded."""

import array
import fcntl
import socket
import termios

import pytest
import torch
from ndif.services.ray.sandbox import host, protocol

from tests.remote import traffic
from tests.remote.loopback.fixture import TOY

FIRST = {"layer_effects, future": 217e6}  # bytes, at first
COUNTED = {"residual_erasure": 15.6e6, "increments": 30e6}  # as docs/remote.md has them
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


def test_ranks_of_tensor_parallelism_send_a_value_once_and_are_each_sent_it():
    """On NDIF's own connections: of a model's ranks, and of the runner that they share."""
    pairs = [socket.socketpair() for _ in range(3)]
    ranks = [kind(pair[0]) for kind, pair in zip([host.Connection, *[host.FollowerConnection] * 2], pairs, strict=True)]
    runner = protocol.Fanout([protocol.Channel(pair[1]) for pair in pairs])
    value = torch.zeros(10_000)
    for rank in ranks:
        rank.send(("value", value))
    to_runner = sum(unread(pair[1]) for pair in pairs)
    runner.recv()
    runner.send(["value", value])
    from_runner = sum(unread(pair[0]) for pair in pairs)
    assert value.nbytes < to_runner < 1.1 * from_runner / 3


def unread(end):
    """Bytes that wait in a socket."""
    size = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, size)
    return size[0]
