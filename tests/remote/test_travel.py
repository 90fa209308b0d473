"""What travels to a server: source text only, nothing of this machine, and never an older version of it."""

import functools
import importlib
import os
import shutil
import sys
import venv
from pathlib import Path

import pytest
import torch
import zstandard
from nnsight.intervention.serialization import CustomCloudUnpickler
from nnsight.schema.request import RequestModel

import depth_lib as dl
from depth_lib import remote, session
from depth_lib.remote.travel import travelling
from tests.remote.loopback.client import PROBES
from tests.remote.loopback.fixture import KEY, Client, hurried, loopback, same  # noqa: F401 (fixtures)
from tests.remote.loopback.worker import IMPORTS

# Each way of having the package, as pip leaves it.
WAYS = ("plain folder", "editable", "wheel")


def have(way, home):
    """(python, folder for PYTHONPATH) of an environment in which the package is there in one of the WAYS."""
    sources = home / "code"
    shutil.copytree(Path(dl.__file__).parent, sources / "depth_lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(dl.__file__).parent.parent / "params", sources / "params", dirs_exist_ok=True)
    if way == "plain folder":
        return sys.executable, sources
    venv.create(home / "venv", symlinks=True)
    (site,) = (home / "venv").glob("lib/python*/site-packages")
    (site / "tests_own.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    metadata = site / "depth_lib-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: depth-lib\nVersion: 0.1.0\n")
    (metadata / "top_level.txt").write_text("depth_lib\n")
    (metadata / "RECORD").write_text("depth_lib/__init__.py,,\ndepth_lib-0.1.0.dist-info/METADATA,,\n")
    if way == "editable":
        (site / "__editable__.depth_lib-0.1.0.pth").write_text(f"{sources}\n")
    else:
        shutil.move(sources / "depth_lib", site / "depth_lib")
        shutil.move(sources / "params", site / "depth_lib" / "registry")
    return home / "venv" / "bin" / "python", None


@pytest.fixture(scope="module")
def clients(loopback, tmp_path_factory):  # noqa: F811
    """A finished client for each of the WAYS, and one with a model of 200 MB; they ran side by side."""
    running = {}
    for way in WAYS:
        home = tmp_path_factory.mktemp("home") / "alice"
        python, packages = have(way, home)
        client = Client(loopback, home / "work", home, probes=tuple(PROBES), python=python, packages=packages)
        running[way] = home, client
    home = tmp_path_factory.mktemp("home") / "bob"
    running["wide"] = home, Client(loopback, home / "work", home, model="loopback/wide", probes=("logit_lens",))
    for _, client in running.values():
        client.go()
    return {way: (home, client.end()) for way, (home, client) in running.items()}


@pytest.mark.parametrize("way", WAYS)
def test_all_probes_give_the_local_numbers_however_the_package_is_installed(clients, loopback, way):  # noqa: F811
    home, seen = clients[way]
    assert seen["package"].startswith(str(home)) and ("site-packages" in seen["package"]) == (way == "wheel")
    here = loopback.here("loopback/llama")
    for probe, run in PROBES.items():
        same(seen["results"][probe], run(here))


@pytest.mark.parametrize("way", WAYS)
def test_every_function_travels_as_source_and_nothing_of_this_machine_does(clients, way):
    home, seen = clients[way]
    assert len(seen["payloads"]) == len(PROBES)
    for probe, payload in zip(PROBES, seen["payloads"], strict=True):
        text = zstandard.ZstdDecompressor().decompress(payload)
        copies = {}
        name = probe.removesuffix("_all")
        travelling(getattr(importlib.import_module(f"depth_lib.probes.{name}"), name), copies)
        for function in copies.values():
            assert f"def {function.__name__}(".encode() in text
        for private in (KEY, str(home), "alice", str(Path(torch.__file__).parent), "site-packages", "client.py"):
            assert private.encode() not in text, private


def test_what_travels_needs_torch_and_builtins_only(clients):
    needed = set()

    class Recorder(CustomCloudUnpickler):
        def find_class(self, module, name):
            needed.add(module.split(".")[0])
            return super().find_class(module, name)

        def persistent_load(self, pid):
            return torch.nn.Identity()

    for payload in clients["wheel"][1]["payloads"]:
        RequestModel.deserialize(payload, {}, True, Recorder)
    assert needed <= {"torch", "builtins"} | {"nnsight", "cloudpickle"}  # the last two rebuild the request itself


def test_the_client_never_holds_weights(clients):
    """A model of 200 MB takes a client no more memory than one of 0.4 MB."""
    (_, wide), (_, tiny) = clients["wide"], clients["plain folder"]
    assert wide["meta"]
    assert wide["memory"] < tiny["memory"] + 50_000


PROBE = """
import torch
from {helper} import double

def probe(llm, ids):
    with torch.no_grad():
        with llm.trace({{"input_ids": torch.tensor([ids])}}) as tracer:
            answer = double(llm, ids)
            tracer.stop()
    return {{"answer": answer}}
"""
HELPER = """
import torch

def double(llm, ids):
    with torch.no_grad():
        with llm.session():
            answer = {expression}
    return answer
"""


@pytest.fixture
def edited(tmp_path, monkeypatch, request):
    """A probe in a module of its own, whose helper is edited by `edited(expression)` as a person and a reload do it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"user_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}_helper.py").write_text(HELPER.format(expression="2 * sum(ids)"))
    (tmp_path / f"{name}.py").write_text(PROBE.format(helper=f"{name}_helper"))
    importlib.invalidate_caches()
    modules = [importlib.import_module(f"{name}_helper"), importlib.import_module(name)]

    def edit(expression, reload=True):
        file = tmp_path / f"{name}_helper.py"
        file.write_text(HELPER.format(expression=expression))
        os.utime(file, (1, 2_000_000_000))
        return [importlib.reload(module) for module in modules][1].probe if reload else modules[1].probe

    edit.probe = modules[1].probe
    yield edit
    for module in modules:
        sys.modules.pop(module.__name__, None)


def test_an_edited_helper_never_returns_an_older_answer(loopback, edited):  # noqa: F811
    llm = loopback.model("loopback/llama")
    assert session.run(edited.probe, llm, [1, 2], remote=loopback.host) == {"answer": 6}
    assert session.run(edited("3 * sum(ids)"), llm, [1, 2], remote=loopback.host) == {"answer": 9}


def test_without_the_hash_this_server_would_return_the_older_answer(loopback, edited, monkeypatch):  # noqa: F811
    """So that the test above is known to be able to fail: the server is one long-lived process, as NDIF's is."""
    import nnsight

    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", KEY)
    llm = loopback.model("loopback/llama")

    def plainly(probe):
        nnsight.register(probe.__module__)
        nnsight.register(f"{probe.__module__}_helper")
        return _unhashed(llm, probe, loopback.host)

    assert plainly(edited.probe) == {"answer": 6}
    assert plainly(edited("3 * sum(ids)")) == {"answer": 6}


def _unhashed(llm, probe, host):
    with llm.session(remote=host):
        result = probe(llm, [1, 2]).save()
    return result


def test_an_edit_that_was_not_imported_again_is_refused(loopback, edited):  # noqa: F811
    probe = edited("4 * sum(ids)", reload=False)
    with pytest.raises(remote.NotReady, match="double was edited after it was imported: restart the kernel"):
        session.run(probe, loopback.model("loopback/llama"), [1, 2], remote=loopback.host)


def test_a_module_that_the_server_lacks_is_named_before_anything_is_sent(loopback):  # noqa: F811
    assert "functools" not in IMPORTS
    with pytest.raises(remote.NotReady, match="_reduce uses the module functools"):
        session.run(_reduce, loopback.model("loopback/llama"), [1, 2], remote=loopback.host)


def _reduce(llm, ids):
    return {"sum": functools.reduce(lambda a, b: a + b, ids)}


def test_the_server_refuses_strange_imports_and_does_not_have_the_package(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    for module in ("functools", "depth_lib"):
        with pytest.raises(remote.JobFailed, match=f"Module {module} is not whitelisted"):
            session.run(_import, llm, module, remote=loopback.host)
    assert session.run(_import, llm, "math", remote=loopback.host) == {"name": "math"}


def _import(llm, module):
    return {"name": __import__(module, {}).__name__}


def test_lambdas_closures_and_recursion_travel(loopback):  # noqa: F811
    factor = 3
    assert session.run(_factorial, loopback.model("loopback/llama"), 5, remote=loopback.host) == {"n": 120}
    scaled = _scaled_by(factor)
    assert session.run(scaled, loopback.model("loopback/llama"), [1, 2], remote=loopback.host) == {"n": [3, 6]}


def _factorial(llm, n):
    return {"n": n * _factorial(llm, n - 1)["n"] if n else 1}


def _scaled_by(factor):
    def scaled(llm, numbers):
        return {"n": list(map(lambda n: n * factor, numbers))}

    return scaled


def test_equal_settings_are_one_job_and_a_closure_is_part_of_them(loopback, tmp_path):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults() as submitted, remote.journalled(tmp_path / "a.pt"):
        assert session.run(_scaled_by(3), llm, [1], remote=loopback.host) == {"n": [3]}
        assert session.run(_scaled_by(3), llm, [1], remote=loopback.host) == {"n": [3]}
        assert submitted() == 1
        assert session.run(_scaled_by(4), llm, [1], remote=loopback.host) == {"n": [4]}
        assert submitted() == 2
