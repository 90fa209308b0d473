"""Every fault of the way to the server and back: the right result or the right exception, and a rerun completes."""

import socket
import traceback

import pytest
import torch

import depth_lib as dl
from depth_lib import remote, session
from depth_lib.models.families import describe
from depth_lib.remote import backend
from depth_lib.remote.backend import QUIET, SILENCE  # as imported: tests are less patient
from tests.calls import TEXTS
from tests.remote.conditions import same
from tests.remote.loopback.fixture import KEY, journal

CANCELLED = "Your job was cancelled or preempted by the server."
TOO_LONG = "Job took longer than timeout: 60 seconds"
DIED = "The model's process died while the job was running. Please resubmit it."
PROXY = b"<html>upstream reset</html>"


@pytest.mark.parametrize(
    "faults, jobs, says",
    [
        ({"post": [503, 429, 503]}, 1, "could not be reached"),
        ({"poll": [503, "reset", (PROXY, 200), 500]}, 1, "could not be reached"),
        ({"forget": [True, True]}, 1, ""),
        ({"result": ["truncated", "reset"]}, 1, ""),
        ({"result": [503, 500, "reset", 503, 502]}, 1, "could not be reached"),
        ({"result": [403]}, 2, "the address of its result has expired"),
        ({"end": [CANCELLED, DIED]}, 3, "process died"),
    ],
    ids=str,
)
def test_a_fault_that_passes_leaves_the_right_result(llm, truth, loopback, capfd, faults, jobs, says):
    with loopback.faults(**faults) as submitted:
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == jobs
    printed = capfd.readouterr().err
    assert printed.count("\n") == (jobs - 1 if jobs > 1 else bool(says)) and says in printed
    assert not journal()


@pytest.mark.parametrize("what", ["poll", "result"])
def test_a_server_that_hangs_is_asked_again(llm, truth, loopback, monkeypatch, what):
    monkeypatch.setattr("nnsight.intervention.backends.remote._READ_TIMEOUT", 4.5)  # longer than SILENCE, as it is
    monkeypatch.setattr(backend, "SILENCE", 4)
    monkeypatch.setattr(backend, "QUIET", 1, raising=False)
    with loopback.faults(**{what: ["hang"]}) as submitted:
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 1


REFUSED = [
    # faults, exception, what it says, submissions before and in the rerun
    ({"post": [401]}, remote.RequestRefused, "Invalid API key.*check NDIF_API_KEY", (0, 1)),
    ({"post": [503] * 999}, remote.ServerUnreachable, "HTTP 503: Try later", (0, 1)),
    ({"post": [502]}, remote.SubmissionUnconfirmed, "HTTP 502: Try later.*may be running", (0, 1)),
    ({"post": [(PROXY, 503)]}, remote.SubmissionUnconfirmed, "HTTP 503: <html>", (0, 1)),  # NDIF's own has a detail
    ({"post": ["swallow"]}, remote.SubmissionUnconfirmed, "may be running, under an id nobody knows", (1, 1)),
    ({"post": [(PROXY, 200)]}, remote.SubmissionUnconfirmed, "may be running", (0, 1)),
    ({"poll": [401]}, remote.RequestRefused, "Invalid API key", (1, 0)),
    ({"poll": ["reset"] * 999}, remote.ServerUnreachable, "RemoteProtocolError", (1, 0)),
    ({"forget": [True] * 9999}, remote.JobUnknown, "no status of the job", (3, 1)),
    ({"result": ["truncated"] * 999}, remote.ResultLost, "could not be fetched", (3, 1)),
    ({"result": [500] * 999}, remote.ServerUnreachable, "HTTP 500", (1, 0)),
    ({"end": [CANCELLED] * 3}, remote.JobInterrupted, "cancelled or preempted", (3, 1)),
    ({"end": [TOO_LONG]}, remote.JobFailed, "make smaller jobs .set DEPTH_LIB_PROMPTS_PER_JOB or ", (1, 1)),
]


@pytest.mark.parametrize("faults, kind, says, jobs", REFUSED, ids=lambda value: str(value)[:40])
def test_a_fault_that_stays_is_named_and_a_rerun_completes(
    llm, truth, loopback, monkeypatch, capfd, faults, kind, says, jobs
):
    with loopback.faults(**faults) as submitted, monkeypatch.context() as patch:
        patch.setattr(backend, "SILENCE", 0.3)
        patch.setattr(backend, "UNKNOWN", 0.3)
        with pytest.raises(kind, match=says) as caught:
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == jobs[0]
    assert caught.value.host == loopback.host and loopback.host in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and KEY not in str(caught.value)
    assert caught.value.server_text == "Try later." or "Try later" not in says
    (entry,) = journal()
    if jobs[1] == 0:
        assert entry["state"] == "submitted" and entry["job_id"] in loopback.jobs
    capfd.readouterr()
    with loopback.faults() as submitted:
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == jobs[1]
    assert ("never confirmed" in capfd.readouterr().err) == (kind is remote.SubmissionUnconfirmed)
    assert not journal()


def test_a_server_that_hangs_is_asked_again_well_within_the_patience():
    assert QUIET * 3 <= SILENCE


QUOTED = [
    {"post": [({"detail": f"Invalid API key format: '{KEY}'. API keys must be in the format: x-x"}, 400)]},
    {"end": [f"Traceback (most recent call last):\n  header {KEY}\nValueError: {KEY}"]},
    {"end": [f"The key {KEY} was cancelled or preempted"] * 3},
]


@pytest.mark.parametrize("faults", QUOTED, ids=["refused", "failed", "interrupted"])
def test_a_key_that_the_server_quotes_is_in_no_traceback_output_or_file(llm, loopback, monkeypatch, capfd, faults):
    with loopback.faults(**faults), pytest.raises(remote.RemoteError, match="<the key>") as caught:
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    printed = capfd.readouterr()
    whole = "".join(traceback.format_exception(caught.value))
    assert KEY not in whole + caught.value.server_text + printed.out + printed.err + str(journal())


def test_a_job_that_hangs_ends_at_the_deadline_and_is_picked_up_later(llm, truth, loopback, monkeypatch):
    with loopback.faults(hold="RUNNING") as submitted:
        with monkeypatch.context() as patch, pytest.raises(remote.JobOverdue, match="the job is .* after"):
            patch.setenv("DEPTH_LIB_DEADLINE", "0.0001")
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        loopback.switch()
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 1


def test_an_error_in_the_probe_comes_back_with_the_servers_traceback(llm, loopback):
    with loopback.faults() as submitted:
        for attempt in (1, 2):  # asked again by a person, it is tried again
            with pytest.raises(remote.JobFailed, match="ZeroDivisionError: division by zero") as caught:
                session.run(_divide, llm, 0, remote=loopback.host)
            assert submitted() == attempt
    assert "x = 1 / number" in caught.value.server_text and "test_faults.py#" in caught.value.server_text
    assert caught.value.job_id in loopback.jobs and journal()[0]["state"] == "ended"


def _divide(llm, number):
    with llm.trace({"input_ids": torch.tensor([[5, 6]])}) as tracer:
        x = 1 / number
        tracer.stop()
    return {"x": x}


@pytest.mark.parametrize("older", ["_factors", "1 of 3"], ids=["of two calls", "of one call"])
def test_jobs_of_two_deployments_are_refused_and_a_rerun_repeats_the_older(
    llm, truth, loopback, monkeypatch, tmp_path, older
):
    """As if one of the jobs for an artifact had run on the model in float32."""
    monkeypatch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
    complete = session.complete

    def completed(backend, entry, *rest):
        measured = complete(backend, entry, *rest)
        runs = {"dtype": "float32"} if older in (entry.probe, entry.part) else {}
        return measured | {"model": measured["model"] | runs}

    def both():
        with remote.journalled(tmp_path / "a.pt"):
            session.run(_factors, llm, 6, remote=loopback.host)
            return dl.logit_lens(llm, TEXTS, remote=loopback.host)

    says = r"deployed the model anew between two jobs \(dtype float32, then bfloat16\).*run again to repeat the older"
    with loopback.faults() as submitted:
        with monkeypatch.context() as patch, pytest.raises(remote.RemoteError, match=says):
            patch.setattr(session, "complete", completed)
            both()
        same(both(), truth)
        assert submitted() == 5 and not list(tmp_path.iterdir())


def _factors(llm, number):
    return {"n": [n for n in range(1, number) if number % n == 0]}


@pytest.mark.parametrize("key", ["my-secret", "SECRETa\nSECRETb"])
def test_a_wrong_key_is_refused_and_never_shown(llm, loopback, monkeypatch, key):
    monkeypatch.setenv("NDIF_API_KEY", key)
    with pytest.raises(remote.RemoteError, match="NDIF_API_KEY") as caught:
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    assert key.split()[0] not in f"{caught.value} {caught.value.server_text} {journal()}"


def test_a_host_where_nobody_listens_is_named(llm, monkeypatch):
    monkeypatch.setattr(backend, "SILENCE", 0.3)
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(remote.ServerUnreachable, match="ConnectError.*check the host"):
            dl.logit_lens(llm, TEXTS, remote=f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_a_result_that_is_not_finite_is_named_and_not_kept(llm, loopback):
    arch = describe(llm)
    for over, says in (("prompts", "prompt 1, layer 2 of the job"), ("layers", "layer 6 of the job")):
        with pytest.raises(remote.ResultNotFinite, match=f"_times: x is not finite at {says}, .*bfloat16"):
            session.run(_times, llm, arch, [5, 6], [[0, 0, 0], [0, 0, 1]], remote=loopback.host, over=over)
    assert [entry["state"] for entry in journal()] == ["ended"]  # one job, of one set of settings


def _times(llm, arch, layers, prompts):
    return {"x": torch.tensor(prompts, dtype=torch.float32) * 2.0**127 * 2}
