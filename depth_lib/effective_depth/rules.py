"""Effective depth: the layer at which a model stops composing features and starts refining its answer.

Three rules on three curves over the layers l = 0..L-1 (Hu et al. 2025, Table 1). Every rule looks at
l in 0..L-2 only, and where no layer satisfies it the effective depth is missing (`None`): neither -1 nor an error.
The other three probes get depths of our own, so that all five can be read side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..data.prompts import ANSWER

Curve = torch.Tensor | np.ndarray | Sequence[float]

KL_THRESHOLD, OVERLAP_THRESHOLD = 0.5, 0.3  # Hu et al. 2025, Table 1
EFFECT_THRESHOLD = 0.5  # ours


def effective_depth_cosine(att_cos: Curve, mlp_cos: Curve, layer_cos: Curve) -> int | None:
    """The last layer after which the contributions turn from removing to adding features.

    c = mean(att_cos, mlp_cos, layer_cos); the last l in 0..L-2 with c[l] < 0 and c[l+1] >= 0.
    Each curve has shape [L], cosines in [-1, 1]. ValueError if one is not finite, or if their lengths differ.
    Source: Hu et al. 2025, Table 1; the cosines are those of Csordás et al. 2025.
    """
    c = mean_cosine(att_cos, mlp_cos, layer_cos)
    return _last((c[:-1] < 0) & (c[1:] >= 0))


def effective_depth_kl(kl: Curve, threshold: float = KL_THRESHOLD) -> int | None:
    """The first layer whose logit lens is near the model's answer, relative to the farthest layer.

    The first l in 0..L-2 with kl[l] < threshold · max(kl). kl has shape [L], nats. ValueError if it is not finite.
    Source: Hu et al. 2025, Table 1 (threshold 0.5).
    """
    curve = checked_curve("kl", kl)
    return first(curve[:-1] < float(threshold) * curve.max())


def effective_depth_overlap(overlap: Curve, threshold: float = OVERLAP_THRESHOLD) -> int | None:
    """The first layer whose logit lens already ranks the answer's top tokens high.

    The first l in 0..L-2 with overlap[l] > threshold. overlap has shape [L], the shared share of the top five in
    [0, 1]. ValueError if it is not finite. Source: Hu et al. 2025, Table 1 (threshold 0.3).
    """
    # float: a NumPy float64 would widen a float32 curve, and 0.3 exceed 0.3
    return first(checked_curve("overlap", overlap)[:-1] > float(threshold))


def effective_depth_future(effects: Curve, threshold: float = EFFECT_THRESHOLD) -> int | None:
    """The last layer that later layers depend on: skipping it changes what one of them adds by over half its norm.

    e[s] = max over l > s of min(effects[s, l], 1); the last s in 0..L-2 with e[s] > threshold. effects [L, L] is
    `max_future_layer` or `max_all_layer`, row = skipped layer, column = affected one. None where nothing has such an
    effect. ValueError if it is not square or not finite.

    The threshold is a number, not a share of the largest effect: an effect is already relative to the norm of what the
    affected layer adds, 0 for unchanged and 1 for changed by all of it, and the first layers, which write most of the
    residual stream, reach 10 to 60. Half of that would leave every other layer below it, so that one layer decided for
    all. The heat map's colours end at 1 for the same reason: the depth is its last row with a colour from the upper
    half of the scale. The probe is Csordás et al. 2025, section 3.3; the rule is ours.
    """
    return _last(future_profile(effects) > threshold)


def effective_depth_erasure(erasure_effect: Curve, n_answer_tokens: int) -> int | None:
    """The last layer at which erasing any question token still moves the answer by over half the most seen.

    e[l] = max over question tokens t of erasure_effect[l, t]; the last l in 0..L-1 with e[l] > max(e) / 2.
    erasure_effect has shape [L + 1, T], norm of a difference of probabilities; row l is what enters block l. Question
    tokens are the first T - A - 1 of T, A = n_answer_tokens: the token before the answer is where the answer is read,
    so erasing it moves the answer at every depth. None where nothing has an effect. ValueError if no question token is
    left, or a value is not finite. The probe is Csordás et al. 2025, section 3.4; the rule is ours.
    """
    e = erasure_profile(erasure_effect, n_answer_tokens)
    return _last(e > e.max() / 2)


def effective_depth_igrads(igrads: Curve) -> int | None:
    """The layer at which half of all attribution has been given.

    a[l] = sum over tokens of |igrads[l, t]|; the first l in 0..L-1 with a[0] + ... + a[l] >= sum(a) / 2. igrads has
    shape [L, T], probability. None where nothing is attributed. ValueError if a value is not finite. The probe is
    Csordás et al. 2025, section 3.4 (Sundararajan et al. 2017); the rule is ours.
    """
    a = igrads_profile(igrads)
    return first(np.cumsum(a) >= a.sum() / 2) if a.any() else None


def depth_score(profile: Curve) -> float | None:
    """The centre of mass of an effect over layers, sum(l · e[l]) / sum(e[l]), in layers.

    profile has shape [L], no value below zero, such as `future_profile`. None where nothing has an effect. ValueError
    if a value is negative or not finite. Source: the depth score of Csordás et al. 2025, section 3.4.
    """
    e = checked_curve("depth score", profile).astype(float)
    if (e < 0).any():
        raise ValueError(f"depth score: the effect is {e.min():.3g} at layer {e.argmin()}; pass |e|")
    return float(np.arange(len(e)) @ e / e.sum()) if e.any() else None


def future_profile(effects: Curve) -> np.ndarray:
    """The largest effect of skipping each layer s in 0..L-2 on any later layer, at most 1, shape [L - 1]."""
    effects = _map("future effects", effects)
    if effects.shape[0] != effects.shape[1]:
        raise ValueError(f"future effects must be square, skipped × affected layer; found shape {list(effects.shape)}")
    return np.array([min(row[s + 1 :].max(), 1) for s, row in enumerate(effects[:-1])])


def erasure_profile(erasure_effect: Curve, n_answer_tokens: int) -> np.ndarray:
    """The largest effect of erasing any question token at the input of each block, shape [L]."""
    effects = _map("erasure", erasure_effect)
    n_question = effects.shape[1] - n_answer_tokens - 1
    if n_answer_tokens < 1 or n_question < 1:
        raise ValueError(
            f"erasure: no question token precedes the one that predicts the answer ({effects.shape[1]} "
            f"tokens, {n_answer_tokens} of them the answer); give a longer question"
        )
    return effects[:-1, :n_question].max(1)


def igrads_profile(igrads: Curve) -> np.ndarray:
    """The size of the attribution to each block's output, summed over tokens, shape [L]."""
    return np.abs(_map("integrated gradients", igrads)).sum(1)


def mean_cosine(att_cos: Curve, mlp_cos: Curve, layer_cos: Curve) -> np.ndarray:
    """The mean of the three cosines at each layer, shape [L]; ValueError as in `effective_depth_cosine`."""
    named = {"att_cos": att_cos, "mlp_cos": mlp_cos, "layer_cos": layer_cos}
    curves = [checked_curve("cosine", values, key) for key, values in named.items()]
    lengths = {key: len(curve) for key, curve in zip(named, curves, strict=True)}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise ValueError(f"cosine: the three curves must have one value a layer, found lengths {found}")
    return sum(curves) / 3


def ratio(ed: int | None, n_layers: int) -> float | None:
    """The effective depth as a share of the model's depth, (ED + 1) / L; missing where the effective depth is.

    ValueError if ed is not a layer of the model (Hu et al. 2025, Table 1).
    """
    if ed is None:
        return None
    if not 0 <= ed < n_layers:
        raise ValueError(f"effective depth {ed} is not a layer of a model with {n_layers} layers (0..{n_layers - 1})")
    return (ed + 1) / n_layers


def as_array(values: Curve) -> np.ndarray:
    """A curve or map as an array in its own precision, float32 for what NumPy has not."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(values)


def _map(name: str, values: Curve) -> np.ndarray:
    """The values as a float array with a row a layer."""
    found = as_array(values).astype(float)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"{name} must have a row a layer; found shape {list(found.shape)}")
    if not np.isfinite(found).all():
        l = np.argwhere(~np.isfinite(found))[0][0]
        raise ValueError(f"{name} is not finite at layer {l}, so its effective depth is undefined; run the probe again")
    return found


def checked_curve(metric: str, values: Curve, key: str | None = None) -> np.ndarray:
    """The values as a float array [L], in their own precision: 0.3 stored as float32 must not exceed 0.3."""
    name = f"{metric}: {key}" if key else metric
    curve = as_array(values)
    if not np.issubdtype(curve.dtype, np.floating):
        curve = curve.astype(np.float64)
    if curve.ndim != 1 or len(curve) == 0:
        raise ValueError(f"{name} must have one value a layer, shape [L]; found shape {list(curve.shape)}")
    bad = np.flatnonzero(~np.isfinite(curve))
    if len(bad):
        raise ValueError(
            f"{name} is {curve[bad[0]]} at layer {bad[0]}, so its effective depth is undefined; run the probe again"
        )
    return curve


def first(hits: np.ndarray) -> int | None:
    """The first layer that hits; None if none does."""
    return int(np.argmax(hits)) if hits.any() else None


def _last(hits: np.ndarray) -> int | None:
    return int(np.flatnonzero(hits)[-1]) if hits.any() else None


def n_answer_tokens(result: Mapping) -> int:
    """How many tokens at the end of an erasure result are the answer's: those whose text reaches into it.

    The answer is the one in `meta`, or the papers' ("28") where there is none; 1 if the tokens are not known.
    """
    answer = result.get("meta", {}).get("settings", {}).get("answer", ANSWER)
    tokens = result.get("tokens")
    if not tokens:
        return 1
    length, count = 0, 0
    while length < len(answer) and count < len(tokens):
        count += 1
        length += len(tokens[-count])
    return count


@dataclass(frozen=True)
class Metric:
    """One effective depth: the probe and keys it reads, its rule, and what else is known of it.

    threshold: the papers'; thresholds: those they might have chosen as well. profile: the effect of each layer, whose
    centre of mass is the depth score; None for the papers' own metrics.
    """

    probe: str
    keys: tuple[str, ...]
    rule: Callable[..., int | None]
    threshold: float | None = None
    thresholds: tuple[float, ...] = ()
    profile: Callable[..., np.ndarray] | None = None

    def arguments(self, result: Mapping) -> list:
        """What rule and profile take from a probe's result."""
        answer = [n_answer_tokens(result)] if self.probe == "residual_erasure" else []
        return [result[key] for key in self.keys] + answer


def _tenths(last: int) -> tuple[float, ...]:
    return tuple((np.arange(1, last + 1) / 10).tolist())


METRICS = {
    "cosine": Metric("relative_contribution", ("att_cos", "mlp_cos", "layer_cos"), effective_depth_cosine),
    "kl": Metric("logit_lens", ("res_kl_divs",), effective_depth_kl, KL_THRESHOLD, _tenths(9)),
    "overlap": Metric("logit_lens", ("res_overlaps",), effective_depth_overlap, OVERLAP_THRESHOLD, _tenths(7)),
    "future": Metric("layer_effects", ("max_future_layer",), effective_depth_future, profile=future_profile),
    "all": Metric("layer_effects", ("max_all_layer",), effective_depth_future, profile=future_profile),
    "erasure": Metric("residual_erasure", ("erasure_effect",), effective_depth_erasure, profile=erasure_profile),
    "igrads": Metric("integrated_gradients", ("igrads",), effective_depth_igrads, profile=igrads_profile),
}
PAPER_METRICS = tuple(name for name, metric in METRICS.items() if metric.profile is None)
