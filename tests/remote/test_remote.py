"""Remote runs against the loopback server: the local numbers, what is said meanwhile, what is refused before."""

import sys

import pytest
import torch
from nnsight.intervention.backends.remote import RemoteBackend

import depth_lib as dl
from depth_lib import session
from depth_lib.models import families as architectures
from depth_lib.remote import NotReady
from depth_lib.remote.server import Server
from depth_lib.remote.status_line import StatusLine
from tests.remote.loopback.client import PROBES, TEXTS
from tests.remote.loopback.fixture import KEY, hurried, loopback, same  # noqa: F401 (fixtures)


def test_the_server_speaks_to_nnsights_own_client(loopback, monkeypatch):  # noqa: F811
    """What the server is held to: the protocol as nnsight itself uses it, by address and inline."""
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", KEY)
    llm = loopback.model("loopback/llama")
    expected = session.run(_norm, llm, [5, 6, 7], remote=loopback.host)["norm"]
    for inline in (False, True):
        with loopback.faults(inline=inline):
            assert torch.equal(_by_nnsight(llm, loopback.host)["norm"], expected)


@pytest.mark.parametrize("probe", ["logit_lens", "integrated_gradients"])
def test_nnsights_own_client_sends_our_payload_and_reads_the_same_numbers(loopback, monkeypatch, probe):  # noqa: F811
    """So that server, client and schema cannot share one mistake."""
    llm, sent, submit = loopback.model("loopback/llama"), [], Server.submit
    monkeypatch.setattr(Server, "submit", lambda *request: (sent.append(request[1:]), submit(*request))[1])
    ours = PROBES[probe](llm, remote=loopback.host)
    ((key, env, blob),) = sent
    backend = RemoteBackend(key, host=loopback.host, api_key=KEY, env=env, blocking=False)
    monkeypatch.setattr(backend, "_serialize", lambda tracer: blob)
    backend.display.enabled = False
    backend.submit(None)
    loopback.until(lambda asked: asked["jobs"][backend.job_id]["status"] == "COMPLETED")
    (theirs,) = (found for name, found in backend()["result"]["results"].items() if name != "check")
    for name in theirs.keys() & ours.keys():
        assert torch.equal(theirs[name], ours[name]), name
    assert theirs.keys() & ours.keys()


def _norm(llm, ids):
    with llm.trace({"input_ids": torch.tensor([ids])}) as tracer:
        norm = llm.blocks[1].output[0].norm(dim=-1).cpu()
        tracer.stop()
    return {"norm": norm}


def _by_nnsight(llm, host):
    with llm.session(remote=host):
        result = _norm(llm, [5, 6, 7]).save()
    return result


def test_nothing_is_said_where_nobody_watches(loopback, capfd):  # noqa: F811
    llm = loopback.model("loopback/llama")
    capfd.readouterr()
    dl.logit_lens(llm, TEXTS, remote=loopback.host)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_one_line_that_is_rewritten(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = StatusLine("logit lens")
    line.show("queued \x1b[2J position 3\nsecond line")
    line.show("running")
    line.end("done")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.endswith("logit lens: done (0:00)\n")
    assert "second line" not in shown and "\x1b[2J" not in shown and "position 3" in shown


@pytest.mark.parametrize("remote", ["locl", "api.ndif.us", "http://", 1])
def test_a_remote_that_is_no_host_is_refused_with_what_it_may_be(remote, loopback):  # noqa: F811
    with pytest.raises(NotReady, match='use True, False, "local" or a URL'):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=remote)


def test_the_configured_server_needs_a_key(loopback, monkeypatch):  # noqa: F811
    monkeypatch.delenv("NDIF_API_KEY")
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", None)
    with pytest.raises(NotReady, match="NDIF_API_KEY"):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=True)


def test_remote_true_goes_to_the_configured_host(loopback, monkeypatch):  # noqa: F811
    monkeypatch.setenv("NDIF_HOST", loopback.host + "/")
    with loopback.faults() as submitted:
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=True)
        assert submitted() == 1


def test_a_local_folder_cannot_be_named_to_a_server(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/llama")
    monkeypatch.setattr("nnsight.modeling.huggingface._ID_CACHE", {})
    with pytest.raises(NotReady, match="load it by its Hub id"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)


@pytest.mark.parametrize(
    "faults, sentence",
    [
        ({"absent": ["loopback/gpt2"]}, "loopback/gpt2 is not hosted there; running are .*loopback/"),
        ({"state": "DEPLOYING"}, "not running .DEPLOYING.; run again in some minutes"),
        ({"env": {"packages": {"nnsight": "0.7.2"}}}, "pip install nnsight==0.7.2"),
    ],
)
def test_what_would_fail_on_the_server_is_said_before_anything_is_sent(loopback, faults, sentence):  # noqa: F811
    with loopback.faults(**faults) as submitted:
        with pytest.raises(NotReady, match=sentence):
            dl.logit_lens(loopback.model("loopback/gpt2"), TEXTS, remote=loopback.host)
        assert submitted() == 0


def test_another_torch_on_the_server_is_worth_a_warning(loopback):  # noqa: F811
    with loopback.faults(env={"packages": {"torch": "1.0"}}), pytest.warns(UserWarning, match="runs torch 1.0"):
        dl.logit_lens(loopback.model("loopback/gpt2"), TEXTS, remote=loopback.host)


def test_a_request_with_a_large_tensor_is_not_sent(loopback):  # noqa: F811
    noise = torch.randn(5_000_000)
    with loopback.faults() as submitted:
        with pytest.raises(NotReady, match="request has .* MB: a tensor made here travels"):
            session.run(_plus, loopback.model("loopback/llama"), noise, remote=loopback.host)
        assert submitted() == 0


def _plus(llm, noise):
    return {"sum": noise.sum()}


def test_the_first_job_checks_the_servers_model(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/gpt2")
    wrong = architectures.describe(llm) | {"logit_softcap": 3.0}
    monkeypatch.setattr("depth_lib.models.check.describe", lambda llm: wrong)
    with loopback.faults() as submitted:
        with pytest.raises(architectures.ArchitectureError, match="identity 2 fails"):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1


def test_check_model_on_the_server_measures_what_it_measures_here(loopback):  # noqa: F811
    there, here = loopback.model("loopback/gpt2"), loopback.here("loopback/gpt2")
    with loopback.faults() as submitted:
        assert dl.check_model(there, remote=loopback.host) == dl.check_model(here)
        assert submitted() == 1
