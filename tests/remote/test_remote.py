"""Remote runs against the loopback server: what is said before a job, what is refused, the check of its model."""

from dataclasses import replace

import nnsight
import pytest
import torch
from nnsight.intervention.backends.remote import RemoteBackend

import depth_lib as dl
from depth_lib.models import families
from depth_lib.models.errors import ArchitectureError, ModelError
from depth_lib.params import Params
from depth_lib.remote import JobFailed, NotReady, server
from depth_lib.remote.job import Job
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
    common = found.keys() & ours.keys()
    assert common and all(torch.equal(ours[key], found[key]) for key in common)


def test_a_rehearsal_gives_the_local_numbers(here):
    same(EVERY["residual_erasure"](here, remote="local"), EVERY["residual_erasure"](here))


@pytest.mark.parametrize(
    "remote", ["locl", "localhost", "api.ndif.us", "a/b", "localhost:8001", 1, "https://", "http:///a", "http://a:b"]
)
def test_a_remote_that_is_no_host_is_refused_wherever_it_is_given_with_what_it_may_be(llm, remote):
    with pytest.raises(NotReady, match='use True, False, "local" or a URL'):
        dl.logit_lens(llm, TEXTS, remote=remote)
    with pytest.raises(ModelError, match='use True, False, "local" or a URL'):
        dl.load_model("toy-4l", remote=remote)
    with pytest.raises(ValueError, match="REMOTE"):
        Params(REMOTE=remote)


@pytest.mark.parametrize(
    "remote", ["http://localhost:8001", "https://api.ndif.us", "http://[::1]:8001/", "local", True]
)
def test_a_host_is_one_wherever_it_is_given(remote):
    assert Params(REMOTE=remote).REMOTE == remote
    assert dl.load_model("toy-4l", remote=remote).dispatched == (remote == "local")


def test_where_the_key_goes_is_said_once(monkeypatch, capfd):
    monkeypatch.setattr(server, "_told", lambda *_: {})
    for host in ("https://other.org", "http://lab:8001", "http://api.ndif.us"):
        for expected in (f"NDIF_API_KEY is sent to {host} (unencrypted if that begins with http:)\n", ""):
            server.tell_about(host, KEY)
            assert capfd.readouterr().err == expected
    server.tell_about("https://api.ndif.us", KEY)
    server.tell_about("http://without.key", "")
    assert not capfd.readouterr().err


def test_other_versions_on_the_server_are_said_once_in_one_line_before_the_job(llm, truth, loopback, capfd):
    server.tell_about.cache_clear()
    with loopback.faults(
        packages={"torch": "9.9", "transformers": "1.0", "nnsight": nnsight.__version__, "numpy": "0"}
    ):
        for _ in range(2):
            same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
    _, line = capfd.readouterr().err.splitlines()  # after where the key goes
    here = f"torch 9.9 (here {torch.__version__.partition('+')[0]}"
    assert line.startswith(f"{loopback.host} has {here}") and "transformers 1.0 (here 5" in line and "numpy" not in line


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
    monkeypatch.setattr("depth_lib.api.verified_arch", lambda llm: families.describe(llm).but(parts=None))
    probe = EVERY["relative_contribution"]
    ours, truth = probe(llm, remote=loopback.host), probe(here)
    assert not differences(ours, truth)
    for key, value in truth.items():
        assert value.isnan().all() == ("att" in key or "mlp" in key), key


def test_local_effects_of_blocks_that_read_more_than_the_residual_are_refused(loopback):
    with pytest.raises(ValueError, match="need blocks that read only the residual"):
        dl.local_effects(loopback.model("loopback/shared"), TEXTS, remote=loopback.host)


def test_the_first_job_checks_the_servers_model(loopback, monkeypatch):
    llm = loopback.model("loopback/gpt2")
    wrong = families.describe(llm).but(logit_softcap=3.0)
    monkeypatch.setattr("depth_lib.models.check.describe", lambda llm: wrong)
    with loopback.faults() as submitted:
        with pytest.raises(ArchitectureError, match="identity 2 fails"):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1 and not journal()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a, m: (a, [(path, 1.01 * scale, bias) for path, scale, bias in m]), "identity 1 fails: what block"),
        (lambda a, m: ([], a + m), "the MLP found in block 0 depends on earlier tokens"),
        (lambda a, m: (m, a), "already ran past"),
    ],
)
def test_a_servers_model_of_which_a_and_m_were_misread_is_refused(loopback, monkeypatch, change, message):
    llm = loopback.model("loopback/llama")
    arch = families.describe(llm)
    arch.parts = [dict(zip(block, change(*block.values()), strict=True)) for block in arch.parts]
    monkeypatch.setattr("depth_lib.models.check.describe", lambda llm: arch)
    with loopback.faults() as submitted:
        with pytest.raises((ArchitectureError, JobFailed), match=message):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1 and not journal()


def test_a_shortcut_that_the_servers_model_does_not_allow_is_not_taken_in_the_first_job(loopback):
    llm, here = loopback.model("loopback/shared"), loopback.here("loopback/shared")
    shortcuts, says = ("can_skip_blocks", "can_add_rows"), "its blocks read more of earlier ones than the residual"
    assert not any(getattr(families.describe(llm), shortcut) for shortcut in shortcuts)
    families.known(llm).found = replace(families.known(llm).found, **dict.fromkeys(shortcuts, True))
    text = ["The quick brown fox jumps over the lazy dog"]
    with pytest.warns(UserWarning, match=says):
        ours = dl.layer_effects(llm, text, "all", remote=loopback.host)
    assert not differences(ours, dl.layer_effects(here, text, "all"))
    assert not any(getattr(families.describe(llm), shortcut) for shortcut in shortcuts)


def test_check_model_on_the_server_measures_what_it_measures_here(loopback):
    there, here = loopback.model("loopback/gpt2"), loopback.here("loopback/gpt2")
    assert dl.check_model(there, remote=loopback.host) == dl.check_model(here)
