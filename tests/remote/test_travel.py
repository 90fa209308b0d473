"""What travels to a server: source text only, nothing of this machine, and never an older version of it."""

import importlib
import os
import sys
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch
import zstandard

import depth_lib as dl
from depth_lib import api, remote, session
from depth_lib.models.families import known
from depth_lib.remote.backend import JobBackend
from depth_lib.remote.travel import pickled
from tests.calls import EVERY, FIVE
from tests.remote.conditions import BEFORE, others_slow
from tests.remote.loopback.fixture import KEY

# builtins that an older server takes away, and what one of several processes may find otherwise than the others
NOT_BUILT_IN = {"bin", "breakpoint", "compile", "exec", "exit", "help", "license", "locals", "open", "quit"}
OF_ONE_PROCESS = {"mem_get_info", "memory_reserved", "memory_allocated", "get_num_threads", "cpu_count"}


@pytest.mark.parametrize("probe", others_slow(FIVE))
def test_every_function_travels_as_source_and_nothing_of_this_machine_does(llm, loopback, monkeypatch, probe):
    """That the server could not import the package is part of its conditions, see loopback/worker.py."""
    payloads = []
    monkeypatch.setattr(known(llm), "checked", None)  # so that the model's check travels too
    monkeypatch.setattr(JobBackend, "_post", lambda backend, request, blob: payloads.append(blob) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EVERY[probe](llm, remote=loopback.host)
    text = zstandard.ZstdDecompressor().decompress(payloads[0])
    assert b"def identities(" in text and b"depth_lib/probes/residual_stream.py#" in text
    packages = str(Path(torch.__file__).parent.parent)
    for private in (KEY, str(Path.home()), str(Path(dl.__file__).parent), packages, "site-packages", "conditions.py"):
        assert private.encode() not in text, private


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


def test_an_edited_helper_never_returns_an_older_answer(llm, loopback, edited):
    with loopback.faults(february=True):
        assert session.run(edited.probe, llm, [1, 2], remote=loopback.host) == {"answer": 6}
        assert session.run(edited("3 * sum(ids)"), llm, [1, 2], remote=loopback.host) == {"answer": 9}


@pytest.mark.parametrize("expression", ["4 * sum(ids)", "4 * (sum(ids)"])
def test_an_edit_that_was_not_imported_again_is_refused_be_it_python_or_not(llm, loopback, edited, expression):
    probe = edited(expression, reload=False)
    with pytest.raises(remote.NotReady, match="double was edited after it was imported: restart the kernel"):
        session.run(probe, llm, [1, 2], remote=loopback.host)


def test_an_argument_that_may_look_like_another_is_refused(llm, loopback):
    with loopback.faults() as submitted:
        for argument in (np.zeros(9999), {1, 2}, object()):
            name = type(argument).__name__
            with pytest.raises(remote.NotReady, match=f"a {name} cannot be a remote probe's argument; pass numbers"):
                session.run(_plus, llm, argument, remote=loopback.host)
        assert submitted() == 0


def test_lambdas_closures_and_recursion_travel_and_a_closure_is_part_of_the_settings(llm, loopback, tmp_path):
    assert session.run(_factorial, llm, 5, remote=loopback.host) == {"n": 120}
    with loopback.faults() as submitted, remote.journalled(tmp_path / "a.pt"):
        for factor, jobs in ((3, 1), (3, 1), (4, 2)):
            assert session.run(_scaled_by(factor), llm, [1, 2], remote=loopback.host) == {"n": [factor, 2 * factor]}
            assert submitted() == jobs


def _factorial(llm, n):
    return {"n": n * _factorial(llm, n - 1)["n"] if n else 1}


def _scaled_by(factor):
    def scaled(llm, numbers):
        return {"n": list(map(lambda n: n * factor, numbers))}

    return scaled


def test_a_request_with_a_large_tensor_is_not_sent(llm, loopback, monkeypatch):
    monkeypatch.setattr("depth_lib.remote.backend._LARGEST", 100_000)
    noise = torch.randn(50_000)
    with loopback.faults() as submitted:
        with pytest.raises(remote.NotReady, match="request has .* MB: a tensor made here travels"):
            session.run(_plus, llm, noise, remote=loopback.host)
        assert submitted() == 0


def _plus(llm, noise):
    return {"sum": noise.sum()}


@pytest.mark.parametrize("module", ["functools", "time"])
def test_a_forbidden_import_and_a_clock_are_refused_before_anything_is_sent(llm, loopback, mutate, module):
    mutate(BEFORE, rf"\1import {module}\n\g<0>")
    with loopback.faults() as submitted:
        with pytest.raises(remote.NotReady, match=f"uses the module {module}, which has no place on a server"):
            EVERY["logit_lens"](llm, remote=loopback.host)
        assert submitted() == 0


def names_that_travel():
    public = [f for f in vars(api).values() if isinstance(f, FunctionType)]
    probes = [f for f in public if ".probes." in f".{f.__module__}" or "mutated" in f.__module__]
    _, reached = pickled(probes)
    return {name for function in reached for name in function.__code__.co_names}


@pytest.mark.parametrize("refused", [OF_ONE_PROCESS, NOT_BUILT_IN], ids=["of one process", "not built in"])
def test_nothing_that_travels_depends_on_one_process_or_on_a_builtin_that_a_server_lacks(mutate, refused):
    assert not names_that_travel() & refused
    mutate(BEFORE, "".join(rf"\1{name}()\n" for name in refused) + r"\g<0>")
    assert names_that_travel() & refused == refused
