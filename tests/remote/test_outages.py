"""What goes away: the server for a while or for good, its websockets, and the worker that holds the model."""

import contextlib
import os
import signal
import socket
import threading
import time

import nnsight
import pytest
from pydantic import ValidationError
from websocket import WebSocketBadStatusException, WebSocketConnectionClosedException

import depth_lib as dl
from depth_lib import remote, session
from depth_lib.remote import deployment
from tests.remote.loopback.client import TEXTS
from tests.remote.loopback.fixture import KEY, hurried, loopback, same  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def model(loopback):  # noqa: F811
    """(the client's model, the local numbers)"""
    here = loopback.here("loopback/llama")
    return loopback.model("loopback/llama"), dl.logit_lens(here, TEXTS)


class Gate:
    """An address that refuses connections until it is opened, and then passes them on to a host."""

    def __init__(self, host):
        self.target = tuple(host.removeprefix("http://").split(":"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = probe.getsockname()
        self.host = f"http://{self.address[0]}:{self.address[1]}"
        self.listener = None

    def open(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(self.address)
        self.listener.listen(16)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread that accepts
        self.listener.close()

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                there = socket.create_connection(self.target)
                for pair in ((client, there), (there, client)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def meanwhile(action):
    """Does `action` in a thread while the block runs."""
    thread = threading.Thread(target=action)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)


def running(asked):
    return any(job["status"] == "RUNNING" for job in asked["jobs"].values())


def test_refused_connections_are_tried_again_until_somebody_listens(model, loopback):  # noqa: F811
    llm, truth = model
    gate = Gate(loopback.host)
    with meanwhile(lambda: (time.sleep(0.7), gate.open())):
        same(dl.logit_lens(llm, TEXTS, remote=gate.host), truth)
    gate.close()


def test_a_host_where_nobody_listens_is_named_after_a_while(model, loopback):  # noqa: F811
    llm, _ = model
    with pytest.raises(remote.ServerUnreachable, match="ConnectError.*check the host"):
        dl.logit_lens(llm, TEXTS, remote=Gate(loopback.host).host)


def test_a_server_that_is_gone_for_a_while_in_mid_job_is_waited_for(model, loopback):  # noqa: F811
    llm, truth = model
    gate = Gate(loopback.host)
    gate.open()

    def outage():
        loopback.until(running)
        gate.close()
        time.sleep(0.7)
        loopback.switch()
        gate.open()

    with loopback.faults(hold="RUNNING") as submitted:
        with meanwhile(outage):
            same(dl.logit_lens(llm, TEXTS, remote=gate.host), truth)
        assert submitted() == 1
    gate.close()


def test_a_server_that_is_gone_for_long_in_mid_job_is_named_and_a_rerun_finds_the_job(model, loopback):  # noqa: F811
    llm, truth = model
    gate = Gate(loopback.host)
    gate.open()
    with loopback.faults(hold="RUNNING") as submitted:
        with meanwhile(lambda: (loopback.until(running), gate.close())):
            with pytest.raises(remote.ServerUnreachable, match="ConnectError") as caught:
                dl.logit_lens(llm, TEXTS, remote=gate.host)
        assert caught.value.host == gate.host
        loopback.switch()
        gate.open()
        same(dl.logit_lens(llm, TEXTS, remote=gate.host), truth)
        assert submitted() == 1
    gate.close()


@pytest.mark.parametrize(
    "fault, nnsights",
    [("refuse", WebSocketBadStatusException), ("close", ValidationError), ("cut", WebSocketConnectionClosedException)],
)
def test_a_websocket_that_fails_does_not_matter_as_none_is_opened(model, loopback, monkeypatch, fault, nnsights):  # noqa: F811
    """nnsight's own client, which waits at one, shows that the fault is there."""
    llm, truth = model
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", KEY)
    monkeypatch.setattr("nnsight.CONFIG.APP.REMOTE_LOGGING", False)
    since = len(loopback.asked()["log"])
    with loopback.faults(socket=fault):
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert not loopback.requests("GET", "/subscribe", since)
        with pytest.raises(nnsights):
            _by_nnsight(llm, loopback.host)


def _by_nnsight(llm, host):
    with llm.session(remote=host):
        result = nnsight.save(_sleep(llm, 0))
    return result


def _sleep(llm, seconds):
    time.sleep(seconds)
    return {"slept": seconds}


def test_the_workers_death_is_the_jobs_error_and_a_rerun_completes(loopback):  # noqa: F811
    llm, outcome = loopback.model("loopback/llama"), {}

    def client():
        try:
            session.run(_sleep, llm, 20, remote=loopback.host)
        except remote.JobFailed as error:
            outcome["error"] = error

    with meanwhile(client):
        before = loopback.until(running)
        time.sleep(0.3)
        os.kill(before["worker"], signal.SIGKILL)
    assert "process died" in outcome["error"].server_text
    assert loopback.asked()["worker"] != before["worker"]
    with loopback.faults() as submitted:
        assert session.run(_sleep, llm, 0, remote=loopback.host) == {"slept": 0}
        assert submitted() == 1


def test_parts_that_arrived_before_the_workers_death_are_not_computed_again(model, loopback, monkeypatch):  # noqa: F811
    llm, truth = model
    monkeypatch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
    real, parts = deployment.complete, []

    def complete(*request):
        parts.append(request)
        if len(parts) == 2:
            loopback.switch(hold="RUNNING")
        return real(*request)

    def kill():
        loopback.until(running)
        os.kill(loopback.asked()["worker"], signal.SIGKILL)
        loopback.switch()

    monkeypatch.setattr(deployment, "complete", complete)
    with loopback.faults() as submitted:
        with meanwhile(lambda: (loopback.until(lambda _: len(parts) == 2), kill())):
            with pytest.raises(remote.JobFailed, match="process died"):
                dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 2
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), truth)
        assert submitted() == 2 + len(TEXTS) - 1
