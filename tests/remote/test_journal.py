"""The journal: there before anybody waits, kept while it is needed, and gone afterwards; kills, and several jobs."""

import _thread
import json
import os
import re
import signal
import threading
import zlib

import pytest

import depth_lib as dl
from depth_lib import api
from depth_lib.data import tokens
from depth_lib.remote import NotReady, RequestRefused, journalled
from depth_lib.remote.backend import JobBackend
from tests.remote.conditions import EVERY, FIVE, TEXTS
from tests.remote.loopback.fixture import KEY, hurried, is_running, journal, loopback, same  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def llm(loopback):  # noqa: F811
    return loopback.model("loopback/llama")


@pytest.fixture(scope="module")
def truth(loopback):  # noqa: F811
    return dl.logit_lens(loopback.here("loopback/llama"), TEXTS)


def forked(function):
    """The id of a process, a copy of this one, that runs the function and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_journal_is_complete_before_the_first_question_about_the_job(llm, loopback, monkeypatch, tmp_path):  # noqa: F811
    seen, poll = [], JobBackend.poll
    monkeypatch.setattr(JobBackend, "poll", lambda backend: (seen.extend(journal(tmp_path / "a.pt")), poll(backend))[1])
    with journalled(tmp_path / "a.pt") as jobs:
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert KEY not in json.dumps(journal(tmp_path / "a.pt"))
    assert seen[0]["state"] == "submitted" and seen[0]["job_id"] in loopback.asked()["jobs"]
    assert seen[0]["host"] == loopback.host and seen[0]["probe"] == "logit_lens" and len(seen[0]["settings"]) == 16
    assert jobs == [{"id": seen[0]["job_id"], "cost": jobs[0]["cost"]}] and jobs[0]["cost"]["run_time"] > 0
    assert not list(tmp_path.iterdir())


def test_a_result_that_came_but_was_not_written_is_not_computed_again(llm, loopback, truth, tmp_path):  # noqa: F811
    with pytest.raises(OSError, match="disk full"), journalled(tmp_path / "a.pt"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        raise OSError("disk full")
    with loopback.faults(post=[500] * 9) as submitted, journalled(tmp_path / "a.pt"):
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 0


@pytest.mark.parametrize("damage", [lambda content: content[:99], lambda content: b"", lambda content: b"x" * 999])
def test_a_kept_result_that_is_damaged_is_set_aside_and_fetched_again(llm, loopback, truth, tmp_path, damage):  # noqa: F811
    with pytest.raises(OSError), journalled(tmp_path / "a.pt"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        raise OSError
    (kept,) = tmp_path.glob("a.pt.job/*.result")
    kept.write_bytes(damage(kept.read_bytes()))
    with loopback.faults() as submitted, pytest.warns(UserWarning, match="is damaged .*damaged-1, fetching it again"):
        with journalled(tmp_path / "a.pt"):
            same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
            assert kept.with_name(f"{kept.name}.damaged-1").exists()
        assert submitted() == 0


def test_other_settings_are_another_job(llm, loopback, tmp_path):  # noqa: F811
    with loopback.faults() as submitted, journalled(tmp_path / "a.pt"):
        for texts in (TEXTS, TEXTS[:2], TEXTS):
            dl.logit_lens(llm, texts, remote=loopback.host)
        assert submitted() == 2


def test_a_damaged_journal_is_kept_aside_and_the_job_submitted_anew(llm, loopback, tmp_path):  # noqa: F811
    with loopback.faults(poll=[401]), pytest.raises(RequestRefused), journalled(tmp_path / "a.pt"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    (file,) = tmp_path.glob("a.pt.job/*.json")
    file.write_text('{"settings": "12')
    with loopback.faults() as submitted, pytest.warns(UserWarning, match="cannot be read .*unreadable-1"):
        with journalled(tmp_path / "a.pt"):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1


def test_ctrl_c_keeps_the_job_and_says_how_to_continue(llm, loopback, capfd):  # noqa: F811
    with loopback.faults(hold="RUNNING") as submitted:
        noticed = threading.Event()

        def press():  # again after a while: an interrupt inside a finaliser is swallowed by the interpreter
            loopback.until(is_running)
            while not noticed.wait(1):
                _thread.interrupt_main()

        # a shell's background jobs ignore the signal, and so would the tests under one
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Thread(target=press, daemon=True).start()
            with pytest.raises(KeyboardInterrupt):
                dl.logit_lens(llm, TEXTS, remote=loopback.host)
        finally:
            noticed.set()
            signal.signal(signal.SIGINT, before)
        printed = capfd.readouterr().err
        assert journal()[0]["job_id"] in printed and "the same call picks it up" in printed
        loopback.switch()
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1
    assert not journal()


@pytest.mark.parametrize("moment", ["QUEUED", "RUNNING"])
def test_a_job_whose_client_was_killed_is_found_by_the_next_process(llm, loopback, truth, moment, tmp_path):  # noqa: F811
    def compute():
        with journalled(tmp_path / "a.pt"):
            return dl.logit_lens(llm, TEXTS, remote=loopback.host)

    def is_there(asked):
        return any(
            asked["jobs"].get(entry["job_id"], {}).get("status") == moment for entry in journal(tmp_path / "a.pt")
        )

    with loopback.faults(hold=moment) as submitted:
        client = forked(compute)
        loopback.until(is_there)
        kill(client)
        assert journal(tmp_path / "a.pt")[0]["state"] == "submitted"
        loopback.switch()
        same(compute(), truth)
        assert submitted() == 1
    assert not list(tmp_path.iterdir())


def test_two_processes_at_one_job_take_turns(llm, loopback, truth):  # noqa: F811
    """Without an artifact each computes for itself; neither sees what the other one has half done."""
    with loopback.faults(hold="RUNNING") as submitted:
        other = forked(lambda: dl.logit_lens(llm, TEXTS, remote=loopback.host))
        loopback.until(is_running)
        loopback.switch()
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        os.waitpid(other, 0)
        assert submitted() == 2
    assert not journal()


@pytest.mark.parametrize(
    "probe, variable, rounded",
    [
        ("relative_contribution", "PROMPTS", ()),
        ("layer_effects, future, layer", "PROMPTS", ()),
        ("gradients", "LAYERS", ()),
        ("residual_erasure", "LAYERS", ("erasure_effect",)),  # by the size of a batch
    ],
)
def test_a_run_killed_between_jobs_repeats_none_that_arrived_and_equals_one_job(
    llm,
    loopback,  # noqa: F811
    monkeypatch,
    tmp_path,
    probe,
    variable,
    rounded,
):
    def compute():
        with journalled(tmp_path / "a.pt"):
            return EVERY[probe](llm, remote=loopback.host)

    with loopback.faults(friendly=True):  # float32: what a batch's size rounds is 1e-6 of the largest value there
        whole = compute()
    monkeypatch.setenv(f"DEPTH_LIB_{variable}_PER_JOB", "1")
    with loopback.faults(friendly=True, post=[None, *[503] * 9999]) as submitted:
        client = forked(compute)
        loopback.until(lambda asked: any(entry["code"] == 503 for entry in asked["log"][-3:]))
        kill(client)
        entries = journal(tmp_path / "a.pt")
        assert {(entry["state"], entry["part"][:4]) for entry in entries} == {("done", "1 of"), ("submitting", "2 of")}
        loopback.switch(friendly=True)
        result = compute()
        assert submitted() == (3 if variable == "PROMPTS" else 4)
    for key in rounded:
        assert (result.pop(key) - whole[key]).abs().max() <= 1e-6 * whole[key].max()
    same(result, {key: value for key, value in whole.items() if key not in rounded})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("variable", ["DEPTH_LIB_PROMPTS_PER_JOB", "DEPTH_LIB_DEADLINE"])
def test_a_setting_that_is_no_number_is_named(llm, loopback, monkeypatch, variable):  # noqa: F811
    monkeypatch.setenv(variable, "many")
    with pytest.raises(NotReady, match=f"{variable} is 'many'"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)


def test_every_probe_is_one_small_job(loopback):  # noqa: F811
    """Of 32 blocks, with the model's check in the same job; ids of a real vocabulary are a few digits longer."""
    llm = loopback.model("loopback/deep")
    for probe in FIVE:
        since = len(loopback.asked()["log"])
        EVERY[probe](llm, remote=loopback.host)
        (job,) = loopback.requests("POST", "/request", since)
        (download,) = loopback.requests("GET", "/results", since)
        assert int(job["headers"]["loopback-payload"]) < 20_000 and download["bytes"] < 1_000_000


class Sent(Exception):
    """Carries the request that would have been sent."""


def realistic(text):
    """The ids of a text in a vocabulary of Llama 3's size, one per word or sign; a word has one id."""
    return [zlib.crc32(word.encode()) % 128_256 for word in re.findall(r"\w+|[^\w\s]", text)]


@pytest.mark.parametrize("probe", FIVE)
def test_ten_real_prompts_are_one_request_under_20_kb(loopback, monkeypatch, probe):  # noqa: F811
    """GSM8K's own first problems, and the model's check in the same job."""
    prompts = [realistic(text) for text in dl.load_prompts("gsm8k", 10, source="sample")]
    assert sum(map(len, prompts)) > 1_500
    monkeypatch.setattr(api, "tokenize", lambda llm, texts: prompts)
    monkeypatch.setattr(tokens, "tokenize", lambda llm, texts: prompts)
    monkeypatch.setattr(api, "answer_span", lambda llm, *texts: (prompts[0][:60], [57, 58, 59], ["?"] * 60))

    def send(backend):
        raise Sent(backend.blob)

    monkeypatch.setattr(JobBackend, "submit_job", send)
    with pytest.raises(Sent) as sent:
        EVERY[probe](loopback.model("loopback/deep"), remote=loopback.host)
    print(probe, len(sent.value.args[0]))
    assert 5_000 < len(sent.value.args[0]) < 20_000
