"""A server that repeats what was recorded: statuses made by nnsight's own schema, and a result's bytes. No model."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nnsight.schema.response import ResponseModel

JOB = "5a3e"


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
