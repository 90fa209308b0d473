"""The journal: there before anybody waits, kept while it is needed, and gone afterwards; kills, and several jobs."""

import contextlib
import errno
import json
import os
import random
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import depth_lib as dl
from depth_lib.data import tokens
from depth_lib.files import cache_folder, holder
from depth_lib.models.families import known
from depth_lib.probes import residual_erasure
from depth_lib.remote import NotReady, journalled
from depth_lib.remote.job import Job
from depth_lib.remote.journal import Journal
from tests.calls import EVERY, TEXTS
from tests.marks import slow
from tests.probes.comparing import TOLERANCE
from tests.remote.conditions import same
from tests.remote.loopback.fixture import KEY, journal


@pytest.fixture
def artifact(tmp_path):
    return tmp_path / "a.pt"


@pytest.fixture
def lens_there(llm, loopback):
    """A function that has the server compute what `truth` is."""
    return lambda: dl.logit_lens(llm, TEXTS, remote=loopback.host)


@pytest.fixture
def compute(llm, loopback, artifact):
    """Run a probe (default: the logit lens) on the server, journalled beside the artifact."""

    def run(probe="logit_lens"):
        with journalled(artifact):
            return EVERY[probe](llm, remote=loopback.host)

    return run


def forked(function):
    """The id of a process, a copy of this one, that runs the function and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return pid


@contextlib.contextmanager
def listening(seen):
    """The URL of a server that notes the headers of what it is asked, and knows nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            self.send_error(404)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_journal_is_complete_before_the_first_question_about_the_job(lens_there, loopback, monkeypatch, artifact):
    seen, poll = [], Job.poll
    monkeypatch.setattr(Job, "poll", lambda backend: seen.extend(journal(artifact)) or poll(backend))
    with journalled(artifact) as jobs:
        lens_there()
        assert KEY not in json.dumps(journal(artifact))
    entry, (job,) = seen[0], jobs
    assert (entry["state"], entry["host"], entry["probe"]) == ("submitted", loopback.host, "logit_lens")
    assert entry["job_id"] == job["id"] and job["id"] in loopback.jobs and job["cost"]["runtime"] > 0
    assert not list(artifact.parent.iterdir())


def test_a_job_that_the_server_took_is_in_the_journal_whatever_fails_next(lens_there, loopback, truth, monkeypatch):
    with loopback.faults() as submitted:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no terminal"):
            patch.setattr("nnsight.intervention.backends.display.StatusDisplay.update", _no_terminal)
            lens_there()
        assert [entry["state"] for entry in journal()] == ["submitted"]
        same(lens_there(), truth)
        assert submitted() == 1


@pytest.mark.parametrize("writes, submissions", [(0, 0), (1, 1), (2, 1)], ids=["before", "submitted", "done"])
def test_a_disk_that_is_full_loses_no_job_without_a_word(
    lens_there, loopback, truth, monkeypatch, capfd, writes, submissions
):
    left, write = [None] * writes, dl.remote.job.write_together

    def write_while_there_is_room(contents):
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()
        write(contents)

    with loopback.faults() as submitted:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr("depth_lib.remote.job.write_together", write_while_there_is_room)
            lens_there()
        assert submitted() == submissions
        same(lens_there(), truth)
        assert submitted() == max(1, submissions) + (writes == 1)
    assert ("never confirmed" in capfd.readouterr().err) == (writes == 1)


def _no_terminal(display, response):
    raise OSError("no terminal")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_result_that_came_but_was_not_written_is_not_computed_again(
    lens_there, loopback, truth, compute, artifact, damaged, capfd
):
    with pytest.raises(OSError, match="disk full"), journalled(artifact):
        lens_there()
        raise OSError("disk full")
    (kept,) = artifact.parent.glob("a.pt.job/*.result")
    if damaged:
        kept.write_bytes(kept.read_bytes()[:99])
    with loopback.faults(post=[500] * 9) as submitted:
        same(compute(), truth)
        assert submitted() == 0
    assert damaged == ("is damaged" in capfd.readouterr().err)


def test_a_damaged_journal_is_kept_aside_and_the_job_submitted_anew(loopback, truth, compute, artifact, capfd):
    with loopback.faults(poll=[401]), pytest.raises(NotReady):
        compute()
    (file,) = artifact.parent.glob("a.pt.job/*.json")
    file.write_text('{"settings": "12')
    with loopback.faults() as submitted:
        same(compute(), truth)
        assert submitted() == 1
    assert "unreadable-1 cannot be read; submitting a new job" in capfd.readouterr().err


def test_a_foreign_journal_cannot_send_the_key_elsewhere(loopback, truth, compute, artifact):
    with loopback.faults(poll=[401]), pytest.raises(NotReady):
        compute()
    (file,) = artifact.parent.glob("a.pt.job/*.json")
    seen = []
    with listening(seen) as elsewhere:
        entry = json.loads(file.read_text()) | {"host": elsewhere, "_result": "elsewhere"}
        file.write_text(json.dumps(entry))
        same(compute(), truth)
    assert seen == []


@pytest.mark.parametrize(
    "changed",
    [
        5,
        slow({"job_id": "../whoami"}),
        slow({"submitted": float("nan")}),
        *map(slow, ([], None, "submitted", {"job_id": 7}, {"job_id": None}, {"state": "new"})),
        *map(slow, ({"submitted": "yesterday"}, {"meta": [1]})),
    ],
)
def test_an_entry_with_a_wrong_value_is_kept_aside(loopback, truth, compute, artifact, capfd, changed):
    with loopback.faults(poll=[401]), pytest.raises(NotReady):
        compute()
    (file,) = artifact.parent.glob("a.pt.job/*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changed if isinstance(changed, dict) else changed))
    with loopback.faults() as submitted:
        same(compute(), truth)
        assert submitted() == 1
    assert "unreadable-1 cannot be read; submitting a new job" in capfd.readouterr().err


def test_ctrl_c_keeps_the_job_and_says_how_to_continue(lens_there, loopback, monkeypatch, capfd):
    def interrupted(backend):
        raise KeyboardInterrupt

    with loopback.faults() as submitted:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Job, "poll", interrupted)
            lens_there()
        printed = capfd.readouterr().err
        assert journal()[0]["job_id"] in printed and "the same call finds it again" in printed
        lens_there()
        assert submitted() == 1
    assert not journal()


def test_a_job_whose_client_was_killed_is_found_by_the_next_process(loopback, truth, compute, artifact):
    def has_started():
        jobs = [loopback.jobs.get(entry["job_id"], {}) for entry in journal(artifact)]
        return any(job.get("status") == "RUNNING" for job in jobs)

    with loopback.faults(hold="RUNNING") as submitted:
        client = forked(compute)
        loopback.until(has_started)
        kill(client)
        assert journal(artifact)[0]["state"] == "submitted"
        loopback.switch()
        same(compute(), truth)
        assert submitted() == 1
    assert not list(artifact.parent.iterdir())


def test_of_two_equal_calls_at_once_the_second_takes_the_firsts_result(lens_there, loopback, truth, monkeypatch):
    """However long the first takes to forget its job; and afterwards nothing is left for a third."""
    finish = Journal.finish
    monkeypatch.setattr(Journal, "finish", lambda *jobs: (time.sleep(0.3), finish(*jobs)))
    with loopback.faults(hold="RUNNING") as submitted:
        other = forked(lens_there)
        loopback.until(loopback.is_running)
        second = forked(lambda: same(lens_there(), truth))
        loopback.until(lambda: any(map(holder, cache_folder("jobs").glob("*.next"))))
        loopback.switch()
        assert os.waitpid(other, 0)[1] == os.waitpid(second, 0)[1] == 0
        assert submitted() == 1 and not journal()
        same(lens_there(), truth)
        assert submitted() == 2 and not journal()


@pytest.mark.parametrize(
    "probe, variable, rounded",
    [
        ("relative_contribution", "PROMPTS", None),
        slow("residual_erasure", "LAYERS", "erasure_effect"),  # by the size of a batch
    ],
)
def test_a_run_killed_between_jobs_repeats_none_that_arrived_and_equals_one_job(
    loopback, monkeypatch, compute, artifact, probe, variable, rounded
):
    with loopback.faults(dtype="float32"):  # in float32, which rounds otherwise in another batch
        whole = compute(probe)
    monkeypatch.setenv(f"DEPTH_LIB_{variable}_PER_JOB", "1")
    with loopback.faults(dtype="float32", post=[None, *[503] * 9999]) as submitted:
        client = forked(lambda: compute(probe))
        loopback.until(lambda: 503 in loopback.codes)
        kill(client)
        assert {entry["state"] for entry in journal(artifact)} == {"done", "submitting"}
        loopback.switch(dtype="float32")
        result = compute(probe)
        assert submitted() == (3 if variable == "PROMPTS" else 4)
    if rounded:
        expected = whole.pop(rounded)
        assert (result.pop(rounded) - expected).abs().max() <= TOLERANCE * expected.max()
    same(result, whole)
    assert not list(artifact.parent.iterdir())


@pytest.mark.parametrize("probe", ["layer_effects, future, layer", "residual_erasure"])
def test_ten_prompts_are_one_request_under_20_kb(llm, loopback, monkeypatch, probe):
    """Of the length of GSM8K's, in a vocabulary of Llama 3's size, and the model's check in the same job."""
    draw, payloads = random.Random(0), []
    prompts = [[draw.randrange(128_256) for _ in range(160)] for _ in range(10)]
    monkeypatch.setattr(known(llm), "checked", None)
    for module in (residual_erasure, tokens):
        monkeypatch.setattr(module, "tokenize", lambda llm, texts, *how: prompts)
    monkeypatch.setattr(
        residual_erasure, "answer_span", lambda llm, *texts: (prompts[0][:60], [57, 58, 59], ["?"] * 60)
    )
    monkeypatch.setattr(Job, "_post", lambda backend, request, blob: payloads.append(blob) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EVERY[probe](llm, remote=loopback.host)
    assert 5_000 < len(payloads[0]) < 20_000, len(payloads[0])
