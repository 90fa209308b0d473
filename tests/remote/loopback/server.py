"""NDIF's protocol for clients that poll, over real sockets: jobs, statuses, results by address, keys, faults, the Hub.

`python server.py '<json>'` with {"models": {repo id: folder}, "key": …}; prints {"port": …} when the worker is ready
and stops when its stdin ends, so it never outlives the tests. Models live in a process of their own, which is NDIF's
(worker.py); this one imports neither nnsight nor torch nor the package. Faults are switched at /loopback/faults:

post, poll, result: lists with one entry per request: null (no fault), an HTTP code (503, 401 …), "reset" (the socket
closes without an answer), "hang" (silence), "garbage" (200 and no JSON); post also "swallow" (the job is taken, then
the socket closes) and {"detail": …} (a 400 that says this); result also "truncated"; forget: one true for each poll of
an "unknown" job. hold: "QUEUED" or "RUNNING", jobs stay there. end: a list with what each job ends with, as an error,
instead of being run. sandbox: jobs run as those of an ordinary key, not of a trusted one. dtype: of the weights, other
than bfloat16. timeout: seconds that a job may take. february: the conditions of an older server (see february.py).

No wait is without an end: a job may take LONGEST seconds, and a worker that has not answered a while after that, or has
died, is killed and started anew, so that a job that hangs takes no other with it.
"""

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SETUP = json.loads(sys.argv[1])
MODELS, KEY = SETUP["models"], SETUP["key"]
LONGEST = 90


class Jobs:
    """All jobs, one worker, and the order they run in."""

    def __init__(self):
        self.lock = threading.Condition()
        self.statuses, self.results, self.taken, self.faults = {}, {}, queue.Queue(), {}
        self.codes, self.taken_until_now, self.printed, self.crossed = [], 0, [], None
        self.worker, self.ready, self.address = None, False, None
        threading.Thread(target=self.work, daemon=True).start()

    def fault(self, kind):
        with self.lock:
            pending = self.faults.get(kind) or []
            return pending.pop(0) if pending else None

    def tell(self, id, status, description="", **more):
        with self.lock:
            self.statuses[id] = {"id": id, "status": status, "description": description} | more
            self.lock.notify_all()

    def hold(self, state):
        with self.lock:
            self.lock.wait_for(lambda: self.faults.get("hold") != state, timeout=LONGEST)

    def read(self):
        """The worker's next answer; EOFError if it has died."""
        if not (line := self.worker.stdout.readline()):
            raise EOFError
        head = json.loads(line)
        return head, self.worker.stdout.read(head["size"])

    def start(self):
        command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.worker = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        self.read()

    def kill(self):
        """End the worker with its runners."""
        os.killpg(self.worker.pid, signal.SIGKILL)

    def work(self):
        self.start()
        self.ready = True
        while True:
            request, blob = self.taken.get()
            self.tell(request["id"], "QUEUED", "Your job is at queue position 1")
            self.hold("QUEUED")
            self.tell(request["id"], "RUNNING", "Your job has started running.")
            self.hold("RUNNING")
            if end := self.fault("end"):
                self.tell(request["id"], "ERROR", end)
                continue
            watch = threading.Timer(LONGEST + 30, self.kill)
            watch.start()
            try:
                # a thread that is ended from outside may keep a lock for ever, so no further job goes to its process
                if "execution timeout" in self.run(request, blob):
                    self.kill()
                    self.start()
            except (EOFError, OSError):
                self.tell(request["id"], "ERROR", f"The worker ended with status {self.worker.wait(10)}.")
                self.start()
            finally:
                watch.cancel()

    def run(self, request, blob):
        job = {"trusted": not self.faults.get("sandbox"), "dtype": self.faults.get("dtype", "bfloat16")}
        job |= {"timeout": self.faults.get("timeout", LONGEST), "february": bool(self.faults.get("february"))}
        job["size"] = len(blob)
        self.worker.stdin.write(json.dumps(request | job).encode() + b"\n" + blob)
        self.worker.stdin.flush()
        while True:
            response, content = self.read()
            if response["status"] == "LOG":
                self.printed.append(response["description"])
            elif response["status"] != "RUNNING":
                break
        self.crossed = response.pop("crossed")
        self.results[request["id"]] = content
        if response["data"]:
            response["data"] = f"{self.address}/{response['data']}"
        self.tell(**response)
        return response["description"] or ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, code=200, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.note(code)

    def note(self, code):
        if not self.path.startswith("/loopback"):
            JOBS.codes = [*JOBS.codes[-2:], code]
        JOBS.taken_until_now += self.path == "/request" and code == 200

    def spoil(self, kind):
        """Do what the next fault of this kind says; False if there is none, else True, or a fault for the caller."""
        fault = JOBS.fault(kind)
        if isinstance(fault, int):
            self.reply({"detail": {401: "Invalid API key."}.get(fault, "Try later.")}, fault)
        elif isinstance(fault, dict):
            self.reply(fault, 400)
        elif fault == "garbage":
            self.reply(b"<html>proxy</html>")
        elif fault in ("hang", "reset"):
            time.sleep(5 if fault == "hang" else 0)
            self.note(0)
            self.close_connection = True
        else:
            return fault or False
        return True

    def allowed(self):
        if self.headers.get("ndif-api-key") == KEY:
            return True
        self.reply({"detail": f"Invalid API key {self.headers.get('ndif-api-key')!r}."}, 401)
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/loopback":
            recent = dict(list(JOBS.statuses.items())[-20:])
            about = {"jobs": recent, "codes": JOBS.codes, "taken": JOBS.taken_until_now}
            self.reply(about | {"printed": JOBS.printed, "crossed": JOBS.crossed})
        elif path == "/whoami":
            self.reply({"email": "a@b.c", "tags": [] if JOBS.faults.get("sandbox") else ["trusted"]})
        elif path.startswith("/response/"):
            self.poll(path.removeprefix("/response/"))
        elif path.startswith("/results/"):
            self.result(path.removeprefix("/results/"))
        else:
            self.hub(path)

    def do_HEAD(self):
        self.hub(self.path.split("?")[0])

    def poll(self, job):
        if self.spoil("poll") or not self.allowed():
            return
        if job not in JOBS.statuses or JOBS.fault("forget"):
            self.reply({"detail": "Not found"}, 404)
        else:
            self.reply(JOBS.statuses[job])

    def result(self, job):
        fault = self.spoil("result")
        if fault is not True:
            content = JOBS.results[job]
            self.reply(content[: len(content) // 2] if fault == "truncated" else content)

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
        job, model = uuid.uuid4().hex, json.loads(request["model_key"].split(":", 1)[1])["repo_id"]
        if model in MODELS:
            JOBS.tell(job, "RECEIVED", "Your job has been received.")
            # the worker finds the model in its folder, without a Hub
            request["model_key"] = request["model_key"].replace(json.dumps(model), json.dumps(MODELS[model]))
            JOBS.taken.put((request | {"id": job}, blob))
        else:
            JOBS.tell(job, "ERROR", f"Model {model} is not deployed.")
        if fault == "swallow":
            self.note(0)
            self.close_connection = True
        else:
            self.reply(JOBS.statuses[job])

    def hub(self, path):
        """The Hub's answers about a hosted model: its canonical name, and its small files. Weights are not there."""
        for name, folder in MODELS.items():
            if path.lower() in (f"/api/models/{name}".lower(), f"/api/models/{name}/revision/main".lower()):
                files = [{"rfilename": file.name} for file in Path(folder).iterdir()]
                about = {"id": name, "modelId": name, "sha": "0" * 40, "siblings": files, "private": False, "tags": []}
                return self.reply(about | {"downloads": 0, "likes": 0})
            file = Path(folder) / path.rsplit("/", 1)[-1]
            if path.startswith(f"/{name}/resolve/") and file.suffix in (".json", ".jinja", ".txt") and file.is_file():
                content = file.read_bytes()
                return self.reply(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit="0" * 40)
        self.reply({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")


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


JOBS = Jobs()
HTTP = Listener(("127.0.0.1", 0), Handler)
JOBS.address = f"http://127.0.0.1:{HTTP.server_address[1]}"
threading.Thread(target=HTTP.serve_forever, daemon=True).start()
while not JOBS.ready:
    if JOBS.worker and JOBS.worker.poll() is not None:
        sys.exit("the worker did not start")
    time.sleep(0.05)
print(json.dumps({"port": HTTP.server_address[1]}), flush=True)
sys.stdin.buffer.read()
try:
    JOBS.worker.stdin.close()
    JOBS.worker.wait(5)
finally:
    JOBS.worker.kill()
    os._exit(0)
