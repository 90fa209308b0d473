"""NDIF's whole server on one machine without a GPU, and the five probes of toy-8l through its HTTP side, queue, Ray,
sandbox and object store, held against toy-8l here.

    sudo apt install redis-server; pip install -e ".[dev]" "ndif[api,ray]==0.1.2" "ray[client]" "moto[server]"
    python -m tests.remote.whole_server FOLDER

On an otherwise idle machine: Ray gives up if it has not started after 30 seconds. FOLDER is for logs. All listens on
127.0.0.1, and is stopped at the end.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from nnsight.modeling.huggingface import _ID_CACHE

import depth_lib as dl
from tests.calls import EVERY, FIVE
from tests.remote.conditions import differences

HOST, REDIS, STORE, RAY, DASHBOARD, CLIENTS = "http://127.0.0.1:8001", 6390, 9010, 6385, 8265, 10001
RESOURCES = {"head": 10, "cuda_memory_bytes": 8_000_000_000, "cpu_memory_bytes": 8_000_000_000}
HERE, LOCAL = Path(__file__).parent, "127.0.0.1"
SETTINGS = {
    "PYTHONPATH": str(HERE),
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "RAY_ADDRESS": f"{LOCAL}:{RAY}",
    "RAY_AUTH_MODE": "disabled",  # of which ndif 0.1.2 knows nothing
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NDIF_REDIS_URL": f"redis://{LOCAL}:{REDIS}/",
    "NDIF_OBJECT_STORE_URL": f"http://{LOCAL}:{STORE}",
    "NDIF_RAY_ADDRESS": f"ray://{LOCAL}:{CLIENTS}",
    "NDIF_CONTROLLER_IMPORT_PATH": "on_cpu.Controller",
    "NDIF_DEFAULT_MODEL_ACTOR_CLASS": "on_cpu.Actor",
    "NDIF_DEFAULT_PADDING_BIAS": "0",
    "NDIF_SANDBOX_POOL_SIZE": "1",
}
PYTHON = f"exec {sys.executable} -m"
SERVICES = {
    "redis": f"exec redis-server --bind {LOCAL} --port {REDIS} --save '' --daemonize no",
    "store": f"{PYTHON} moto.server -H {LOCAL} -p {STORE}",
    "ray": f"{PYTHON} ray.scripts.scripts start --head --block --num-cpus 8 --num-gpus 1 --node-ip-address {LOCAL} "
    f"--port {RAY} --ray-client-server-port {CLIENTS} --resources '{json.dumps(RESOURCES)}' --disable-usage-stats "
    f"--include-dashboard=true --dashboard-host={LOCAL} --dashboard-port={DASHBOARD} --temp-dir FOLDER/ray "
    "--dashboard-agent-listen-port 52365 --dashboard-agent-grpc-port 52366 --runtime-env-agent-port 52367 "
    "--metrics-export-port 8080",
    "controller": f"{PYTHON} ndif.services.ray.deployments.controller.controller",
    "api": f"{PYTHON} gunicorn --config python:ndif.services.api.gunicorn_conf --bind {LOCAL}:8001 "
    "ndif.services.api.app:app",
}


@contextlib.contextmanager
def server(folder):
    environment = os.environ | SETTINGS | {"NDIF_HOME": str(folder)}
    environment |= {f"NDIF_OBJECT_STORE_{name}_KEY": "any" for name in ("ACCESS", "SECRET")}
    started = []
    try:
        for name, command in SERVICES.items():
            command = command.replace("FOLDER", str(folder))
            with open(folder / f"{name}.log", "wb") as log:
                how = {"shell": True, "env": environment, "stdout": log, "stderr": log, "start_new_session": True}
                started.append(subprocess.Popen(command, **how))
            if name == "ray":  # which the controller finds by what the dashboard says
                until(f"http://{LOCAL}:{DASHBOARD}", started)
        until(f"{HOST}/connected", started)
        yield
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until(url, started, seconds=300):
    """Wait for an answer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not any(process.poll() for process in started):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).is_success:
                return
        time.sleep(0.5)
    sys.exit(f"no answer from {url}: the logs say why")


def main():
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is stopped
    start = time.monotonic()
    with server(folder):
        print(f"NDIF is ready after {time.monotonic() - start:.0f} s", flush=True)
        here = dl.load_model("toy-8l", dtype="bfloat16")
        path = str(Path(dl.__file__).parent / "embedded/toy-8l")
        _ID_CACHE[path] = path  # its name on this server
        there = dl.load_model(path, remote=HOST)
        failed = False
        for probe in (*FIVE[:-1], "increments"):  # no gradient leaves a sandbox
            start = time.monotonic()
            result = EVERY[probe](there, remote=HOST)
            seconds = time.monotonic() - start
            unequal = differences(result, EVERY[probe](here))
            failed |= bool(unequal)
            print(f"{probe:30} {seconds:5.1f} s  {', '.join(unequal) or 'equal bit for bit'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
