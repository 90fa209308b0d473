"""NDIF's model actor on a CPU: what its API, queue, Redis and object store do around it is server.py's.

A job comes on stdin as one line of JSON (the client's envelope; "id", "trusted", "dtype", "timeout", "february") and
its payload; each response of the actor goes to stdout as one line of JSON, COMPLETED followed by the result. Before
the first, a line says that all is imported. It ends when stdin does.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from functools import partial
from types import SimpleNamespace

import ray
import torch
from february import conditions, shielded
from ndif.common.providers.redis import RedisProvider
from ndif.common.schema.request import BackendRequestModel
from ndif.services.ray.sandbox import host
from ndif.services.ray.sandbox.model import SandboxModelDeployment
from nnsight.modeling.huggingface import HuggingFaceModel
from pydantic import PrivateAttr

# What needs a cluster, a GPU or a Redis, when an actor is made or a job has ended.
ray.get_runtime_context = lambda: None
torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None
RedisProvider._max_publish_bytes = 0


class Crossing(host.Connection):
    """The socket to a runner, which counts what crosses it."""

    def send_raw(self, data):
        self.count("to_runner", len(data))
        super().send_raw(data)

    def recv_raw(self, timeout=None):
        data = super().recv_raw(timeout)
        self.count("from_runner", len(data))
        return data

    @classmethod
    def start(cls):
        cls.crossed = {"to_runner": 0, "from_runner": 0, "messages": 0, "largest": 0}

    def count(self, direction, n_bytes):
        self.crossed[direction] += n_bytes
        self.crossed["messages"] += 1
        self.crossed["largest"] = max(self.crossed["largest"], n_bytes)


class Request(BackendRequestModel):
    """A job, whose responses go to the HTTP side."""

    _result: bytes = PrivateAttr(b"")
    _answer: object = PrivateAttr()

    def respond(self, *args, pickled=False, **named):
        response = self.response(*args, **named).model_dump(mode="json")
        done = response["status"] == "COMPLETED"
        self._answer(self._result if done else b"", crossed=Crossing.crossed, **response)


class Actor(SandboxModelDeployment):
    """Loads on the CPU, and warms a runner only once it is asked for one."""

    def __init__(self, model_key, dtype, february):
        self.load = shielded if february else partial(HuggingFaceModel.from_model_key, dispatch=True)
        super().__init__(model_key, dtype=dtype, pool_size=0)

    def load_from_disk(self):
        model = self.load(self.model_key, dtype=self.dtype_name)
        model._module.requires_grad_(False)
        return model

    def execute(self, request):
        if not request.trusted:
            self.pool.size = 1
            self.pool.refill()
        return super().execute(request)

    def upload_bytes(self, request, data):
        request._result = data
        return f"results/{request.id}"


def main(popen):
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    logging.disable()
    host.subprocess = SimpleNamespace(**vars(host.subprocess) | {"Popen": popen})
    host.Connection, host.spawn = Crossing, partial(host.spawn, timeout=80)

    def answer(content=b"", **head):
        answers.write(json.dumps(head | {"size": len(content)}).encode() + b"\n" + content)
        answers.flush()

    loop, actors = asyncio.new_event_loop(), {}
    answer()
    while line := requests.readline():
        job = json.loads(line)
        deployment = job["model_key"], job.pop("dtype"), job.pop("february")
        if deployment not in actors:
            actors[deployment] = Actor(*deployment)
        actor = actors[deployment]
        actor.execution_timeout = job.pop("timeout")
        request = Request(payload=requests.read(job.pop("size")), **job)
        request._answer = answer
        Crossing.start()
        with conditions() if deployment[-1] else contextlib.nullcontext():
            loop.run_until_complete(actor.run(request))
    for actor in actors.values():
        actor.close()
        while actor.pool.spawning:
            time.sleep(0.05)
