"""Every fault of the way to the server and back: the right result or the right exception, and a rerun completes."""

import io
import json
import socket
import time
import traceback
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import zstandard
from huggingface_hub import constants, get_session

import depth_lib as dl
from depth_lib import remote, session
from depth_lib.files import cache_folder
from depth_lib.models.families import describe, known
from depth_lib.probes.logit_lens import KEYS
from depth_lib.remote import job
from depth_lib.remote.job import PAUSES, QUIET, RESULT_STAYS, SILENCE, UNKNOWN  # as imported: tests are less patient
from depth_lib.remote.journal import Journal
from depth_lib.session import IDENTITIES
from tests.calls import TEXTS
from tests.marks import slow
from tests.remote.loopback.fixture import KEY, journal

CANCELLED = "Your job was cancelled or preempted by the server."
TOO_LONG = "Job took longer than timeout: 60 seconds"
PROXY = b"<html>upstream reset</html>"
RIGHT = {"n": [1, 2, 3]}


def factors(llm, number):
    return {"n": [n for n in range(1, number) if number % n == 0]}


def ask(llm, loopback):
    """A job that the server does in no time, whose result is RIGHT."""
    return session.run(factors, llm, 6, remote=loopback.host)


@pytest.mark.parametrize(
    "faults, says",
    [
        ({"post": [503, 429, 503]}, "could not be reached"),
        ({"poll": [503, "reset", (PROXY, 200), 500]}, "does not answer as NDIF does"),
        ({"poll": [(b"null", 200), (b"7", 200), (b"[]", 200)]}, "does not answer as NDIF does"),
        ({"forget": [True, True], "result": ["moved", "moved"]}, ""),
        ({"result": ["truncated", "reset"]}, ""),
        slow({"result": [503, "reset", 502]}, "could not be reached"),
        ({"result": [403, 404, 403]}, "its result cannot be downloaded (HTTP 403)"),
        slow({"poll": ["hang"], "result": ["hang"]}, ""),
    ],
    ids=str,
)
def test_a_fault_that_passes_leaves_the_right_result_of_one_job(llm, loopback, monkeypatch, capfd, faults, says):
    assert QUIET * 3 <= SILENCE  # a server that hangs is asked again well within the patience
    monkeypatch.setattr(job, "QUIET", 0.5)
    with loopback.faults(**faults) as submitted:
        assert ask(llm, loopback) == RIGHT
        assert submitted() == 1
    printed = capfd.readouterr().err
    assert printed.count("\n") == bool(says) and says in printed
    assert not journal()


def left_behind(llm, loopback, seconds):
    """A job that the server took so many seconds ago, as the journal of a killed process has it."""
    with loopback.faults(poll=[401]), pytest.raises(remote.RemoteError, match="Invalid API key"):
        ask(llm, loopback)
    (file,) = cache_folder("jobs").glob("*.json")
    entry = json.loads(file.read_text())
    file.write_text(json.dumps(entry | {"submitted": entry["submitted"] - seconds}))


@pytest.mark.parametrize("forgotten", [slow({"forget": [True] * 9}), {"result": [403]}], ids=str)
def test_a_job_that_the_server_has_forgotten_is_sent_again_once_and_that_is_said_in_a_line(
    llm, loopback, capfd, forgotten
):
    left_behind(llm, loopback, 7200)
    with loopback.faults(**forgotten) as submitted:
        assert ask(llm, loopback) == RIGHT
        assert submitted() == 1
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and "found job" in said[0] and "sending it again, once" in said[1]
    assert not journal()


def test_an_object_store_that_is_busy_has_not_forgotten_an_old_result(llm, loopback):
    left_behind(llm, loopback, 7200)
    with loopback.faults(result=[429]) as submitted:
        assert ask(llm, loopback) == RIGHT
        assert submitted() == 0


def test_what_the_server_forgets_twice_is_not_sent_a_third_time(llm, loopback, monkeypatch):
    monkeypatch.setattr(job, "UNKNOWN", 0.1)
    with loopback.faults(forget=[True] * 9999) as submitted:
        with pytest.raises(remote.JobFailed, match="no longer knows the job; run again to submit") as caught:
            ask(llm, loopback)
        assert submitted() == 2 and caught.value.retry == "send"
        loopback.switch()
        assert ask(llm, loopback) == RIGHT
        assert submitted() == 3


def test_a_young_job_without_a_status_is_waited_for_by_a_later_process_too(llm, loopback):
    """As where the server's own queue is slow to write the first status."""
    left_behind(llm, loopback, 60)
    with loopback.faults(forget=[True] * 3) as submitted:
        assert ask(llm, loopback) == RIGHT
        assert submitted() == 0


def saved(value):
    """The bytes that a server sends for what a session saved under this value."""
    buffer = io.BytesIO()
    torch.save({"result": value}, buffer)
    return zstandard.compress(buffer.getvalue())


ANSWER = {"id": "x", "status": "COMPLETED", "description": ""}
FAILED = ANSWER | {"status": "ERROR", "description": "the model is not deployed"}
REFUSED = [
    # faults, exception, what it says, what the same call does, POSTs of it and of the rerun
    ({"post": [401]}, remote.NotReady, "Invalid API key.*NDIF_API_KEY \\(keys", None, (1, 1)),
    ({"post": [503] * 999}, remote.ServerUnreachable, "HTTP 503: .*Try later", "ask", (None, 1)),
    ({"post": [429] * 999}, remote.ServerUnreachable, "the server asks to wait .HTTP 429: .*later", "ask", (None, 1)),
    ({"post": [502]}, remote.ServerUnreachable, "HTTP 502: .*Try later.*may be running", "send", (1, 1)),
    # NDIF's own 503 has a detail
    ({"post": [(PROXY, 503)]}, remote.ServerUnreachable, "HTTP 503: <html>.*may be running", "send", (1, 1)),
    ({"post": ["swallow"]}, remote.ServerUnreachable, "may be running, under an unknown id", "send", (1, 1)),
    ({"post": [(b"<html>", 200)]}, remote.ServerUnreachable, "not answer as NDIF does.*may be running", "send", (1, 1)),
    ({"post": [(b"<html>", 404)]}, remote.NotReady, "not answer as NDIF does .HTTP 404: <html>.; check", None, (1, 1)),
    ({"post": [({"detail": "Not Found"}, 404)]}, remote.NotReady, "not answer as NDIF does .HTTP 404", None, (1, 1)),
    ({"post": [(ANSWER | {"id": "../x"}, 200)]}, remote.ResultRefused, "the job '../x', which is no id", None, (1, 1)),
    ({"poll": [(PROXY, 200)] * 999}, remote.ServerUnreachable, "does not answer as NDIF does .Valid", "ask", (1, 0)),
    ({"post": [(FAILED, 200)]}, remote.JobFailed, "reports: the model is not deployed; correct that", None, (1, 1)),
    ({"poll": ["reset"] * 999}, remote.ServerUnreachable, "RemoteProtocolError", "ask", (1, 0)),
    (
        {"poll": [(ANSWER | {"data": None}, 200)]},
        remote.ResultRefused,
        "did not say where its result is; run",
        None,
        (1, 1),
    ),
    (
        {"poll": [(ANSWER | {"data": "a"}, 200)]},
        remote.ResultRefused,
        "did not say where its result is; run",
        None,
        (1, 1),
    ),
    ({"result": ["truncated"] * 999}, remote.ResultRefused, "its result arrived damaged", "ask", (1, 0)),
    ({"result": [403] * 999}, remote.ServerUnreachable, "its result cannot be downloaded", "ask", (1, 0)),
    ({"result": ["no result"]}, remote.ResultRefused, "arrived whole, but cannot be read .*KeyError", None, (1, 1)),
    (
        {"poll": [(ANSWER | {"data": "http://127.0.0.1/\x00"}, 200)] * 999},
        remote.ServerUnreachable,
        "InvalidURL",
        "ask",
        (1, 0),
    ),
    slow({"result": [(saved({"result": RIGHT}), 200)] * 999}, remote.ResultRefused, "lacks `model` or", "ask", (1, 0)),
    ({"result": [(saved({"model": {}}), 200)] * 999}, remote.ResultRefused, "lacks `model` or", "ask", (1, 0)),
    (
        {"result": [(saved({"model": {}, "result": RIGHT, "check": 5}), 200)] * 999},
        remote.ResultRefused,
        "lacks `model` or",
        "ask",
        (1, 0),
    ),
    slow({"result": [(saved([1]), 200)] * 999}, remote.ResultRefused, "lacks `model` or", "ask", (1, 0)),
    ({"end": [CANCELLED]}, remote.JobFailed, "cancelled or preempted.*run again to submit", "send", (1, 1)),
    ({"end": [9999 * "x"]}, remote.JobFailed, "reports: x{400}; correct that", None, (1, 1)),
    ({"end": [TOO_LONG]}, remote.JobFailed, "make smaller jobs .set DEPTH_LIB_PROMPTS_PER_JOB or ", None, (1, 1)),
]


@pytest.mark.parametrize("faults, kind, says, retry, posts", REFUSED, ids=lambda value: str(value)[:60])
def test_a_fault_that_stays_is_named_and_a_rerun_completes(
    llm, loopback, monkeypatch, capfd, faults, kind, says, retry, posts
):
    before = loopback.n_posts
    with loopback.faults(**faults), monkeypatch.context() as patch:
        patch.setattr(job, "SILENCE", 0.1)
        with pytest.raises(kind, match=says) as caught:
            ask(llm, loopback)
    assert posts[0] in (loopback.n_posts - before, None) and caught.value.retry == retry
    assert caught.value.host == loopback.host and loopback.host in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and KEY not in str(caught.value)
    assert "Try later" in str(caught.value.server_text) or "Try later" not in says
    unconfirmed = ["submitting"] * ("may be running" in says)
    assert [entry["state"] for entry in journal()] == unconfirmed + ["submitted"] * (posts[1] == 0)
    assert all(entry["job_id"] in loopback.jobs or unconfirmed for entry in journal())
    capfd.readouterr()
    before = loopback.n_posts
    assert ask(llm, loopback) == RIGHT
    assert loopback.n_posts - before == posts[1]
    assert ("never confirmed" in capfd.readouterr().err) == bool(unconfirmed)
    assert not journal()


def of_lens(llm):
    """What a server's logit lens gives for TEXTS, with all measures."""
    n, n_layers = len(TEXTS), describe(llm).n_layers
    sums = {f"{key}_sums": torch.full((n, n_layers), 2.0) for key in KEYS}
    losses = {key: torch.ones(n) for key in ("loss", "shuffled_loss")}
    jsd = [torch.zeros(2, n_layers) for _ in TEXTS]
    return sums | losses | {"n_tokens": torch.full((n,), 2.0), "generated": [[]] * n, "jsd": jsd}


def test_a_result_without_the_check_that_was_asked_for_is_refused(llm, loopback, monkeypatch):
    done = saved({"model": {"dtype": "float32"}, "result": of_lens(llm)})
    for checked, n_checks in ((None, 1), ({"tolerance": 1e-5}, 0)):
        monkeypatch.setattr(known(llm), "checked", checked)
        with loopback.faults(result=[(done, 200)]):
            with pytest.raises(remote.ResultRefused, match="it lacks identity_1") if n_checks else nullcontext():
                dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert not journal()


@pytest.mark.slow
def test_a_result_without_a_key_or_of_another_shape_is_refused_with_both_named(llm, loopback, monkeypatch):
    monkeypatch.setattr(known(llm), "checked", {"tolerance": 1e-5})
    right, n, n_layers = of_lens(llm), len(TEXTS), describe(llm).n_layers
    key = "res_kl_divs_sums"
    changes = {
        f"it lacks {key}, .* and jsd .it is empty": dict.fromkeys(right),
        "it lacks generated .it has res_kl_divs_sums, ": {"generated": None},
        f"{key} is a str, not a tensor": {key: "text"},
        rf"{key} has shape \[{n}, {n_layers - 1}\], not \[{n}, {n_layers}\]": {key: torch.ones(n, n_layers - 1)},
        rf"{key} has shape \[1, {n_layers}\], not \[{n}, {n_layers}\]": {key: torch.ones(1, n_layers)},
        rf"jsd has shape \[1\], not \[{n}\]": {"jsd": right["jsd"][:1]},
        f"{key} is a Tensor, not a tensor of real numbers": {key: torch.ones(n, n_layers, dtype=torch.complex64)},
        "n_tokens has values below 1": {"n_tokens": torch.tensor([-1.0, *[1] * (n - 1)])},
    }
    model = {"dtype": "float32"}
    for says, change in changes.items():
        result = {key: value for key, value in (right | change).items() if value is not None}
        with loopback.faults(result=[(saved({"model": model, "result": result}), 200)]):
            with pytest.raises(remote.ResultRefused, match=f"^logit_lens: the server's result .*: {says}"):
                dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert not journal()
    check = {name: torch.zeros([n_layers] if shape == "L" else [len(shape)]) for name, shape in IDENTITIES.items()}
    check = {name: x if IDENTITIES[name] else 0.0 for name, x in check.items()} | {"can_skip_blocks": "odd"}
    of_check = ({"model": model, "result": right, "check": checked} for checked in ({"finite": True}, check))
    for other in ({"model": {}, "result": right}, *of_check):
        monkeypatch.setattr(known(llm), "checked", None)  # so that the job checks
        with loopback.faults(result=[(saved(other), 200)]):
            says = "it lacks (dtype|identity_1, .* and eps_of_logits) |can_skip_blocks is a str, not a tensor of real"
            with pytest.raises(remote.ResultRefused, match=says):
                dl.logit_lens(llm, TEXTS, remote=loopback.host)
    monkeypatch.setattr(known(llm), "checked", {"tolerance": 1e-5})
    with loopback.faults(result=[(saved({"model": model, "result": right}), 200)]):
        assert dl.logit_lens(llm, TEXTS, remote=loopback.host)["res_kl_divs"].tolist() == [1.0] * n_layers


QUOTED = [
    {"post": [({"detail": f"Invalid API key format: '{KEY}'. API keys must be in the format: x-x"}, 400)]},
    {"end": [f"Traceback (most recent call last):\n  header {KEY}\nValueError: {KEY}"]},
]


@pytest.mark.parametrize("faults", QUOTED, ids=["refused", "failed"])
def test_a_key_that_the_server_quotes_is_in_no_traceback_output_or_file(llm, loopback, capfd, faults):
    with loopback.faults(**faults), pytest.raises(remote.RemoteError, match="<the key>") as caught:
        ask(llm, loopback)
    printed = capfd.readouterr()
    whole = "".join(traceback.format_exception(caught.value))
    assert KEY not in whole + caught.value.server_text + printed.out + printed.err + str(journal())


def test_a_job_is_waited_for_twelve_hours(llm, loopback, monkeypatch, tmp_path):
    monkeypatch.delenv("DEPTH_LIB_DEADLINE")
    assert job.Job(llm, loopback.host, tmp_path, factors, {}).deadline == 12 * 3600


@pytest.mark.parametrize("models", [("a", "a"), ("a", "b")])
def test_jobs_of_one_result_are_joined_unless_their_model_was_deployed_again_between_them(models, tmp_path):
    dropped = []
    first, last = (
        SimpleNamespace(model_key=model, runs=runs, job_id=runs, meta={}, drop=lambda: dropped.append(1), forget=bool)
        for model, runs in zip(models, ("1", "2"), strict=True)
    )
    kept = Journal(tmp_path)
    kept.finish([first])
    if models == ("a", "a"):
        with pytest.raises(remote.RemoteError, match="redeployed the model between two jobs"):
            kept.finish([last])
    else:
        kept.finish([last])
    assert dropped == [1] * (models == ("a", "a"))


def test_a_job_that_hangs_ends_at_the_deadline_and_is_picked_up_later(llm, loopback, monkeypatch):
    with loopback.faults(hold="RUNNING") as submitted:
        with monkeypatch.context() as patch, pytest.raises(remote.ServerUnreachable, match="the job is .* after"):
            patch.setenv("DEPTH_LIB_DEADLINE", "0.0001")
            ask(llm, loopback)
        loopback.switch()
        assert ask(llm, loopback) == RIGHT
        assert submitted() == 1


@pytest.mark.parametrize("faults", [{"post": [429] * 999}, {"poll": [503] * 999}], ids=["post", "poll"])
def test_a_server_that_is_busy_is_asked_until_the_deadline(llm, loopback, monkeypatch, faults):
    monkeypatch.setenv("DEPTH_LIB_DEADLINE", "0.0003")
    start = time.monotonic()
    with loopback.faults(**faults), pytest.raises(remote.ServerUnreachable, match="HTTP"):
        ask(llm, loopback)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("hours", ["twelve", "0", "-1", "nan", "inf"])
def test_a_deadline_that_is_no_number_of_hours_is_named(llm, loopback, monkeypatch, hours):
    monkeypatch.setenv("DEPTH_LIB_DEADLINE", hours)
    with pytest.raises(
        remote.NotReady, match=f"DEPTH_LIB_DEADLINE must be a number above 0, got {hours}; set it to one, or unset it"
    ):
        ask(llm, loopback)


def test_an_error_in_the_probe_comes_back_with_the_servers_traceback(llm, loopback):
    with loopback.faults() as submitted:
        for attempt in (1, 2):  # asked again by a person, it is tried again
            with pytest.raises(remote.JobFailed, match="ZeroDivisionError: division by zero") as caught:
                session.run(_divide, llm, 0, remote=loopback.host)
            assert submitted() == attempt
    assert "1 / number" in caught.value.server_text and "test_faults.py#" in caught.value.server_text
    assert caught.value.job_id in loopback.jobs and not journal()


def _divide(llm, number):
    return {"x": 1 / number}


def test_a_server_of_ones_own_takes_any_word_as_its_key_and_its_text_stays_whole(llm, loopback, monkeypatch):
    monkeypatch.setenv("NDIF_API_KEY", "any")
    said = "too many values; any of these may be null"
    with loopback.faults(end=[said], key="any"), pytest.raises(remote.RemoteError, match=said):
        ask(llm, loopback)


def test_a_tensor_that_cannot_be_read_is_refused_after_one_job(llm, loopback):
    with loopback.faults() as submitted:
        with pytest.raises(remote.ResultRefused, match="cannot be read as tensors and plain containers"):
            session.run(_conjugate, llm, remote=loopback.host)
        assert submitted() == 1


def _conjugate(llm):
    return {"x": torch.ones(2, dtype=torch.complex64).conj()}


@pytest.mark.parametrize("key", ["my-secret", "SECRETa\nSECRETb"])
def test_a_wrong_key_is_refused_and_never_shown(llm, loopback, monkeypatch, key):
    monkeypatch.setenv("NDIF_API_KEY", key)
    with pytest.raises(remote.NotReady, match="NDIF_API_KEY") as caught:
        ask(llm, loopback)
    assert key.split()[0] not in f"{caught.value} {caught.value.server_text} {journal()}"


def test_a_host_where_nobody_listens_is_named_and_how_long_it_is_asked(llm, monkeypatch, capfd):
    monkeypatch.setattr(job, "SILENCE", 1)
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(remote.ServerUnreachable, match="ConnectError.*check the host"):
            dl.logit_lens(llm, TEXTS, remote=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert "retrying for up to 1 s: the server could not be reached (ConnectError" in capfd.readouterr().err


@pytest.mark.parametrize(("remote", "variable"), [(True, "NDIF_HOST"), ("http://no-such-host.invalid", "remote")])
def test_a_host_whose_name_is_not_known_is_refused_before_a_job_is_kept(llm, monkeypatch, remote, variable):
    def unknown(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setenv("NDIF_HOST", "https://no-such-host.invalid")
    with pytest.raises(
        dl.RemoteError, match=f"unknown host no-such-host.invalid .Name or service.*; correct {variable}, or"
    ):
        dl.logit_lens(llm, TEXTS, remote=remote)
    assert not journal()
    monkeypatch.setenv("NDIF_HOST", "junk")
    with pytest.raises(dl.RemoteError, match="NDIF_HOST='junk' is not valid; use a URL"):
        dl.logit_lens(llm, TEXTS, remote=True)


def test_a_result_that_is_not_finite_is_named_and_not_kept(llm, loopback):
    arch = describe(llm)
    zeros = [0] * arch.n_layers
    for over, says, gives in (
        ("prompts", "prompt 1, layer 2 of the job", "P L: x"),
        ("layers", "layer 6 of the job", "L N: x"),
    ):
        with pytest.raises(remote.ResultRefused, match=f"_times: x is not finite at {says}, .*bfloat16"):
            how = {"remote": loopback.host, "over": over, "gives": gives}
            session.run(_times, llm, arch, [5, 6], [zeros, [0, 0, 1, *zeros[3:]]], **how)
    assert not journal()


def _times(llm, arch, layers, prompts):
    return {"x": torch.tensor(prompts, dtype=torch.float32) * 2.0**127 * 2}


@pytest.mark.parametrize("remote", [True, "http://127.0.0.1:1"])
def test_a_hub_that_cannot_be_asked_for_the_models_name_is_a_remote_error_of_one_line(llm, remote, monkeypatch):
    monkeypatch.setattr(llm, "repo_id", "owner/name")
    monkeypatch.setattr(llm.config, "_name_or_path", "owner/name")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("NDIF_HOST", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.hf_api.HfApi.model_info", lambda *_: get_session().get(constants.ENDPOINT))
    with pytest.raises(
        dl.RemoteError, match=r"the Hub \(http://127.0.0.1:1\) cannot be reached to find owner/name"
    ) as error:
        dl.logit_lens(llm, TEXTS, remote=remote)
    assert error.value.retry == "send" and "\n" not in str(error.value) and error.value.__context__ is None


def test_a_server_is_asked_after_half_a_second_and_then_ever_more_rarely_up_to_every_15_seconds():
    pauses = [PAUSES(SimpleNamespace(attempt_number=number)) for number in (1, 2, 3, 9, 10, 99)]
    assert pauses == pytest.approx([0.5, 0.75, 1.125, 12.814453125, 15, 15])
    assert (SILENCE, QUIET, UNKNOWN, RESULT_STAYS) == (300, 60, 600, 3600)
