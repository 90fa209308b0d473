"""The probes as they run where the model is, here or on a server: they import torch and one another only."""

from .integrated_gradients import integrated_gradients
from .layer_effects import layer_effects
from .local_effects import local_effects
from .logit_lens import logit_lens
from .relative_contribution import relative_contribution
from .residual_erasure import future_erasure, residual_erasure

__all__ = [
    "future_erasure",
    "integrated_gradients",
    "layer_effects",
    "local_effects",
    "logit_lens",
    "relative_contribution",
    "residual_erasure",
]
