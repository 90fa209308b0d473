"""What NDIF's sandbox cannot run, put back into the probes: each is noticed there."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from depth_lib import api, remote
from depth_lib import probes as package
from depth_lib.models.families import known
from tests.calls import EVERY


@pytest.fixture
def mutate(monkeypatch, tmp_path):
    return lambda pattern, replacement: mutated(monkeypatch, tmp_path, pattern, replacement)


def mutated(monkeypatch, folder, pattern, replacement):
    """Have the public probes run a copy of depth_lib/probes in which the pattern is replaced, wherever it occurs."""
    name = f"mutated_{folder.name.replace('-', '_')}"
    copy = folder / name
    shutil.copytree(Path(package.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    count = 0
    for file in copy.glob("*.py"):
        text, n = re.subn(pattern, replacement, file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")
        count += n
    assert count, f"nothing in depth_lib/probes is like {pattern}"
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    for attribute, value in list(vars(api).items()):
        if str(getattr(value, "__module__", "")).startswith(package.__name__ + "."):
            twin = importlib.import_module(f"{name}.{value.__module__.rpartition('.')[2]}")
            monkeypatch.setattr(api, attribute, getattr(twin, value.__name__))
    for module in [module for module in sys.modules if module.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)


def test_a_stop_before_another_trace_is_noticed(llm, loopback, mutate):
    mutate(r"use_cache=False\):(\n(?: {8}.*\n)*? +)skip_rest\(.*\)", r"use_cache=False) as tracer:\1tracer.stop()")
    with loopback.faults(sandbox=True, timeout=20), pytest.raises(remote.JobFailed) as caught:
        EVERY["layer_effects, future, layer"](llm, remote=loopback.host)
    # the socket is out of step, or the trace behind the stopped one has not run, where its result is first asked for
    says = "Broken pipe|timeout|, in growing_batch\n.*\n.*\nUnboundLocalError: .* 'found'"
    assert re.search(says, caught.value.server_text)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["h", "llm"])
def test_a_budget_from_the_device_of_a_model_without_weights_is_noticed(device, llm, loopback, mutate, monkeypatch):
    """Passes of a few tokens take more messages than one pass does; what is on no CPU gets the budget of a GPU."""
    monkeypatch.setattr(known(llm), "checked", {"measured": "before"})  # the check does not travel with a job
    probe = EVERY["layer_effects, all, layer"]
    with loopback.faults(sandbox=True):
        probe(llm, remote=loopback.host)
        one_pass = loopback.crossed["messages"]
        mutate(r'None and h(\.device\.type == "cpu":\n.*\n +return ).*', rf"None and {device}\g<1>200")
        probe(llm, remote=loopback.host)
    assert (loopback.crossed["messages"] > one_pass) == (device == "h")


@pytest.mark.parametrize("read, noticed", [pytest.param("h", False, marks=pytest.mark.slow), ("llm", True)])
def test_a_decision_from_the_dtype_of_a_config_is_noticed(read, noticed, llm, loopback, mutate):
    mutate(r"rounding_unit\(h\) > 1e-6", f"{read}.dtype.itemsize < 4")
    with loopback.faults(sandbox=True, dtype="float32"):
        result = EVERY["layer_effects, all, layer"](llm, remote=loopback.host)
    assert any("rounding_floor" in key for key in result) == noticed
