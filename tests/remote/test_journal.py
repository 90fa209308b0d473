"""The journal: there before anybody waits, kept while it is needed, and gone afterwards."""

import _thread
import json
import signal
import threading

import pytest

import depth_lib as dl
from depth_lib.remote import RequestRefused, journal, journalled
from depth_lib.remote.server import Server
from tests.remote.loopback.client import TEXTS
from tests.remote.loopback.fixture import KEY, hurried, loopback, same, unreturned  # noqa: F401 (fixtures)


def test_the_journal_is_complete_before_the_first_question_about_the_job(loopback, monkeypatch, tmp_path):  # noqa: F811
    seen, ask = [], Server.poll

    def poll(server, job_id):
        seen.extend(json.loads(file.read_text()) for file in tmp_path.glob("a.pt.job/*.json"))
        return ask(server, job_id)

    monkeypatch.setattr(Server, "poll", poll)
    with journalled(tmp_path / "a.pt"):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=loopback.host)
        assert KEY not in "".join(file.read_text() for file in tmp_path.glob("a.pt.job/*.json"))
    first = seen[0]
    assert first["state"] == "submitted" and first["job_id"] in loopback.asked()["jobs"]
    assert first["host"] == loopback.host and first["probe"] == "logit_lens" and len(first["settings"]) == 16
    assert first["artifact"] == str(tmp_path / "a.pt")


def test_a_result_that_came_but_was_not_written_is_not_computed_again(loopback, tmp_path):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with pytest.raises(OSError, match="disk full"), journalled(tmp_path / "a.pt"):
        first = dl.logit_lens(llm, TEXTS, remote=loopback.host)
        raise OSError("disk full")
    with loopback.faults(post=[500] * 9) as submitted, journalled(tmp_path / "a.pt"):
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), first)
        assert submitted() == 0


def test_other_settings_are_another_job(loopback, tmp_path):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults() as submitted, journalled(tmp_path / "a.pt"):
        first = dl.logit_lens(llm, TEXTS, remote=loopback.host)
        dl.logit_lens(llm, TEXTS[:2], remote=loopback.host)
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), first)
        assert submitted() == 2


def test_without_an_artifact_the_journal_is_in_the_cache_folder_until_the_result_is_returned(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults(poll=[401]), pytest.raises(RequestRefused):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    assert [entry.state for entry in unreturned()] == ["submitted"]
    with loopback.faults() as submitted:
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 0
    assert not unreturned()


def test_a_returned_result_is_for_who_asked_before_and_goes_after_some_minutes(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/llama")
    dl.logit_lens(llm, TEXTS, remote=loopback.host)
    with loopback.faults() as submitted:  # who asks now wants a new one
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1
        (entry,) = journal.entries(journal.cache_folder("jobs"))
        with journal.Entry.held(entry.settings, entry.returned - 1, None, probe="", host="", model="") as found:
            assert found.result()
        monkeypatch.setattr(journal, "_SHARED_FOR", 0)
        dl.logit_lens(llm, TEXTS[:1], remote=loopback.host)
    assert entry.settings not in {left.settings for left in journal.entries(journal.cache_folder("jobs"))}


def test_a_damaged_journal_is_kept_aside_and_the_job_submitted_anew(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults(poll=[401]), pytest.raises(RequestRefused):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    (file,) = journal.cache_folder("jobs").glob("*.json")
    file.write_text('{"settings": "12')
    with loopback.faults() as submitted, pytest.warns(UserWarning, match="could not be read"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1
    assert file.with_name(file.name + ".unreadable-1").exists()


def test_ctrl_c_keeps_the_job_and_says_how_to_continue(loopback, capfd):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults(hold="RUNNING") as submitted:
        noticed = threading.Event()

        def press():  # again after a while: an interrupt inside a finaliser is swallowed by the interpreter
            loopback.until(lambda asked: any(job["status"] == "RUNNING" for job in asked["jobs"].values()))
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
        said = capfd.readouterr().err
        (job,) = [entry.job_id for entry in unreturned()]
        assert job in said and "the same call picks it up" in said
        loopback.switch()
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1
