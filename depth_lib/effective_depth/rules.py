"""The papers' three rules: an effective depth is the layer at which a curve over the layers crosses a level.

A rule is a row of RULES. Its `gap` says how far a curve is from the level: below zero, a layer has crossed it. Layers
0..L-2 are looked at. If none qualifies, the effective depth is `None`, never -1 and never an error.
Source: Hu et al. 2025 (arXiv 2512.14064), Table 1.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from ..params import warn
from ..results.result import fitting

Curve = torch.Tensor | np.ndarray | Sequence[float]

# A curve must exceed these to have a reliable depth. docs/coverage.md has those of random weights.
LEAST_KL = 1.0  # nats
LEAST_GAIN = 0.5  # nats per token by which the prompts are easier than the same tokens shuffled
LEAST_COSINE = 1.25  # root mean square of the mean cosine, in sizes of a random direction's
ROUNDING = 1e-3  # by which a value may be outside its limits


@dataclass
class Rule:
    """The first layer l with gap[l] < 0; if `last_turn`, the last one with gap[l] < 0 <= gap[l + 1].

    - title: the rule's name
    - probe, keys: the result that the rule reads; the curve is the mean of the keys
    - gap: turns curves [..., L] into their distance from the threshold
    - no_signal: why a result has no depth by this rule, or ""
    - limits: the smallest and largest possible value of each key
    """

    title: str
    probe: str
    keys: tuple[str, ...]
    gap: Callable[[np.ndarray], np.ndarray]
    no_signal: Callable[[Mapping], str]
    limits: tuple[float, float]
    last_turn: bool = False

    def reads(self, result: Mapping) -> bool:
        return all(key in result for key in self.keys)

    def curve(self, result: Mapping, of: str = "") -> np.ndarray:
        """The curve [L]; of="_sums": its sum over the tokens of each prompt, [P, L]."""
        return np.mean([as_array(result[key + of]) for key in self.keys], axis=0)

    def impossible(self, result: Mapping) -> str:
        """The first value that is not finite or outside the limits, with its layer; "" if there is none."""
        low, high = self.limits
        for key in self.keys:
            curve = as_array(result[key]).astype(float)
            if (bad := np.flatnonzero(~np.isfinite(curve))).size:
                return f"the curve is not finite at layer {bad[0]}; run the probe again"
            if (bad := np.flatnonzero((curve < low - ROUNDING) | (curve > high + ROUNDING))).size:
                possible = f"between {low:g} and {high:g}" if np.isfinite(high) else f"{low:g} or more"
                value = f"{curve[bad[0]]:.3g} at layer {bad[0]} (must be {possible})"
                return f"impossible curve: {key} is {value}; pass the {key} of {self.probe}"
        return ""

    def crossed(self, gaps: np.ndarray) -> np.ndarray:
        """Whether each of layers 0..L-2 qualifies, [L - 1]."""
        below = gaps < 0
        return below[:-1] & ~below[1:] if self.last_turn else below[:-1]

    def layer(self, gap: np.ndarray) -> int | None:
        """The layer that the rule finds in one gap [L]."""
        layers = np.flatnonzero(self.crossed(gap))
        return int(layers[-1 if self.last_turn else 0]) if layers.size else None

    def depth(self, result: Mapping) -> int | None:
        """The effective depth of a probe's result."""
        return self.layer(self.gap(self.curve(result)))


def kl_gap(kl: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    return kl - threshold * kl.max(-1, keepdims=True)


def overlap_gap(overlap: np.ndarray, threshold: float = 0.3) -> np.ndarray:
    return threshold - overlap


def lens_without_signal(lens: Mapping) -> str:
    """Why a lens's result tells no depth: the lens hardly differs from the output, or `without_gain`. A dict without
    KL divergences is not judged by them."""
    largest = as_array(lens.get("res_kl_divs", [LEAST_KL])).max()
    if largest < LEAST_KL:
        found = f"the lens's largest KL divergence is {largest:.2f} nats"
        return f"no reliable depth: {found} (at least {LEAST_KL:g} is needed)"
    return without_gain(lens)


def without_gain(result: Mapping) -> str:
    """Why a result says nothing of its model: it predicts the prompts no better than their shuffled tokens. Results
    without these losses are not judged."""
    if not {"loss", "shuffled_loss", "n_tokens"} <= result.keys():
        return ""
    counted = as_array(result["n_tokens"]) > 1  # a prompt of one token has no loss
    if not counted.any():
        return "no reliable depth: no prompt has more than one token; use longer prompts"
    loss, shuffled = (as_array(result[key])[counted].mean() for key in ("loss", "shuffled_loss"))
    if shuffled - loss >= LEAST_GAIN:
        return ""
    return (
        f"no reliable depth: the model predicts these prompts hardly better ({loss:.1f} nats per token) than shuffled "
        f"ones ({shuffled:.1f}; a difference of at least {LEAST_GAIN:g} is needed)"
    )


def cosine_without_signal(contribution: Mapping) -> str:
    """The reason why the cosines carry no depth; "" if they do."""
    curve = RULES["cosine"].curve(contribution)
    if np.isnan(as_array(contribution["att_cos"])).all():
        return "attention and MLP cannot be told apart in this model"
    size, chance = np.sqrt((curve.astype(float) ** 2).mean()), float(contribution.get("chance_cos", 0))
    if size >= LEAST_COSINE * chance or np.isnan(size):
        return ""
    return (
        f"no reliable depth: cosines of {size:.3f} do not stand out from those of random directions ({chance:.3f}; at "
        f"least {LEAST_COSINE * chance:.3f} is needed)"
    )


_COSINES = "att_cos", "mlp_cos", "layer_cos"
RULES = {
    "cosine": Rule("Cosine", "relative_contribution", _COSINES, np.asarray, cosine_without_signal, (-1, 1), True),
    "kl": Rule("Logit lens KL", "logit_lens", ("res_kl_divs",), kl_gap, lens_without_signal, (0, np.inf)),
    "overlap": Rule("Logit lens overlap", "logit_lens", ("res_overlaps",), overlap_gap, lens_without_signal, (0, 1)),
}


def effective_depth_cosine(
    att_cos: Curve | Mapping, mlp_cos: Curve | None = None, layer_cos: Curve | None = None
) -> int | None:
    """The last layer at which the mean of the three cosines is negative while the next layer's mean is not.

    >>> dl.effective_depth_cosine([-0.5, -0.1, 0.2], [-0.5, -0.1, 0.2], [-0.5, -0.1, 0.2])
    1

    The last l in 0..L − 2 with c[l] < 0 and c[l + 1] ≥ 0, where c is the mean of the three curves.

    - att_cos, mlp_cos, layer_cos: curves [L]; or the result of `relative_contribution` alone

    Returns None if no layer satisfies the rule, or, with a warning, for a result without a reliable depth.

    Raises ValueError if a curve has values that are not finite or out of range.
    Source: Hu et al. 2025, Table 1.
    Cost: no forward pass.
    """
    return _depth_of("cosine", att_cos, [att_cos, mlp_cos, layer_cos])


def effective_depth_kl(kl: Curve | Mapping, threshold: float = 0.5) -> int | None:
    """The first layer at which the logit lens's KL divergence is below half of its maximum.

    >>> dl.effective_depth_kl([8.0, 5.0, 3.0, 1.0])
    2

    The first l in 0..L − 2 with kl[l] < threshold · max(kl).

    - kl: a curve [L] in nats, or the result of `logit_lens`
    - threshold: the fraction of the maximum below which the curve must fall

    Returns None if no layer satisfies the rule, or, with a warning, for a result without a reliable depth.

    Raises ValueError if a curve has values that are not finite or out of range.
    Source: Hu et al. 2025, Table 1.
    Cost: no forward pass.
    """
    return _depth_of("kl", kl, [kl], threshold)


def effective_depth_overlap(overlap: Curve | Mapping, threshold: float = 0.3) -> int | None:
    """The first layer where the logit lens shares, on average over positions, more than 30% of its top five tokens
    with the output.

    >>> dl.effective_depth_overlap([0.0, 0.2, 0.4, 0.9])
    2

    The first l in 0..L − 2 with overlap[l] > threshold.

    - overlap: a curve [L] in [0, 1], or the result of `logit_lens`
    - threshold: the overlap that must be exceeded

    Returns None if no layer satisfies the rule, or, with a warning, for a result without a reliable depth.

    Raises ValueError if a curve has values that are not finite or out of range.
    Source: Hu et al. 2025, Table 1.
    Cost: no forward pass.
    """
    return _depth_of("overlap", overlap, [overlap], threshold)


def _depth_of(name: str, given: Curve | Mapping, curves: Sequence, *threshold: float) -> int | None:
    """The depth of a result, or of curves; only a result is checked for signal."""
    rule = RULES[name]
    if isinstance(given, Mapping) and any(curve is not None for curve in curves[1:]):
        raise ValueError(f"{name} takes either a result or {len(rule.keys)} curves, not both; leave the curves out")
    if not all(0 < share < 1 for share in threshold):
        raise ValueError(f"threshold must be a fraction between 0 and 1, got {threshold[0]!r}")
    named = {key: curve for key, curve in zip(rule.keys, curves, strict=True) if curve is not None}
    result = fitting(given) if isinstance(given, Mapping) else named
    keys = " and ".join(", ".join(rule.keys).rsplit(", ", 1))
    if not rule.reads(result):
        raise ValueError(f"{name} needs {keys}, or a result from {rule.probe}")
    shapes = [list(as_array(result[key]).shape) for key in rule.keys]
    if any(shape != shapes[0] or len(shape) != 1 or not shape[0] for shape in shapes):
        shown = ", ".join(map(str, shapes))
        raise ValueError(f"{name} needs {keys} with one value per layer, got shape {shown}")
    if result is given and (reason := rule.no_signal(result)):
        warn(reason)
        return None
    if np.isnan(rule.curve(result)).all():
        return None  # of a model whose attention and MLP cannot be told apart
    if problem := rule.impossible(result):
        raise ValueError(f"{name}: {problem}")
    return rule.layer(rule.gap(rule.curve(result), *threshold))


def ratio(ed: int | None, n_layers: int) -> float | None:
    """The effective depth as a share of the model's depth, (layer + 1) / L.

    >>> dl.ratio(2, 4)
    0.75

    - ed: a layer, or None
    - n_layers: L

    Returns None if the depth is None.

    Raises ValueError for a layer that the model does not have.
    Source: Hu et al. 2025, Table 1.
    Cost: no forward pass.
    """
    if ed is None:
        return None
    if not 0 <= ed < n_layers:
        raise ValueError(f"{ed} is not a layer of a model with {n_layers} layers (0 to {n_layers - 1})")
    return (ed + 1) / n_layers


def as_array(values: Curve) -> np.ndarray:
    """In its own precision, so that 0.3 stored as float32 does not exceed 0.3; bfloat16 as float32.

    Raises ValueError if it does not hold numbers.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    with suppress(ValueError):  # lists of different lengths
        if (array := np.asarray(values)).dtype.kind in "biuf":
            return array
    raise ValueError(f"expected a list, array or tensor of numbers, got {reprlib.repr(values)}")
