"""The loopback server as tests use it: started once a process, its faults switched, its log read."""

import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch
from nnsight.modeling.huggingface import _ID_CACHE
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

import depth_lib as dl
from depth_lib import embedded
from depth_lib.files import cache_folder
from depth_lib.remote import backend
from tests.families import SHAPE, build, randomise
from tests.tiny_tokenizers import char_tokenizer

KEY = "loopback-key-5f1c"
TOY = "loopback/toy-8l"
_SHARED = None  # one server for all test modules of a process


class Loopback:
    """A running server: `host`, its models' folders by repo id, and what tests ask of it."""

    def __init__(self, models):
        self.models = {name: str(folder) for name, folder in models.items()}
        setup = json.dumps({"models": self.models, "key": KEY})
        # The server ends when its stdin does: when this process ends, however it ends. Its sums come in the order in
        # which this process adds, which with several threads is another one than with one.
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        )
        self._host, self._http = None, httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), timeout=60)

    @property
    def host(self):
        if self._host is None:
            assert select.select([self.process.stdout], [], [], 200)[0], "the server did not start in 200 s"
            self._host = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"
        return self._host

    def model(self, name):
        """The client's model: no weights, found by its Hub name."""
        folder = self.models[name]
        _ID_CACHE[folder] = name  # instead of asking the Hub
        return dl.load_model(folder, remote=self.host)

    @functools.cache  # noqa: B019 (a server lives as long as its process)
    def here(self, name, dtype="bfloat16"):
        """The same model on this machine, in the dtype in which the server has it."""
        return dl.load_model(self.models[name], dtype=dtype)

    def asked(self):
        return self._http.get(f"{self.host}/loopback").json()

    def last_crossing(self):
        """What crossed the socket of the sandbox for the last job: bytes in each direction, and messages."""
        return self.asked()["crossed"]

    def switch(self, **faults):
        self._http.post(f"{self.host}/loopback/faults", json=faults)

    @contextlib.contextmanager
    def faults(self, **faults):
        """Faults for the length of a block; yields a function that counts the jobs submitted in it."""
        before = self.asked()["taken"]
        self.switch(**faults)
        try:
            yield lambda: self.asked()["taken"] - before
        finally:
            self.switch()

    def until(self, condition, seconds=120):
        """Wait until condition(what the server says of itself)."""
        end = time.monotonic() + seconds
        while not condition(asked := self.asked()):
            assert time.monotonic() < end, [job["status"] for job in asked["jobs"].values()]
            time.sleep(0.02)
        return asked


def is_running(asked):
    return any(job["status"] == "RUNNING" for job in asked["jobs"].values())


@pytest.fixture(scope="session")
def loopback(tmp_path_factory):
    """The shared server; imported by test modules."""
    global _SHARED
    if _SHARED is None:
        _SHARED = Loopback(saved_models(tmp_path_factory.mktemp("loopback")))
    return _SHARED


def saved_models(folder):
    """By name; their configs name another dtype than they run in, as many do."""
    named = LlamaForCausalLM(LlamaConfig(**SHAPE | {"max_position_embeddings": 4096}))  # as the sweep's params do
    models = {"loopback/llama": build("llama"), "loopback/gpt2": build("gpt2"), "loopback/hybrid": hybrid()}
    models["loopback/shared"] = shared()
    folders = {TOY: Path(embedded.__file__).parent / "toy-8l"}
    for name, model in (models | {"meta-llama/Llama-3.1-8B": named}).items():
        model.half().save_pretrained(folder / name)
        char_tokenizer().save_pretrained(folder / name)
        folders[name] = folder / name
    return folders


def hybrid():
    """Two blocks with linear attention and two with full attention."""
    layers = {"layer_types": ["linear_attention", "full_attention"] * 2}
    linear = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")} | {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    }
    torch.manual_seed(0)
    model = Qwen3NextForCausalLM(Qwen3NextConfig(**SHAPE | layers | linear | experts | {"head_dim": 16}))
    randomise(model)
    return model.eval()


def shared():
    """Four blocks, of which the last two read the keys and values of earlier ones."""
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64}
    heads = {"num_kv_shared_layers": 2, "head_dim": 16, "global_head_dim": 16}
    inputs = {"vocab_size_per_layer_input": SHAPE["vocab_size"], "hidden_size_per_layer_input": 8}
    torch.manual_seed(0)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**SHAPE | layers | heads | inputs))
    randomise(model)
    for block in model.model.layers:  # what multiplies h + a + m, a number that a config does not know
        block.layer_scalar.fill_(0.9)
    return model.eval()


@pytest.fixture(autouse=True)
def hurried(monkeypatch, tmp_path_factory):
    """A key, a cache folder of the test's own, and short pauses and patience, well below the time of a test."""
    assert _SHARED is None or _SHARED.process.poll() is None, "the loopback server has died"
    monkeypatch.setenv("NDIF_API_KEY", KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("DEPTH_LIB_DEADLINE", str(150 / 3600))
    monkeypatch.setattr(backend, "PAUSES", (0.02, 0.2))
    monkeypatch.setattr(backend, "SILENCE", 30)
    monkeypatch.setattr(backend, "UNKNOWN", 30)


def same(result, truth):
    """Bit for bit."""
    assert result.keys() == truth.keys()
    for key, value in truth.items():
        assert torch.equal(result[key], value) if isinstance(value, torch.Tensor) else result[key] == value, key


def journal(artifact=None):
    """What is journalled beside an artifact, or in the cache folder."""
    folder = Path(f"{artifact}.job") if artifact else cache_folder("jobs")
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
