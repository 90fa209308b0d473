"""The loopback server as tests use it: started once a process, its faults switched, its log read."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch
from nnsight.modeling.huggingface import _ID_CACHE
from transformers import LlamaConfig, LlamaForCausalLM

import depth_lib as dl
from depth_lib.embedded import toy_path
from depth_lib.remote import Patience, journal, preflight
from tests.families import SHAPE, build, save_family
from tests.tiny_tokenizers import VOCABULARY_SIZE, char_tokenizer

KEY = "loopback-key-5f1c"
_SHARED = None  # one server for all test modules of a process


class Loopback:
    """A running server: `host`, its models' folders by repo id, and what tests ask of it."""

    def __init__(self, models):
        self.models = {name: str(folder) for name, folder in models.items()}
        setup = {"models": self.models, "key": KEY}
        server = Path(__file__).with_name("server.py")
        # The server ends when its stdin does: when this process ends, however it ends. Its sums come in the order in
        # which this process adds, which with several threads is another one than with one.
        environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        self.process = subprocess.Popen(
            [sys.executable, str(server), json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._host, self._http = None, httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))

    @property
    def host(self):
        if self._host is None:
            self._host = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"
        return self._host

    def stop(self):
        self.process.stdin.close()
        self.process.wait(10)

    def model(self, name):
        """The client's model: no weights, found by its Hub name."""
        folder = self.models[name]
        _ID_CACHE[folder] = name  # instead of asking the Hub
        return dl.load_model(folder, remote=self.host)

    def here(self, name):
        """The same model on this machine, in the dtype in which the server has it."""
        return dl.load_model(self.models[name], dtype="bfloat16")

    def asked(self):
        return self._http.get(f"{self.host}/loopback").json()

    def requests(self, method, path, since=0):
        """The log's entries for a method and the beginning of a path."""
        return [
            entry
            for entry in self.asked()["log"][since:]
            if entry["method"] == method and entry["path"].startswith(path)
        ]

    def switch(self, **faults):
        self._http.post(f"{self.host}/loopback/faults", json=faults)

    @contextlib.contextmanager
    def faults(self, **faults):
        """Faults for the length of a block; yields a function that counts the jobs submitted in it."""
        since = len(self.asked()["log"])
        self.switch(**faults)
        try:
            yield lambda: len([e for e in self.requests("POST", "/request", since) if e["code"] == 200])
        finally:
            self.switch()
            preflight._PASSED.clear()

    def until(self, condition, seconds=30):
        """Wait until condition(what the server says of itself)."""
        end = time.monotonic() + seconds
        while not condition(asked := self.asked()):
            assert time.monotonic() < end, asked["jobs"]
            time.sleep(0.05)
        return asked


def shared(folder):
    """A server whose models' folders are in `folder`."""
    models = {f"loopback/{name}": save_family(name, folder / name) for name in ("llama", "gpt2", "falcon")}
    models["loopback/deep"] = folder / "deep"
    build("llama", n_blocks=32).save_pretrained(folder / "deep")
    char_tokenizer().save_pretrained(folder / "deep")
    models["loopback/toy-4l"] = toy_path("toy-4l")
    models["meta-llama/Llama-3.1-8B"] = folder / "ndif"  # by the name that params/models/ndif/ gives
    LlamaForCausalLM(LlamaConfig(**SHAPE | {"max_position_embeddings": 4096})).save_pretrained(folder / "ndif")
    char_tokenizer().save_pretrained(folder / "ndif")
    models["loopback/wide"] = folder / "wide"
    wide = LlamaConfig(vocab_size=VOCABULARY_SIZE, hidden_size=1024, intermediate_size=4096, num_hidden_layers=3)
    LlamaForCausalLM(wide).save_pretrained(folder / "wide")  # 200 MB of weights, for whoever wants to not hold them
    char_tokenizer().save_pretrained(folder / "wide")
    return Loopback(models)


@pytest.fixture(scope="session")
def loopback(tmp_path_factory):
    """The shared server; imported by test modules."""
    global _SHARED
    if _SHARED is None:
        _SHARED = shared(tmp_path_factory.mktemp("loopback"))
    return _SHARED


@pytest.fixture(autouse=True)
def hurried(monkeypatch, tmp_path_factory):
    """A key, a cache folder of the test's own, and hardly any patience."""
    monkeypatch.setenv("NDIF_API_KEY", KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patience = Patience(deadline=60, silence=2, unknown=1, shortest=0.02, longest=0.2)
    monkeypatch.setattr(Patience, "of_user", classmethod(lambda cls: patience))
    return patience


def same(result, truth):
    """Bit for bit."""
    assert result.keys() == truth.keys()
    for key, value in truth.items():
        assert torch.equal(result[key], value) if isinstance(value, torch.Tensor) else result[key] == value, key


class Client:
    """A process of its own that runs client.py; `go` lets it submit, `end` gives what it wrote."""

    def __init__(
        self,
        loopback,
        folder,
        home,
        model="loopback/llama",
        probes=("logit_lens",),
        python=sys.executable,
        packages=Path(dl.__file__).parent.parent,
        **environment,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        home.mkdir(parents=True, exist_ok=True)
        script = shutil.copy(Path(__file__).with_name("client.py"), folder / "client.py")
        self.out, self.forked = folder / "out.pt", []
        setup = {
            "host": loopback.host,
            "model": model,
            "probes": probes,
            "artifact": str(folder / "artifact.pt"),
            "out": str(self.out),
        }
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "PYTHON", "NDIF_"))
        }
        kept |= {"HOME": str(home), "HF_ENDPOINT": loopback.host, "NDIF_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
        if packages is not None:
            kept["PYTHONPATH"] = str(packages)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [str(python), script, json.dumps(setup)]
        self.process = subprocess.Popen(command, cwd=folder, env=kept | environment, text=True, **pipes)

    def go(self):
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self):
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return torch.load(self.out)

    def fork(self, artifact, out=None, **environment):
        """A run in a process of its own, forked from this one; returns its id. See one_run in client.py."""
        if not self.forked:
            assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        run = {"artifact": artifact and str(artifact), "out": str(out or self.out)} | environment
        self.process.stdin.write(json.dumps(run) + "\n")
        self.process.stdin.flush()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not (new := [int(pid) for pid in children.read_text().split() if int(pid) not in self.forked]):
            time.sleep(0.02)
        self.forked += new
        return new[0]


@pytest.fixture(scope="module")
def user(loopback, tmp_path_factory):
    """A process that has loaded the model, from which those that are killed or stopped are forked."""
    client = Client(loopback, tmp_path_factory.mktemp("client"), tmp_path_factory.mktemp("home"))
    yield client
    client.process.kill()
    client.process.communicate()


def unreturned():
    """The entries in the cache folder whose results nobody has got yet."""
    return [entry for entry in journal.entries(journal.cache_folder("jobs")) if not entry.returned]


def journal_beside(artifact):
    return [json.loads(file.read_text()) for file in Path(f"{artifact}.job").glob("*.json")]
