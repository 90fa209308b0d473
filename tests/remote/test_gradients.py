"""Gradients on a server whose sandbox lets none out: increments in their place, and one line where gradients are asked
for."""

import pytest

import depth_lib as dl
from depth_lib.remote import server
from depth_lib.remote.errors import NotReady
from tests.calls import SUM
from tests.remote.conditions import differences


@pytest.mark.slow
def test_gradients_asked_for_in_the_sandbox_are_tried_and_said_to_be_impossible_in_one_line(llm, loopback):
    with loopback.faults(sandbox=True) as submitted:
        with pytest.raises(NotReady, match="no gradient leaves; leave out method, or") as said:
            dl.integrated_gradients(llm, *SUM, method="gradients", remote=loopback.host)
        assert submitted() == 1
    assert "\n" not in str(said.value)


def test_gradients_asked_for_are_had_where_no_key_has_a_tag(llm, here, loopback):
    """As on a lab's own server, whose jobs run beside the weights."""
    with loopback.faults(identity={"email": "a@b.c", "tags": []}):
        found = dl.integrated_gradients(llm, *SUM, method="gradients", remote=loopback.host)
    assert not differences(found, dl.integrated_gradients(here, *SUM, method="gradients"))


TOLD = [({"tags": ["trusted"]}, "gradients")]
TOLD += [(said, "increments") for said in ({"tags": []}, {"tags": None}, {"tags": 5}, None, [], 7)]


@pytest.mark.parametrize("identity, done", TOLD, ids=str)
def test_unless_it_is_asked_for_a_key_that_is_not_trusted_gets_increments(identity, done, loopback):
    with loopback.faults(identity=identity):
        assert server.method_there(loopback.host, None) == done
        for asked in ("gradients", "increments"):
            assert server.method_there(loopback.host, asked) == asked
    assert server.method_there("http://127.0.0.1:1", None) == "increments"
    assert server.method_there(False, None) == server.method_there("local", None) == "gradients"


def test_left_end_steps_need_gradients(llm):
    with pytest.raises(ValueError, match="left-endpoint steps need gradients"):
        dl.integrated_gradients(llm, *SUM, quadrature="riemann", method="increments")
