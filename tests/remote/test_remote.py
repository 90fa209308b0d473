"""Remote runs against the loopback server: what is said before a job, what is refused, the check of its model."""

import nnsight
import pytest
import torch
from nnsight.intervention.backends.remote import RemoteBackend

import depth_lib as dl
from depth_lib.models import families
from depth_lib.models.errors import ArchitectureError, ModelError
from depth_lib.params import Params
from depth_lib.remote import NotReady
from depth_lib.remote.job import Job
from depth_lib.remote.server import tell_about
from tests.calls import EVERY, TEXTS
from tests.remote.conditions import differences, same
from tests.remote.loopback.fixture import KEY, journal


def test_nnsights_own_client_sends_our_payload_and_reads_the_same_numbers(llm, loopback, monkeypatch):
    """So that server, client and schema cannot share one mistake."""
    sent, post = [], Job._post
    monkeypatch.setattr(Job, "_post", lambda *request: sent.append(request) or post(*request))
    ours = EVERY["logit_lens"](llm, remote=loopback.host)
    ((_, request, blob),) = sent
    theirs = RemoteBackend(request.model_key, host=loopback.host, api_key=KEY, env=request.env, blocking=False)
    monkeypatch.setattr(theirs, "_serialize", lambda tracer: blob)
    theirs.display.enabled, theirs.compress = False, True
    theirs.submit(None)
    loopback.until(lambda: loopback.jobs[theirs.job_id]["status"] == "COMPLETED")
    found = theirs()["result"]["result"]
    common = found.keys() & ours.keys() - {"meta"}
    assert common and all(torch.equal(ours[key], found[key]) for key in common)


RESPONSES = ["logit_lens, answers", "logit_lens, generated", "relative_contribution, last", "direct_effects"]


@pytest.mark.parametrize("sandbox", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*RESPONSES, "block_accuracy"])
def test_responses_are_measured_in_one_job_that_gives_the_local_numbers(llm, here, loopback, name, sandbox):
    with loopback.faults(sandbox=sandbox) as n_jobs:
        assert not differences(EVERY[name](llm, remote=loopback.host), EVERY[name](here))
        assert n_jobs() == 1


def test_a_rehearsal_gives_the_local_numbers(here):
    same(EVERY["residual_erasure"](here, remote="local"), EVERY["residual_erasure"](here))


@pytest.mark.parametrize(
    "remote",
    [
        "locl",
        "localhost",
        "api.ndif.us",
        "a/b",
        "localhost:8001",
        "https://",
        "http:///a",
        "http://a:b",
        "http://a:65536",
    ],
)
def test_a_remote_that_is_no_host_is_refused_wherever_it_is_given_with_what_it_may_be(llm, remote):
    with pytest.raises(NotReady, match='use True, False, "local" or a URL'):
        dl.logit_lens(llm, TEXTS, remote=remote)
    with pytest.raises(ModelError, match='use True, False, "local" or a URL'):
        dl.load_model("toy-4l", remote=remote)
    with pytest.raises(ValueError, match="REMOTE"):
        Params(REMOTE=remote)


@pytest.mark.parametrize(
    "remote", ["http://localhost:65535", "https://api.ndif.us", "http://[::1]:8001/", "local", True]
)
def test_a_host_is_one_wherever_it_is_given(remote):
    assert Params(REMOTE=remote).REMOTE == remote
    assert dl.load_model("toy-4l", remote=remote).dispatched == (remote == "local")


def test_the_configured_server_needs_a_key_and_is_where_true_goes(llm, loopback, monkeypatch):
    monkeypatch.setenv("NDIF_HOST", loopback.host)
    with loopback.faults() as submitted:
        dl.logit_lens(llm, TEXTS, remote=True)
        assert submitted() == 1
    assert nnsight.CONFIG.API.HOST != loopback.host  # without the variable, True goes where it went before
    monkeypatch.delenv("NDIF_API_KEY")
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", None)
    with pytest.raises(NotReady, match=f"no NDIF key for {loopback.host}.*NDIF_API_KEY"):
        dl.logit_lens(llm, TEXTS, remote=True)


def test_a_model_read_block_by_block_keeps_its_nan_on_a_server(llm, here, loopback, monkeypatch):
    without_parts = families.describe(llm).but(parts=None)
    monkeypatch.setattr("depth_lib.probes.relative_contribution.verified_arch", lambda llm: without_parts)
    probe = EVERY["relative_contribution"]
    ours, truth = probe(llm, remote=loopback.host), probe(here)
    assert not differences(ours, truth)
    for key, value in ((key, value) for key, value in truth.items() if key != "meta"):
        assert value.isnan().all() == ("att" in key or "mlp" in key), key


def test_local_effects_of_blocks_that_read_more_than_the_residual_are_refused(loopback):
    with pytest.raises(ValueError, match="blocks read more of earlier blocks than the residual stream"):
        dl.local_effects(loopback.model("loopback/shared"), TEXTS, remote=loopback.host)


def test_the_first_job_checks_the_servers_model(loopback, monkeypatch):
    llm = loopback.model("loopback/gpt2")
    wrong = families.describe(llm).but(logit_softcap=3.0)
    monkeypatch.setattr("depth_lib.models.check.describe", lambda llm: wrong)
    with loopback.faults() as submitted:
        with pytest.raises(ArchitectureError, match="identity 2 fails"):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1 and not journal()


def test_check_model_on_the_server_measures_what_it_measures_here(loopback):
    there, here = loopback.model("loopback/gpt2"), loopback.here("loopback/gpt2")
    assert dl.check_model(there, remote=loopback.host) == dl.check_model(here)


def test_a_model_with_its_weights_on_this_machine_does_not_run_on_a_server_even_if_the_hub_knows_it(loopback):
    """As dl.load_model(hub_id) gives it."""
    here = loopback.here("loopback/gpt2")
    dl.check_model(here)
    with loopback.faults() as submitted:
        for call in (dl.check_model, EVERY["logit_lens"]):
            with pytest.raises(NotReady, match=r"is on this machine; load a model on the server: dl.load_model\("):
                call(here, remote=loopback.host)
        assert submitted() == 0


@pytest.mark.parametrize(
    ("host", "key", "told", "said"),
    [
        ("https://api.ndif.us", "key", {}, ""),
        ("http://mine", "", {}, ""),
        ("http://mine", "key", {}, "NDIF_API_KEY is sent to http://mine (unencrypted if that begins with http:)\n"),
        ("https://api.ndif.us", "key", {"packages": 3}, ""),
        *(("https://api.ndif.us", "key", {"packages": {}, "python_version": odd}, "") for odd in (None, "", 3)),
        ("https://api.ndif.us", "key", {"packages": {"torch": torch.__version__}}, ""),
        (
            "https://api.ndif.us",
            "key",
            {"packages": {"torch": "1.0"}},
            f"https://api.ndif.us has torch 1.0 ({torch.__version__} on this machine); numbers may differ from those "
            "of this machine\n",
        ),
    ],
)
def test_a_key_that_goes_elsewhere_and_other_versions_are_said_once(monkeypatch, capfd, host, key, told, said):
    monkeypatch.setattr("depth_lib.remote.server._told", lambda *asked: told)
    tell_about.cache_clear()
    for _ in range(2):
        tell_about(host, key)
    tell_about.cache_clear()
    assert [line for line in capfd.readouterr().err.splitlines(True) if "machine" in line or "KEY" in line] == (
        [said] if said else []
    )
