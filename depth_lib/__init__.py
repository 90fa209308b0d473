"""depth_lib: how much of its depth does a language model use? Five probes, here or on NDIF."""

import nnsight

# Always: an installed package would otherwise be sent to the server by name, where it does not exist.
nnsight.register("depth_lib")

from .api import integrated_gradients, layer_effects, logit_lens, relative_contribution, residual_erasure  # noqa: E402
from .artifacts import load_artifact, save_artifact  # noqa: E402
from .check import check_model  # noqa: E402
from .effective_depth import effective_depth_cosine, effective_depth_kl, effective_depth_overlap  # noqa: E402
from .models import load_model  # noqa: E402
from .prompts import load_prompts  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "check_model",
    "effective_depth_cosine",
    "effective_depth_kl",
    "effective_depth_overlap",
    "integrated_gradients",
    "layer_effects",
    "load_artifact",
    "load_model",
    "load_prompts",
    "load_results",
    "logit_lens",
    "relative_contribution",
    "residual_erasure",
    "save_artifact",
]


def __getattr__(name):
    if name == "load_results":  # it brings pandas, which no probe needs
        from .results import load_results

        return load_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
