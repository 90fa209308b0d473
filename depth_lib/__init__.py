"""depth_lib: how much of its depth does a language model use? Five probes, on your machine or on NDIF."""

import importlib
import os
import sys
import warnings
from pathlib import Path

import cloudpickle

# Always, and all that nnsight.register does: an installed package would otherwise be sent to the server by name, where
# it does not exist.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Read when torch is loaded: OpenMP's threads sleep while they wait instead of spinning, which beside other work is ten
# times faster. What the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# tqdm's, in a notebook without ipywidgets: it then shows bars as text, or none.
warnings.filterwarnings("ignore", "IProgress not found")

__version__ = "0.1.0"

# Public names and the module of each, imported when the name is first used (PEP 562): torch and nnsight take seconds.
_HOMES = {
    "DepthCallback": "training",
    "DepthLog": "training",
    "ArtifactError": "results.schemas",
    "ModelError": "models.errors",
    "ParamsError": "params",
    "RemoteError": "remote.errors",
    "Run": "run",
    "compare": "comparison",
    "chat_prompts": "data.prompts",
    "check_model": "session",
    "deep_thinking_ratio": "effective_depth.deep_thinking",
    "early_exit": "effective_depth.early_exit",
    "effective_depth_cosine": "effective_depth.rules",
    "effective_depth_kl": "effective_depth.rules",
    "effective_depth_overlap": "effective_depth.rules",
    "effective_depths": "depths",
    "fit_lens": "lenses.fit",
    "kinds_of": "figures",
    "linear_maps": "maps",
    "load_artifact": "results.artifacts",
    "load_choices": "data.choices",
    "load_examples": "data.examples",
    "load_lens": "lenses.files",
    "load_model": "models.load",
    "load_prompts": "data.prompts",
    "load_results": "results.study",
    "paper": "papers",
    "plot": "figures",
    "prune": "pruning",
    "ratio": "effective_depth.rules",
    "reorder_blocks": "models.removal",
    "orders": "data.orders",
    "accuracy": "effective_depth.accuracy",
    "accuracy_change": "effective_depth.accuracy",
    "removable": "effective_depth.removal",
    "remove_blocks": "models.removal",
    "save_artifact": "results.artifacts",
    "save_model": "models.removal",
    "stretch": "maps",
    "unroll": "models.unroll",
}
_HOMES |= {path.stem: f"probes.{path.stem}" for path in (Path(__file__).parent / "probes").glob("[!_]*.py")}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] (a folder has the names of the probes)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    if not isinstance(value, type):
        value = importlib.import_module(".public", __name__).with_checked_kinds(value)
    globals()[name] = value
    return value


def __dir__():
    return __all__
