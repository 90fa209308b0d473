"""NDIF's protocol over real sockets: jobs, statuses, results by address or inline, keys, a few Hub routes, and faults.

`python server.py '<json>'` with {"models": {repo id: folder}, "key": …}; prints {"port": …} when the models are loaded
and stops when its stdin ends, so it never outlives the tests. Models live in a process of their own (worker.py); this
one imports neither nnsight nor torch nor the package. Faults are switched at /loopback/faults:

post, poll, result, status: lists with one entry a request: null (no fault), an HTTP code (503, 401 …), "reset" (the
socket closes without an answer), "hang" (silence), "garbage" (200 and no JSON); post also "swallow" (the job is taken,
then the socket closes); result also "truncated"; forget: a list with one true for each poll of an "unknown" job.
hold: "QUEUED" or "RUNNING", jobs stay there. state: of the deployments. absent: models not listed. env: of the server.
socket: "refuse" answers its handshake with 403, "close" and "cut" end a subscription after its first status. inline:
its results come as a binary frame. friendly, autocast, shielded: how jobs run (see worker.py).
"""

import hashlib
import json
import os
import queue
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import websocket  # noqa: E402 (this folder's, not the client of that name)
from jobs import Jobs  # noqa: E402

SETUP = json.loads(sys.argv[1])
MODELS, KEY = SETUP["models"], SETUP["key"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, code=200, kind="application/json", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.note(code, len(body))

    def note(self, code, size=0):
        JOBS.log.append(
            {
                "method": self.command,
                "path": self.path,
                "code": code,
                "bytes": size,
                "headers": {k.lower(): v for k, v in self.headers.items()},
            }
        )

    def spoil(self, kind):
        """Do what the next fault of this kind says; False if there is none."""
        fault = JOBS.fault(kind)
        if fault is None:
            return False
        if isinstance(fault, int):
            self.reply(
                {"detail": {401: "Invalid API key.", 400: "The request is malformed."}.get(fault, "Try later.")}, fault
            )
        elif fault == "garbage":
            self.reply(b"<html>proxy</html>", kind="text/html")
        elif fault == "hang":
            time.sleep(SETUP.get("hang", 5))
            self.close_connection = True
        elif fault == "reset":
            self.note(0)
            self.close_connection = True
        else:
            return fault
        return True

    def allowed(self):
        if self.headers.get("ndif-api-key") == KEY:
            return True
        self.reply({"detail": f"Invalid API key {self.headers.get('ndif-api-key')!r}."}, 401)
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/subscribe":
            return self.subscribe()
        if path == "/loopback":
            return self.reply({"log": JOBS.log, "printed": JOBS.printed, "worker": JOBS.ready, "jobs": JOBS.statuses})
        if path == "/status":
            return self.spoil("status") or self.reply({"deployments": deployments()})
        if path == "/env":
            return self.reply(JOBS.faults.get("env") or JOBS.env)
        if path.startswith("/response/"):
            return self.poll(path.removeprefix("/response/"))
        if path.startswith("/results/"):
            return self.result(path.removeprefix("/results/"))
        self.hub(path)

    def do_HEAD(self):
        self.hub(self.path.split("?")[0])

    def poll(self, job):
        if self.spoil("poll") or not self.allowed():
            return
        status = JOBS.statuses.get(job)
        if status is None or JOBS.fault("forget"):
            return self.reply({"detail": "Not found"}, 404)
        self.reply(status)

    def result(self, job):
        fault = self.spoil("result")
        if fault is True:
            return
        content = JOBS.results.get(job)
        if content is None:
            return self.reply({"detail": "Not found"}, 404)
        self.reply(content[: len(content) // 2] if fault == "truncated" else content, kind="application/octet-stream")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/loopback/faults":
            with JOBS.lock:
                JOBS.faults = json.loads(body)
                JOBS.lock.notify_all()
            return self.reply({})
        fault = self.spoil("post")
        if fault is True or not self.allowed():
            return
        request, blob = parts_of(self.headers["Content-Type"], body)
        self.headers["Loopback-Payload"] = str(len(blob))
        job = uuid.uuid4().hex
        model = json.loads(request["model_key"].split(":", 1)[1])["repo_id"]
        if request["session_id"]:
            JOBS.listeners[job] = [SUBSCRIPTIONS[request["session_id"]]]
        if model not in MODELS:
            JOBS.tell(job, "ERROR", f"Model {model} is not deployed.")
        else:
            JOBS.tell(job, "RECEIVED", "Your job has been received.")
            details = {"model": model, "env": request["env"], "compress": request["compress"]}
            JOBS.taken.put((job, details, blob))
        if fault == "swallow":
            self.note(0)
            self.close_connection = True
            return
        self.reply({"id": job, "status": "RECEIVED", "description": ""} if model in MODELS else JOBS.statuses[job])

    def subscribe(self):
        if not self.allowed():
            return
        self.close_connection = True
        if JOBS.faults.get("socket") == "refuse":
            return self.reply({"detail": "No websockets here."}, 403)
        websocket.accept(self)
        session = uuid.uuid4().hex
        messages = SUBSCRIPTIONS[session] = queue.Queue()
        websocket.send(self, json.dumps({"session_id": session}))
        while True:
            status, frame = messages.get()
            if frame is not None and JOBS.faults.get("inline"):
                websocket.send(self, frame, websocket.BINARY)
            else:
                websocket.send(self, json.dumps(status))
            if JOBS.faults.get("socket") == "close":
                websocket.send(self, b"\x03\xe8", websocket.CLOSE)
            if JOBS.faults.get("socket") or status["status"] in ("COMPLETED", "ERROR"):
                return

    def hub(self, path):
        """The Hub's answers about a hosted model: its canonical name, and its small files. Weights are not there."""
        for name, folder in MODELS.items():
            if path.lower() in (f"/api/models/{name}".lower(), f"/api/models/{name}/revision/main".lower()):
                files = [{"rfilename": file.name} for file in Path(folder).iterdir()]
                return self.reply(
                    {
                        "id": name,
                        "modelId": name,
                        "sha": "0" * 40,
                        "siblings": files,
                        "private": False,
                        "downloads": 0,
                        "likes": 0,
                        "tags": [],
                    }
                )
            file = Path(folder) / path.rsplit("/", 1)[-1]
            if path.startswith(f"/{name}/resolve/") and file.suffix in (".json", ".jinja", ".txt") and file.is_file():
                content = file.read_bytes()
                return self.reply(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit="0" * 40)
        self.reply({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")


def deployments():
    state = JOBS.faults.get("state") or ("RUNNING" if JOBS.ready else "DEPLOYING")
    hosted = [name for name in MODELS if name not in (JOBS.faults.get("absent") or [])]
    return {
        name: {
            "repo_id": name,
            "revision": None,
            "task": "text-generation",
            "deployment_level": "HOT",
            "application_state": state,
            "trust_remote_code": False,
            "model_key": "nnsight.modeling.transformers.TransformersModel:"
            + json.dumps({"repo_id": name, "revision": None, "task": "text-generation"}),
        }
        for name in hosted
    }


def parts_of(content_type, body):
    """The envelope and the payload of a multipart form."""
    boundary = b"--" + content_type.partition("boundary=")[2].encode()
    parts = {}
    for part in body.split(boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        parts[head.partition(b'name="')[2].partition(b'"')[0]] = content.removesuffix(b"\r\n")
    return json.loads(parts[b"data"]), parts[b"blob"]


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # clients that hang up are what the tests are about


SUBSCRIPTIONS, JOBS = {}, Jobs(MODELS)
HTTP = Listener(("127.0.0.1", 0), Handler)
JOBS.address = f"http://127.0.0.1:{HTTP.server_address[1]}"
threading.Thread(target=HTTP.serve_forever, daemon=True).start()
while not JOBS.ready:
    if JOBS.worker and JOBS.worker.poll() is not None:
        sys.exit("the worker did not start")
    time.sleep(0.05)
print(json.dumps({"port": HTTP.server_address[1]}), flush=True)
sys.stdin.buffer.read()
os.kill(JOBS.worker.pid, 9)
os._exit(0)
