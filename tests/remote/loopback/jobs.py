"""The loopback server's jobs: queued, run by a worker one after the other, told to whoever listens."""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path


class Jobs:
    """All jobs, one worker, and the order they run in."""

    def __init__(self, models):
        self.models, self.address = models, None
        self.lock = threading.Condition()
        self.statuses, self.results, self.listeners, self.taken, self.env = {}, {}, {}, queue.Queue(), {}
        self.faults, self.log, self.printed, self.worker, self.ready = {}, [], [], None, 0
        threading.Thread(target=self.work, daemon=True).start()

    def fault(self, kind):
        with self.lock:
            pending = self.faults.get(kind) or []
            return pending.pop(0) if isinstance(pending, list) and pending else None

    def tell(self, job, status, description="", frame=None, **more):
        with self.lock:
            self.statuses[job] = {"id": job, "status": status, "description": description} | more
            for handler_queue in self.listeners.get(job, []):
                handler_queue.put((dict(self.statuses[job]), frame))
            self.lock.notify_all()

    def hold(self, state):
        with self.lock:
            self.lock.wait_for(lambda: self.faults.get("hold") != state)

    def start_worker(self):
        command = [sys.executable, "-I", str(Path(__file__).with_name("worker.py")), json.dumps(self.models)]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.worker = subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, **pipes)
        self.read(None)

    def read(self, job):
        """The worker's answer about a job; EOFError if another process has taken its place meanwhile."""
        while True:
            head = json.loads(self.worker.stdout.readline())
            parts = [self.worker.stdout.read(size) for size in head["sizes"]]
            if "ready" in head:
                self.ready, self.env = head["ready"], head["env"]
                if job is None:
                    return
                raise EOFError
            if head["id"] == job:
                return head, parts

    def work(self):
        self.start_worker()
        while True:
            job, request, blob = self.taken.get()
            self.tell(job, "QUEUED", "Your job is at queue position 1")
            self.hold("QUEUED")
            self.tell(job, "DISPATCHED")
            self.tell(job, "RUNNING", "Your job has started running.")
            self.hold("RUNNING")
            try:
                conditions = {name: bool(self.faults.get(name)) for name in ("friendly", "autocast", "shielded")}
                head = request | conditions | {"id": job, "size": len(blob)}
                self.worker.stdin.write(json.dumps(head).encode() + b"\n" + blob)
                self.worker.stdin.flush()
                answer, parts = self.read(job)
            except EOFError:
                self.tell(job, "ERROR", "The model's process died while the job was running. Please resubmit it.")
                continue
            if answer["status"] == "ERROR":
                self.tell(job, "ERROR", answer["description"])
                continue
            result, frame = parts
            if answer["printed"]:
                self.printed.append(answer["printed"])
            self.results[job] = result
            self.tell(job, "COMPLETED", "Your job has been completed.", frame, data=f"{self.address}/results/{job}")
