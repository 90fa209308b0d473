"""The public probes in all modes, and copies of the code that travels with one thing changed in it."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import torch

import depth_lib as dl
from depth_lib import api
from depth_lib import probes as package
from depth_lib.data.examples import Example

TEXTS = ["The quick brown fox jumps over 13 lazy dogs, and back again", "abcdefghijkl mnop", "8 apples and 5, thirteen"]
SUM = ("5 + 7 + 1 = ", "13")
ANY = {"quadrature": 1.0}  # an estimated error that any first panel has
EXAMPLES = [Example(1, "5 + 7 = ", "12"), Example(2, "8 apples and 5, thir", "teen")]


def _effects(mode, part):
    return lambda llm, **where: dl.layer_effects(llm, TEXTS, mode=mode, part=part, **where)


EVERY = {
    "relative_contribution": lambda llm, **where: dl.relative_contribution(llm, TEXTS, **where),
    "logit_lens": lambda llm, **where: dl.logit_lens(llm, TEXTS, **where),
    "residual_erasure": lambda llm, **where: dl.residual_erasure(llm, *SUM, TEXTS, **where),
    "future_erasure": lambda llm, **where: dl.future_erasure(llm, *SUM, TEXTS, **where),
    "local_effects, future": lambda llm, **where: dl.local_effects(llm, TEXTS, mode="future", **where),
    "local_effects, all": lambda llm, **where: dl.local_effects(llm, TEXTS, mode="all", **where),
    "gradients": lambda llm, **where: dl.integrated_gradients(llm, *SUM, **ANY, **where),
    "gradients, attention": lambda llm, **where: dl.integrated_gradients(llm, *SUM, **ANY, at="attention", **where),
    "gradients, mlp": lambda llm, **where: dl.integrated_gradients(llm, *SUM, **ANY, at="mlp", **where),
    "gradients, riemann": lambda llm, **where: dl.integrated_gradients(llm, *SUM, quadrature="riemann", **where),
    "depth_by_difficulty": lambda llm, **where: dl.depth_by_difficulty(llm, EXAMPLES, **where),
}
EVERY |= {
    f"layer_effects, {mode}, {part}": _effects(mode, part)
    for mode in ("future", "all", "remove")
    for part in ("layer", "attention", "mlp")
}
FIVE = ("relative_contribution", "logit_lens", "layer_effects, future, layer", "residual_erasure", "gradients")


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
