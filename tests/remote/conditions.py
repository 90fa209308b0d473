"""Which probes are slow tests, when two results are the same, and probes with one thing changed in their code."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from depth_lib import api
from depth_lib import probes as package
from tests.calls import EVERY

BEFORE = r"( +)with torch\.no_grad\(\):\n"  # where mutations put a statement


def others_slow(quick):
    """The names in EVERY as parameters of a test, those that are not quick marked slow."""
    return [pytest.param(probe, marks=[] if probe in quick else pytest.mark.slow) for probe in EVERY]


def differences(result, truth):
    """The keys whose values are not the same tensor of float32, bit for bit; NaN is NaN."""
    assert result.keys() == truth.keys()
    return [key for key, value in truth.items() if isinstance(value, torch.Tensor) and not _same(result[key], value)]


def _same(tensor, truth):
    return tensor.dtype == truth.dtype == torch.float32 and torch.equal(tensor.nan_to_num(9), truth.nan_to_num(9))


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
