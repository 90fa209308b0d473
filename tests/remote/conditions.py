"""The public probes in all modes, and copies of the code that travels with one thing changed in it."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from depth_lib import api
from depth_lib import probes as package
from depth_lib.data.examples import Example

TEXTS = ["The quick brown fox jumps over 13 lazy dogs, and back again", "abcdefghijkl mnop", "8 apples and 5, thirteen"]
SUM = ("5 + 7 + 1 = ", "13")
ANY = {"quadrature": 1.0}  # an estimated error that any first panel has
EXAMPLES = [Example(1, "5 + 7 = ", "12"), Example(2, "8 apples and 5, thir", "teen")]


def _call(probe, *args, **settings):
    return lambda llm, **where: probe(llm, *args, **settings, **where)


EVERY = {
    "relative_contribution": _call(dl.relative_contribution, TEXTS),
    "logit_lens": _call(dl.logit_lens, TEXTS),
    "residual_erasure": _call(dl.residual_erasure, *SUM, TEXTS),
    "future_erasure": _call(dl.future_erasure, *SUM, TEXTS),
    "local_effects, future": _call(dl.local_effects, TEXTS, mode="future"),
    "local_effects, all": _call(dl.local_effects, TEXTS, mode="all"),
    "gradients": _call(dl.integrated_gradients, *SUM, **ANY),
    "gradients, attention": _call(dl.integrated_gradients, *SUM, **ANY, at="attention"),
    "gradients, mlp": _call(dl.integrated_gradients, *SUM, **ANY, at="mlp"),
    "gradients, riemann": _call(dl.integrated_gradients, *SUM, quadrature="riemann"),
    "depth_by_difficulty": _call(dl.depth_by_difficulty, EXAMPLES),
}
EVERY |= {
    f"layer_effects, {mode}, {part}": _call(dl.layer_effects, TEXTS, mode=mode, part=part)
    for mode in ("future", "all", "remove")
    for part in ("layer", "attention", "mlp")
}
FIVE = ("relative_contribution", "logit_lens", "layer_effects, future, layer", "residual_erasure", "gradients")
# each probe, mode and part at least once
PAIRWISE = (*FIVE, "future_erasure", "local_effects, all", "gradients, mlp", "depth_by_difficulty")
PAIRWISE += ("layer_effects, all, attention", "layer_effects, remove, mlp")


def others_slow(quick):
    """The names in EVERY as parameters of a test, those that are not quick marked slow."""
    return [pytest.param(probe, marks=[] if probe in quick else pytest.mark.slow) for probe in EVERY]


def differences(result, truth):
    """The keys whose values are not the same tensor of float32, bit for bit."""
    assert result.keys() == truth.keys()
    return [key for key, value in truth.items() if isinstance(value, torch.Tensor) and not _same(result[key], value)]


def _same(tensor, truth):
    return tensor.dtype == truth.dtype == torch.float32 and torch.equal(tensor, truth)


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
