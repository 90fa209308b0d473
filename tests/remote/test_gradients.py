"""Gradients on a server whose sandbox lets none out: increments in their place, and one line where gradients are asked
for."""

import pytest

import depth_lib as dl
from depth_lib.remote import gradients
from depth_lib.remote.errors import NotReady
from tests.calls import SUM


@pytest.mark.parametrize("tags, jobs", [("known", 0), ("unknown", 1)])
def test_gradients_asked_for_in_the_sandbox_are_said_to_be_impossible_in_one_line(
    llm, loopback, monkeypatch, tags, jobs
):
    """Before a job is sent, or of a server that does not tell a key's tags when autograd has failed there."""
    if tags == "unknown":
        monkeypatch.setattr(gradients, "_whoami", lambda host, key: {})
    with loopback.faults(sandbox=True) as submitted:
        with pytest.raises(NotReady, match="no gradient leaves; leave out method, or") as said:
            dl.integrated_gradients(llm, *SUM, method="gradients", remote=loopback.host)
        assert submitted() == jobs
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("identity", "asked", "done"),
    [
        ({"email": "a@b.org", "tags": ["trusted"]}, None, "gradients"),
        ({"email": "a@b.org", "tags": ["trusted"]}, "gradients", "gradients"),
        ({"email": "a@b.org", "tags": []}, None, "increments"),
        ({"email": None, "tags": []}, None, "increments"),  # no authentication, or a key that it does not know
        ({"email": None, "tags": []}, "gradients", "gradients"),
        ({}, None, "increments"),  # an older server, or one that is away
        ({"email": "a@b.org", "tags": ["trusted"]}, "increments", "increments"),
    ],
)
def test_a_key_that_is_not_trusted_gets_increments(identity, asked, done, monkeypatch):
    monkeypatch.setattr(gradients, "_whoami", lambda host, key: identity)
    assert gradients.method_there("http://127.0.0.1:1", asked) == done


def test_a_server_that_is_away_and_this_machine_are_not_asked():
    assert gradients.method_there("http://127.0.0.1:1", None) == "increments"
    assert gradients.method_there(False, None) == gradients.method_there("local", None) == "gradients"


def test_left_end_steps_need_gradients(llm):
    with pytest.raises(ValueError, match="left-end steps need gradients"):
        dl.integrated_gradients(llm, *SUM, quadrature="riemann", method="increments")
