"""NDIF's model actor on a CPU: what its API, queue, Redis and object store do around it is server.py's.

Through the pipe to server.py comes one job at a time, (request, dtype of the weights, seconds it may take); back goes
each response of the actor, (response, bytes of the result, what crossed the sandbox's socket). Before the first, a
word says that all is imported. It ends when the other end of the pipe does.
"""

import asyncio
import contextlib
import logging
import time
from functools import partial
from types import SimpleNamespace

import ray
import torch
from ndif.common.providers.redis import RedisProvider
from ndif.common.schema.request import BackendRequestModel
from ndif.services.ray.deployments.modeling import base
from ndif.services.ray.sandbox import host
from ndif.services.ray.sandbox.model import SandboxModelDeployment
from nnsight.modeling.huggingface import HuggingFaceModel
from pydantic import PrivateAttr

# What needs a cluster, a GPU or a Redis, when an actor is made or a job has ended.
ray.get_runtime_context = lambda: None
torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None
RedisProvider._max_publish_bytes = 0
# A server of February 2026 keeps what the blocks of a request were compiled to for the requests after it.
base.block_scope = contextlib.nullcontext


class Crossing(host.Connection):
    """The socket to a runner, which counts what crosses it."""

    crossed = None

    def send_raw(self, data):
        self.count("to_runner", len(data))
        super().send_raw(data)

    def recv_raw(self, timeout=None):
        data = super().recv_raw(timeout)
        self.count("from_runner", len(data))
        return data

    def count(self, direction, n_bytes):
        self.crossed[direction] += n_bytes
        self.crossed["messages"] += 1
        self.crossed["largest"] = max(self.crossed["largest"], n_bytes)


class Request(BackendRequestModel):
    """A job, whose responses go to the HTTP side."""

    _result: bytes = PrivateAttr(b"")
    _pipe: object = PrivateAttr()

    def respond(self, *args, pickled=False, **named):
        response = self.response(*args, **named).model_dump(mode="json")
        self._pipe.send((response, self._result, Crossing.crossed))


class Actor(SandboxModelDeployment):
    """Loads on the CPU, and warms a runner only once it is asked for one."""

    def load_from_disk(self):
        model = HuggingFaceModel.from_model_key(self.model_key, dispatch=True, dtype=self.dtype_name)
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


def main(pipe, popen):
    logging.disable()
    host.subprocess = SimpleNamespace(**vars(host.subprocess) | {"Popen": popen})
    host.Connection, host.spawn = Crossing, partial(host.spawn, timeout=80)
    loop, actors = asyncio.new_event_loop(), {}
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            job, dtype, timeout = pipe.recv()
            deployment = job["model_key"], dtype
            if deployment not in actors:
                actors[deployment] = Actor(job["model_key"], dtype=dtype, pool_size=0)
            actors[deployment].execution_timeout = timeout
            request = Request(**job)
            request._pipe = pipe
            Crossing.crossed = {"to_runner": 0, "from_runner": 0, "messages": 0, "largest": 0}
            loop.run_until_complete(actors[deployment].run(request))
    for actor in actors.values():
        actor.close()
        while actor.pool.spawning:
            time.sleep(0.05)
