"""kill -9 of a user's process while its job is queued, while it runs, and between parts: another process goes on."""

import pytest

import depth_lib as dl
from depth_lib.remote import beside
from tests.loopback.client import TEXTS
from tests.loopback.fixture import Client, hurried, loopback, same  # noqa: F401 (fixtures)

MOMENTS = ("QUEUED", "RUNNING", "between parts")


@pytest.fixture(scope="module")
def clients(loopback, tmp_path_factory):  # noqa: F811
    """A client for each moment, all of which start up side by side."""
    return {moment: Client(loopback, tmp_path_factory.mktemp("client"), tmp_path_factory.mktemp("home"),
                           DEPTH_LIB_PROMPTS_PER_JOB="1" if moment == "between parts" else "")
            for moment in MOMENTS}  # fmt: skip


@pytest.fixture(scope="module")
def truth(loopback):  # noqa: F811
    return dl.logit_lens(dl.load_model(loopback.models["loopback/llama"]), TEXTS)


@pytest.mark.parametrize("moment", MOMENTS[:2])
def test_a_job_whose_client_was_killed_is_found_by_the_next_process(loopback, clients, truth, moment):  # noqa: F811
    client, llm = clients[moment], loopback.model("loopback/llama")
    with loopback.faults(hold=moment) as submitted:
        client.go()
        loopback.until(lambda asked: any(asked["jobs"].get(entry["job_id"], {}).get("status") == moment
                                         for entry in client.journal()))  # fmt: skip
        client.kill()
        (entry,) = client.journal()
        assert entry["state"] == "submitted" and entry["artifact"] == str(client.artifact)
        loopback.switch()
        with beside(client.artifact):
            same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 1
    assert not client.journal()


def test_parts_that_arrived_before_the_kill_are_not_submitted_again(loopback, clients, truth, monkeypatch):  # noqa: F811
    client, llm = clients["between parts"], loopback.model("loopback/llama")
    with loopback.faults(post=[None, *[503] * 999]) as submitted:
        client.go()
        loopback.until(lambda asked: any(entry["state"] == "done" for entry in client.journal())
                       and any(entry["code"] == 503 for entry in asked["log"][-3:]))  # fmt: skip
        client.kill()
        assert submitted() == 1
        loopback.switch()
        monkeypatch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
        with beside(client.artifact):
            same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == len(TEXTS)
