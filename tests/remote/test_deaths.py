"""kill -9 of a user's process while its job is queued, while it runs, and between parts: another process goes on."""

import os
import signal

import pytest

import depth_lib as dl
from depth_lib.remote import journalled
from tests.remote.loopback.client import TEXTS
from tests.remote.loopback.fixture import hurried, journal_beside, loopback, same, user  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def truth(loopback):  # noqa: F811
    return dl.logit_lens(loopback.here("loopback/llama"), TEXTS)


@pytest.mark.parametrize("moment", ["QUEUED", "RUNNING"])
def test_a_job_whose_client_was_killed_is_found_by_the_next_process(loopback, user, truth, moment, tmp_path):  # noqa: F811
    artifact, llm = tmp_path / "a.pt", loopback.model("loopback/llama")
    with loopback.faults(hold=moment) as submitted:
        client = user.fork(artifact)
        loopback.until(
            lambda asked: any(
                asked["jobs"].get(entry["job_id"], {}).get("status") == moment for entry in journal_beside(artifact)
            )
        )
        os.kill(client, signal.SIGKILL)
        (entry,) = journal_beside(artifact)
        assert entry["state"] == "submitted" and entry["artifact"] == str(artifact)
        loopback.switch()
        with journalled(artifact):
            same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 1
    assert not journal_beside(artifact)


def test_parts_that_arrived_before_the_kill_are_not_submitted_again(loopback, user, truth, tmp_path, monkeypatch):  # noqa: F811
    artifact, llm = tmp_path / "a.pt", loopback.model("loopback/llama")
    with loopback.faults(post=[None, *[503] * 999]) as submitted:
        client = user.fork(artifact, DEPTH_LIB_PROMPTS_PER_JOB="1")
        loopback.until(
            lambda asked: (
                any(entry["state"] == "done" for entry in journal_beside(artifact))
                and any(entry["code"] == 503 for entry in asked["log"][-3:])
            )
        )
        os.kill(client, signal.SIGKILL)
        assert submitted() == 1
        loopback.switch()
        monkeypatch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
        with journalled(artifact):
            same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == len(TEXTS)
