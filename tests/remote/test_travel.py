"""What travels to a server: source text only, nothing of this machine, and never an older version of it."""

import ast
import importlib
import inspect
import os
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import numpy as np
import pytest
import torch
import zstandard

import depth_lib as dl
from depth_lib import probes, remote, session
from depth_lib.models.families import known
from depth_lib.remote.job import Job
from depth_lib.remote.travel import ON_SERVER, pickled
from tests.calls import EVERY, FIVE
from tests.marks import others_slow
from tests.remote.loopback.fixture import KEY

# builtins that an older server takes away, and what one of several processes may find otherwise than the others
NOT_BUILT_IN = {"bin", "breakpoint", "compile", "exec", "exit", "help", "license", "locals", "open", "quit"}
OF_ONE_PROCESS = {"mem_get_info", "memory_reserved", "memory_allocated", "get_num_threads", "cpu_count"}


@pytest.mark.parametrize("probe", others_slow(EVERY, FIVE))
def test_every_function_travels_as_source_and_nothing_of_this_machine_does(llm, loopback, monkeypatch, probe):
    """That the server could not import the package is part of its conditions, see loopback/worker.py."""
    payloads = []
    monkeypatch.setattr(known(llm), "checked", None)  # so that the model's check travels too
    monkeypatch.setattr(Job, "_post", lambda backend, request, blob: payloads.append(blob) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EVERY[probe](llm, remote=loopback.host)
    assert len(payloads[0]) < 20_000
    text = zstandard.decompress(payloads[0])
    assert b"def identities(" in text and b"depth_lib/residual/residual_stream.py#" in text
    packages = str(Path(torch.__file__).parent.parent)
    for private in (KEY, str(Path.home()), str(Path(dl.__file__).parent), packages, "site-packages", "conditions.py"):
        assert private.encode() not in text, private


MODULE = """
import torch

def double(llm, ids):
    with torch.no_grad():
        with llm.session():
            answer = {expression}
    return answer

def probe(llm, ids):
    with torch.no_grad():
        with llm.trace({{"input_ids": torch.tensor([ids])}}) as tracer:
            answer = double(llm, ids)
            tracer.stop()
    return {{"answer": answer}}
"""


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """edited(expression, reload) is the probe of a module after an edit, as a person and a reload do it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / f"user_{tmp_path.name}.py"
    file.write_text(MODULE.format(expression="2 * sum(ids)"))
    module = importlib.import_module(file.stem)

    def edit(expression, reload=True):
        file.write_text(MODULE.format(expression=expression))
        os.utime(file, (1, 2_000_000_000))
        return (importlib.reload(module) if reload else module).probe

    edit.probe = module.probe
    yield edit
    del sys.modules[file.stem]


def test_an_edited_helper_never_returns_an_older_answer(llm, loopback, edited):
    """Not even on a server that keeps what it compiled for earlier requests, as loopback/actor.py does."""
    assert session.run(edited.probe, llm, [1, 2], remote=loopback.host) == {"answer": 6}
    assert session.run(edited("3 * sum(ids)"), llm, [1, 2], remote=loopback.host) == {"answer": 9}


@pytest.mark.parametrize("expression", ["4 * sum(ids)", "4 * (sum(ids)"])
def test_an_edit_that_was_not_imported_again_is_refused_be_it_python_or_not(llm, loopback, edited, expression):
    probe = edited(expression, reload=False)
    with pytest.raises(remote.NotReady, match="was edited after it was imported; restart the kernel"):
        session.run(probe, llm, [1, 2], remote=loopback.host)


def test_an_argument_that_may_look_like_another_is_refused(llm, loopback):
    with loopback.faults() as submitted:
        for argument in (np.zeros(9999), {1, 2}, object(), _factorial):
            name = type(argument).__name__
            with pytest.raises(
                remote.NotReady, match=f"a {name} cannot be sent to the server as an argument; pass numbers"
            ):
                session.run(_factorial, llm, argument, remote=loopback.host)
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


def test_nothing_that_travels_depends_on_one_process_or_on_what_a_server_lacks():
    """Neither builtins nor modules, nor weights: in the sandbox the dtype of llm is the config's, its device "meta"."""
    files = [import_module(f"depth_lib.probes.{file.name}") for file in iter_modules(probes.__path__)]
    _, reached = pickled([f for file in files for name, f in vars(file).items() if name.startswith("measure_")])
    named = [(name, f.__globals__.get(name)) for f in reached for name in f.__code__.co_names]
    source = "".join(map(inspect.getsource, reached))
    modules = {value.__name__ for _, value in named if isinstance(value, ModuleType)}
    for node in [node for f in reached for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(f))))]:
        modules |= {node.module} if isinstance(node, ast.ImportFrom) and not node.level else set()
        modules |= {name.name for name in node.names} if isinstance(node, ast.Import) else set()
    assert len(reached) > 50 and "torch" in modules
    assert {module.partition(".")[0] for module in modules} <= ON_SERVER
    assert not {name for name, _ in named} & (OF_ONE_PROCESS | NOT_BUILT_IN)
    assert not re.search(r"\bllm\.(dtype|device)\b", source)
