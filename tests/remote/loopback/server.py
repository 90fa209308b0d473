"""NDIF's protocol for clients that poll, over real sockets, in threads of the tests' process: jobs, statuses, results
by address, keys, faults, the Hub. Models are in a process of their own, which is NDIF's (worker.py).

Faults, as `Loopback.faults` takes them:

post, poll, result: lists with one entry per request: None (no fault), an HTTP code (503, 401 …), (body, code), "reset"
(the socket closes without an answer) or "hang" (silence); post also "swallow" (the job is taken, then the socket
closes); result also "truncated", "moved" (a redirect) or "no result" (an archive without one); forget: one true for
each poll of an "unknown" job. hold: "QUEUED" or "RUNNING", jobs stay there. end: a list with what each job ends with,
as an error, instead of being run. sandbox: jobs run as those of an ordinary key, not of a trusted one. dtype: of the
weights, other than bfloat16. timeout: seconds that a job may take. key: the one that is allowed. packages: what /env
has. identity: what /whoami answers.

A job may take LONGEST seconds. A worker that has died, or whose job took too long, is started anew.
"""

import contextlib
import email
import functools
import hashlib
import io
import json
import multiprocessing
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

import torch
import zstandard
from nnsight.modeling.huggingface import _ID_CACHE

import depth_lib as dl

KEY = "loopback-key-5f1c"
LONGEST = 90


def _without_result():
    buffer = io.BytesIO()
    torch.save({"other": torch.ones(3)}, buffer)
    return zstandard.ZstdCompressor().compress(buffer.getvalue())


NO_RESULT = _without_result()


class Worker:
    """The process of worker.py, and the pipe to it."""

    def __init__(self):
        self.pipe, theirs = multiprocessing.Pipe()
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(theirs.fileno())]
        # its sums come in the order in which this process adds, which with several threads is another than with one
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(torch.get_num_threads())}
        how = {"pass_fds": [theirs.fileno()], "stdout": subprocess.DEVNULL, "start_new_session": True}
        self.process = subprocess.Popen(command, env=environment, **how)
        theirs.close()

    def run(self, *job):
        """The last response to a job, the bytes of its result, and what crossed the sandbox's socket."""
        self.pipe.send(job)
        while True:
            answer = self.pipe.recv()
            if answer[0]["status"] in ("COMPLETED", "ERROR"):
                return answer

    def kill(self):
        """End the worker with its runners; the other end of the pipe ends with it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Loopback(ThreadingHTTPServer):
    """A running server: its `host`, its models' folders by repo id, and what tests ask of it and switch."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, models):
        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"http://127.0.0.1:{self.server_port}"
        self.models = {name: str(folder) for name, folder in models.items()}
        self.jobs, self.results, self.taken = {}, {}, queue.Queue()  # statuses and results by id; requests and payloads
        self.n_jobs, self.n_posts, self.codes = 0, 0, []  # jobs taken; requests; codes answered since the last switch
        self.crossed = None  # the socket of the sandbox by the last job: bytes in each direction, and messages
        self.switches = {}  # the faults that are on
        for loop in (self.serve_forever, self.work):
            threading.Thread(target=loop, daemon=True).start()

    def handle_error(self, *_):
        pass  # clients that hang up are what the tests are about

    def model(self, name):
        """The client's model: no weights, found by its Hub name."""
        folder = self.models[name]
        _ID_CACHE[folder] = name  # instead of asking the Hub
        return dl.load_model(folder, remote=self.host)

    @functools.cache  # noqa: B019 (a server lives as long as its process)
    def here(self, name, dtype="bfloat16"):
        """The same model on this machine, in the dtype in which the server has it."""
        return dl.load_model(self.models[name], dtype=dtype)

    def switch(self, **faults):
        self.switches, self.codes = faults, []

    @contextlib.contextmanager
    def faults(self, **faults):
        """Faults for the length of a block; yields a function that counts the jobs submitted in it."""
        before = self.n_jobs
        self.switch(**faults)
        try:
            yield lambda: self.n_jobs - before
        finally:
            self.switch()

    def fault(self, kind):
        """The next fault of this kind; None if there is none."""
        pending = self.switches.get(kind)
        return pending.pop(0) if pending else None

    def until(self, condition, seconds=120):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, [job["status"] for job in self.jobs.values()]
            time.sleep(0.02)

    def is_running(self):
        return any(job["status"] == "RUNNING" for job in self.jobs.values())

    def take(self, request, payload):
        """The first status of a new job."""
        job, model = uuid.uuid4().hex, json.loads(request["model_key"].partition(":")[2])["repo_id"]
        # the worker finds the model in its folder, without a Hub
        request["model_key"] = request["model_key"].replace(json.dumps(model), json.dumps(self.models[model]))
        self.n_jobs += 1
        self.tell(job, "RECEIVED", "Your job has been received.")
        self.taken.put(request | {"id": job, "payload": payload})
        return self.jobs[job]

    def tell(self, job, status, description):
        self.jobs[job] = {"id": job, "status": status, "description": description}

    def work(self):
        worker = None
        while True:
            if worker is None:
                worker = Worker()
                worker.pipe.recv()  # all is imported
            request = self.taken.get()
            job = request["id"]
            for state in ("QUEUED", "RUNNING"):
                self.tell(job, state, "Your job is at queue position 1")
                while self.switches.get("hold") == state:
                    time.sleep(0.02)
            if end := self.fault("end"):
                self.tell(job, "ERROR", end)
                continue
            request["trusted"] = not self.switches.get("sandbox")
            dtype, timeout = self.switches.get("dtype", "bfloat16"), self.switches.get("timeout", LONGEST)
            try:
                response, self.results[job], self.crossed = worker.run(request, dtype, timeout)
            except (EOFError, OSError):
                self.tell(job, "ERROR", f"The worker ended with status {worker.process.wait(10)}.")
                worker = None
                continue
            if response["data"]:
                response["data"] = f"{self.host}/{response['data']}"
            self.jobs[job] = response
            # a thread that is ended from outside may keep a lock for ever, so no further job goes to its process
            if "execution timeout" in (response["description"] or ""):
                worker.kill()
                worker = None


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
        self.server.codes.append(code)

    def spoil(self, kind):
        """Do what the next fault of this kind says; False if there is none, else True, or a fault for the caller."""
        fault = self.server.fault(kind)
        if isinstance(fault, int):
            self.reply({"detail": {401: "Invalid API key."}.get(fault, "Try later.")}, fault)
        elif isinstance(fault, tuple):
            self.reply(*fault)
        elif fault in ("hang", "reset"):
            time.sleep(5 if fault == "hang" else 0)
            self.close_connection = True
        else:
            return fault or False
        return True

    def allowed(self):
        if self.headers.get("ndif-api-key") == self.server.switches.get("key", KEY):
            return True
        self.reply({"detail": f"Invalid API key {self.headers.get('ndif-api-key')!r}."}, 401)
        return False

    def do_GET(self):
        path = self.path.partition("?")[0]
        kind, _, name = path[1:].partition("/")
        if kind == "whoami":
            known = {"email": "a@b.c", "tags": [] if self.server.switches.get("sandbox") else ["trusted"]}
            self.reply(self.server.switches.get("identity", known))
        elif kind == "env" and "packages" in self.server.switches:
            self.reply({"python_version": "3.12.1", "packages": self.server.switches["packages"]})
        elif kind == "response":
            self.poll(name)
        elif kind == "results":
            self.result(name)
        else:
            self.hub(path)

    do_HEAD = do_GET

    def poll(self, job):
        if self.spoil("poll") or not self.allowed():
            return
        if job not in self.server.jobs or self.server.fault("forget"):
            self.reply({"detail": "Not found"}, 404)
        else:
            self.reply(self.server.jobs[job])

    def result(self, job):
        fault = self.spoil("result")
        if fault == "moved":
            self.reply(b"", 307, Location=f"{self.server.host}/results/{job}?again")
        elif fault is not True:
            content = NO_RESULT if fault == "no result" else self.server.results[job]
            self.reply(content[: len(content) // 2] if fault == "truncated" else content)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.n_posts += 1
        fault = self.spoil("post")
        if fault is True or not self.allowed():
            return
        form = email.message_from_bytes(f"Content-Type: {self.headers['Content-Type']}\n\n".encode() + body)
        request, payload = (part.get_payload(decode=True) for part in form.get_payload())
        status = self.server.take(json.loads(request), payload)
        if fault == "swallow":
            self.close_connection = True
        else:
            self.reply(status)

    def hub(self, path):
        """The Hub's answers about a hosted model: its canonical name, and its small files. Weights are not there."""
        for name, folder in self.server.models.items():
            if path.lower() in (f"/api/models/{name}".lower(), f"/api/models/{name}/revision/main".lower()):
                files = [{"rfilename": file.name} for file in Path(folder).iterdir()]
                about = {"id": name, "modelId": name, "sha": "0" * 40, "siblings": files, "private": False, "tags": []}
                return self.reply(about | {"downloads": 0, "likes": 0})
            file = Path(folder) / path.rsplit("/", 1)[-1]
            if path.startswith(f"/{name}/resolve/") and file.suffix in (".json", ".jinja", ".txt") and file.is_file():
                content = file.read_bytes()
                return self.reply(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit="0" * 40)
        self.reply({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
