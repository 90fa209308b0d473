"""Every fault of the way to the server and back: the right result or the right exception, and a rerun completes."""

import json
import time

import httpx
import pytest
import torch

import depth_lib as dl
from depth_lib import remote, session
from depth_lib.remote import journal, server
from tests.remote.loopback.fixture import KEY, hurried, loopback, same, unreturned  # noqa: F401 (fixtures)

TEXTS = ["abcdefghijkl mnop", "8 apples and 5, thirteen"]


@pytest.fixture(scope="module")
def model(loopback):  # noqa: F811
    """(the client's model, what the probe gives when nothing goes wrong)"""
    llm = loopback.model("loopback/llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NDIF_API_KEY", KEY)
        return llm, dl.logit_lens(llm, TEXTS, remote=loopback.host)


@pytest.mark.parametrize(
    "faults, jobs",
    [
        ({"post": [503, 502, 429]}, 1),
        ({"poll": [503, 502, "reset", "garbage", 500]}, 1),
        ({"poll": ["hang"]}, 1),
        ({"status": ["reset", 503]}, 1),
        ({"forget": [True, True]}, 1),
        ({"result": [403]}, 1),  # what an expired address answers
        ({"result": ["truncated"]}, 1),
        ({"result": ["reset", 503]}, 1),
        ({"result": [403, 403, 403]}, 2),  # the address stays expired: the job is submitted again
        ({"result": ["truncated"] * 3}, 2),
    ],
    ids=str,
)
def test_a_fault_that_passes_leaves_the_right_result(model, loopback, monkeypatch, faults, jobs):  # noqa: F811
    monkeypatch.setattr(server, "_TIMEOUT", httpx.Timeout(1))
    llm, truth = model
    remote.preflight._PASSED.clear()
    with loopback.faults(**faults) as submitted:
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == jobs
    assert not unreturned()


REFUSED = [
    # faults, exception, what it says, submissions before and in the rerun
    ({"post": [401]}, remote.RequestRefused, "Invalid API key.*check NDIF_API_KEY", (0, 1)),
    ({"post": [400]}, remote.RequestRefused, "The request is malformed", (0, 1)),
    ({"post": [503] * 99}, remote.ServerUnreachable, "HTTP 503: Try later", (0, 1)),
    ({"post": ["swallow"]}, remote.SubmissionUnconfirmed, "may be running, under an id nobody knows", (0, 1)),
    ({"post": ["hang"]}, remote.SubmissionUnconfirmed, "ReadTimeout", (0, 1)),
    ({"post": ["garbage"]}, remote.SubmissionUnconfirmed, "may be running", (1, 1)),
    ({"poll": [401]}, remote.RequestRefused, "Invalid API key", (1, 0)),
    ({"poll": [503] * 99}, remote.ServerUnreachable, "HTTP 503", (1, 0)),
    ({"poll": ["reset"] * 99}, remote.ServerUnreachable, "RemoteProtocolError", (1, 0)),
    ({"forget": [True] * 999}, remote.JobUnknown, "no status of the job", (1, 1)),
    ({"result": [403] * 6}, remote.ResultLost, "HTTP 403", (2, 1)),
    ({"result": ["truncated"] * 6}, remote.ResultLost, "could not be fetched", (2, 1)),
]


@pytest.mark.parametrize("faults, kind, says, jobs", REFUSED, ids=lambda value: str(value)[:40])
def test_a_fault_that_stays_is_named_and_a_rerun_completes(model, loopback, monkeypatch, faults, kind, says, jobs):  # noqa: F811
    monkeypatch.setattr(server, "_TIMEOUT", httpx.Timeout(1))
    llm, truth = model
    with loopback.faults(**faults) as submitted:
        with pytest.raises(kind, match=says) as caught:
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == jobs[0]
    assert caught.value.host == loopback.host and loopback.host in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and KEY not in str(caught.value)
    (file,) = journal.cache_folder("jobs").glob("*.json")
    entry = json.loads(file.read_text())
    if jobs[1] == 0:
        assert entry["state"] == "submitted" and entry["job_id"] in loopback.asked()["jobs"]
    with loopback.faults() as submitted:
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == jobs[1]
    assert not unreturned()


def test_an_unconfirmed_submission_is_mentioned_when_it_is_repeated(model, loopback, capfd):  # noqa: F811
    llm, truth = model
    with loopback.faults(post=["swallow"]), pytest.raises(remote.SubmissionUnconfirmed):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
    assert "never confirmed" in capfd.readouterr().err


def test_a_job_that_hangs_ends_at_the_deadline_and_is_picked_up_later(model, loopback, monkeypatch):  # noqa: F811
    llm, truth = model
    short = remote.Patience(deadline=1, shortest=0.05, longest=0.2)
    with loopback.faults(hold="RUNNING") as submitted:
        with monkeypatch.context() as patch, pytest.raises(remote.JobOverdue, match="RUNNING after 1 s") as caught:
            patch.setattr(remote.Patience, "of_user", classmethod(lambda cls: short))
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert caught.value.job_id in loopback.asked()["jobs"]
        loopback.switch()
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 1


def test_an_expired_job_of_long_ago_is_submitted_again_without_asking_for_long(model, loopback, hurried):  # noqa: F811
    llm, truth = model
    with loopback.faults(poll=[401]), pytest.raises(remote.RequestRefused):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    (file,) = journal.cache_folder("jobs").glob("*.json")
    entry = json.loads(file.read_text())
    file.write_text(json.dumps(entry | {"job_id": "0" * 32, "submitted": "2025-01-01T00:00:00+00:00"}))
    with loopback.faults() as submitted:
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 1


def test_a_wrong_key_is_refused_and_never_shown(model, loopback, monkeypatch):  # noqa: F811
    llm, _ = model
    monkeypatch.setenv("NDIF_API_KEY", "my-secret")
    with pytest.raises(remote.RequestRefused, match="HTTP 401") as caught:
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    assert "my-secret" not in str(caught.value) + str(caught.value.server_text)
    assert "my-secret" not in "".join(file.read_text() for file in journal.cache_folder("jobs").glob("*"))


def test_an_error_in_the_probe_comes_back_with_the_servers_traceback(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults() as submitted:
        with pytest.raises(remote.JobFailed, match="ZeroDivisionError: division by zero") as caught:
            session.run(_divide, llm, 0, remote=loopback.host)
        assert "x = 1 / number" in caught.value.server_text and "test_faults.py#" in caught.value.server_text
        assert caught.value.job_id in loopback.asked()["jobs"]
        assert submitted() == 1
        (file,) = journal.cache_folder("jobs").glob("*.json")
        assert json.loads(file.read_text())["state"] == "failed"
        with pytest.raises(remote.JobFailed):  # asked again by a person, it is tried again
            session.run(_divide, llm, 0, remote=loopback.host)
        assert submitted() == 2


def _divide(llm, number):
    with llm.trace({"input_ids": torch.tensor([[5, 6]])}) as tracer:
        x = 1 / number
        tracer.stop()
    return {"x": x}


def test_a_model_that_goes_between_preflight_and_job_is_the_jobs_own_error(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    llm.repo_id = "nobody/nothing"
    from nnsight.modeling.huggingface import _ID_CACHE

    _ID_CACHE["nobody/nothing"] = "nobody/nothing"
    with pytest.raises(remote.NotReady, match="nobody/nothing is not hosted there"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    remote.preflight._PASSED[loopback.host, llm.to_model_key()] = time.monotonic(), {}
    with pytest.raises(remote.JobFailed, match="Model nobody/nothing is not deployed"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)


@pytest.mark.parametrize("key", ["SECRETa\nSECRETb", "SECRET\tx", "SECRET x", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key, monkeypatch):
    monkeypatch.setenv("NDIF_API_KEY", key)
    with pytest.raises(remote.NotReady, match="characters that no key has") as caught:
        server.Server("http://127.0.0.1:9")
    assert key.split()[0] not in str(caught.value)


@pytest.mark.parametrize("answer", [["x"], {"packages": ["torch"]}, {"deployments": [1]}, {"deployments": {"a": "b"}}])
def test_what_a_server_says_in_another_shape_is_no_traceback(answer):
    remote.preflight._check_versions(None, answer)
    if isinstance(answer, dict) and "deployments" in answer:
        key = 'x:{"repo_id": "owner/name"}'
        with pytest.raises(remote.NotReady, match="not hosted there"):
            remote.preflight._check_model(server.Server("http://127.0.0.1:9"), key, answer)
