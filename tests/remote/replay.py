"""A server that repeats what was recorded: statuses made by nnsight's own schema, and a result's bytes. No model.

`fetched` is what our client makes of it.
"""

import base64
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from nnsight.schema.response import ResponseModel

from depth_lib.remote import jobs, journal, server

JOB = "5a3e"
KEYED = 'nnsight.modeling.transformers.TransformersModel:{"repo_id": "owner/name"}'


def recorded(status, **more):
    """One status as nnsight's server side says it."""
    return ResponseModel(id=JOB, status=status, **more)


class Replay:
    """`statuses`: what polls get, one after the other, the last one for ever: a ResponseModel, or bytes as they are;
    `result`: the bytes at `address`; `submitted`: how many requests came; `keys`: the keys they came with."""

    def __init__(self):
        self.statuses, self.result, self.submitted, self.keys = [], b"", 0, []
        replay = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                if self.path == "/result":
                    return self.reply(replay.result)
                if self.path != f"/response/{JOB}":
                    return self.reply(b"{}", 404)
                status = replay.statuses.pop(0) if replay.statuses[1:] else replay.statuses[0]
                self.reply(status if isinstance(status, bytes) else status.model_dump_json().encode())

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                replay.submitted += 1
                replay.keys.append(self.headers["ndif-api-key"])
                self.reply(recorded("RECEIVED").model_dump_json().encode())

            def reply(self, body, code=200):
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.host = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.address = f"{self.host}/result"

    def completed(self, data=None, **more):
        return recorded("COMPLETED", data=self.address if data is None else data, **more)


@pytest.fixture(scope="module")
def running():
    replay = Replay()
    yield replay
    replay.server.shutdown()


@pytest.fixture
def replay(running):
    running.statuses, running.result, running.submitted, running.keys = [running.completed()], b"", 0, []
    return running


class Watched:
    """A status line that remembers."""

    def __init__(self):
        self.said = []

    show = remains = lambda self, text: self.said.append(text)


def fetched(replay, patience, accept=lambda found: None):
    """What our client makes of the replayed exchange; also its journal entry and what it said."""
    line, there = Watched(), server.Server(replay.host)
    request = jobs.Request(KEYED, {}, lambda: b"payload", accept, there, patience, line)
    with journal.Entry.held("0" * 16, 0, line.show, probe="p", host=replay.host, model=KEYED) as entry:
        return jobs.complete(request, entry), entry, line.said


def carried(replay, content, how):
    """The last status says where `content` is in one of the ways of HOW; returns it as a binary frame, if it is one."""
    replay.result, text = content, base64.b64encode(content).decode()
    data = {
        "address": None,
        "address without a host": "/result",
        "binary frame": content,
        "JSON": text,
        "JSON with a data address": f"data:application/octet-stream;base64,{text}",
    }[how]
    status = replay.completed(data)
    replay.statuses = [status.pickle() if how == "binary frame" else status]
    return status.pickle() if isinstance(data, bytes) else None


def saved(result, protocol=4, new=True):
    buffer = io.BytesIO()
    torch.save({"result": result}, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    return buffer.getvalue()
