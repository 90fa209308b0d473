"""The probes once more, slowly: plain PyTorch hooks, one prompt and one full forward per intervention (of
erasures and gradients per layer, with a row for each token or point).

Shares no code with the package, so that it can be the truth the package is held against.
"""

from tests.oracles.answers import answer_span, future_erasure, increments, integrated_gradients, residual_erasure
from tests.oracles.curves import logit_lens, relative_contribution
from tests.oracles.effects import depth_by_difficulty, effect_positions, layer_effects, local_effects
from tests.oracles.streams import in_float64, is_parallel, lens, residuals

__all__ = [
    "answer_span",
    "depth_by_difficulty",
    "effect_positions",
    "future_erasure",
    "in_float64",
    "increments",
    "integrated_gradients",
    "is_parallel",
    "layer_effects",
    "lens",
    "local_effects",
    "logit_lens",
    "relative_contribution",
    "residual_erasure",
    "residuals",
]
