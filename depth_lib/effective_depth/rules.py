"""Effective depth: a layer that a rule reads off a curve over the layers.

Three rules on three curves over the layers l = 0..L-1 are the papers' (Hu et al. 2025, Table 1). They look at l in
0..L-2 only, and where no layer satisfies a rule the effective depth is missing (`None`): neither -1 nor an error. It is
missing too where the curve carries no depth, as that of an untrained model: see `Metric.no_signal`. The other depths
are ours. Where there is one, it stays the same when identity blocks are appended to a model, and it does not grow with
the number of prompts.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..data.orders import AT_MOST
from ..data.prompts import ANSWER

Curve = torch.Tensor | np.ndarray | Sequence[float]

LATE = 0.85  # of the model's depth

# What a curve must exceed to carry a depth; what random weights reach: docs/coverage.md.
LEAST_KL = 1.0  # nats, the lens's largest KL divergence
LEAST_GAIN = 0.5  # nats per token by which a model predicts its prompts better than the same tokens in another order
LEAST_COSINE = 1.25  # root mean square of the mean cosine, in sizes of a random direction's cosine


def effective_depth_cosine(
    att_cos: Curve | Mapping, mlp_cos: Curve | None = None, layer_cos: Curve | None = None
) -> int | None:
    """The last layer where the mean cosine changes from negative to non-negative.

    >>> dl.effective_depth_cosine([-0.5, -0.1, 0.2], [-0.5, -0.1, 0.2], [-0.5, -0.1, 0.2])
    1

    c = mean(att_cos, mlp_cos, layer_cos); the last l in 0..L-2 with c[l] < 0 and c[l+1] >= 0. Each curve has shape [L],
    cosines in [-1, 1]; or give the dict of `relative_contribution` alone. None for a model in which attention and MLP
    cannot be told apart, whose att_cos is NaN, and, with a warning, for a dict without signal. ValueError if a curve is
    not finite otherwise, or if their lengths differ. Source: Hu et al. 2025, Table 1; the cosines are those of Csordás
    et al. 2025.
    Cost: no forward pass.
    """
    return _papers_depth("cosine", att_cos if isinstance(att_cos, Mapping) else [att_cos, mlp_cos, layer_cos])


def effective_depth_kl(kl: Curve | Mapping, threshold: float = 0.5) -> int | None:
    """The first layer where the logit lens's KL divergence is below half of its maximum over layers.

    >>> dl.effective_depth_kl([8.0, 5.0, 3.0, 1.0])
    2

    The first l in 0..L-2 with kl[l] < threshold · max(kl). kl has shape [L], nats, or is the dict of `logit_lens`; of
    a dict without signal it is None, with a warning. ValueError if it is not finite.
    Source: Hu et al. 2025, Table 1 (threshold 0.5).
    Cost: no forward pass.
    """
    return _papers_depth("kl", kl if isinstance(kl, Mapping) else [kl], threshold)


def effective_depth_overlap(overlap: Curve | Mapping, threshold: float = 0.3) -> int | None:
    """The first layer where more than 0.3 of the logit lens's top five tokens are among the output's.

    >>> dl.effective_depth_overlap([0.0, 0.2, 0.4, 0.9])
    2

    The first l in 0..L-2 with overlap[l] > threshold. overlap has shape [L], the shared share of the top five in
    [0, 1], or is the dict of `logit_lens`; of a dict without signal it is None, with a warning. ValueError if it is not
    finite.
    Source: Hu et al. 2025, Table 1 (threshold 0.3).
    Cost: no forward pass.
    """
    return _papers_depth("overlap", overlap if isinstance(overlap, Mapping) else [overlap], threshold)


def _papers_depth(name: str, given: Sequence | Mapping, threshold: float | None = None) -> int | None:
    """The depth by one of the papers' metrics, of its curves or of the result that has them."""
    metric = METRICS[name]
    curves = metric.arguments(given) if isinstance(given, Mapping) else given
    if isinstance(given, Mapping):
        if reason := metric.no_signal(given):
            warnings.warn(f"no effective depth: {reason}", stacklevel=3)
            return None
    if name == "cosine":
        if np.isnan(as_array(curves[0])).all():
            return None
        curves = [_checked(f"cosine: {key}", curve) for key, curve in zip(metric.keys, curves, strict=True)]
    return metric.depth(_checked(name, metric.curve(curves)), threshold)


def _lens_without_signal(lens: Mapping) -> str:
    """Why neither KL divergence nor overlap of a lens's result tells a depth; "" if they do.

    The distributions hardly differ, or the model predicts the text no better than its tokens in any other order, so
    that where its prediction forms means nothing. Results that lack a key are not judged by it.
    """
    largest = float(as_array(lens.get("res_kl_divs", np.inf)).max())
    if largest < LEAST_KL:
        return f"no signal: largest KL {largest:.2f} nats"
    if {"loss", "shuffled_loss", "n_tokens"} <= lens.keys():
        counted = as_array(lens["n_tokens"]) > 1  # nothing predicts a prompt of one token
        loss, shuffled = (float(as_array(lens[key])[counted].mean()) for key in ("loss", "shuffled_loss"))
        if counted.any() and shuffled - loss < LEAST_GAIN:
            return f"no signal: a loss of {loss:.1f} nats per token, and of {shuffled:.1f} in any other order of tokens"
    return ""


def _cosine_without_signal(contribution: Mapping) -> str:
    """Why the mean cosine of a result tells no depth: it is no larger than that of random directions; "" if it does."""
    if "chance_cos" not in contribution:
        return ""
    metric, chance = METRICS["cosine"], float(as_array(contribution["chance_cos"]).item())
    size = float(np.sqrt(np.square(metric.curve(metric.arguments(contribution))).mean()))
    if size < LEAST_COSINE * chance:
        return f"no signal: cosines of {size:.3f}, and random directions have {chance:.3f}"
    return ""


def effective_depth_erasure(erasure_effect: Curve, n_answer_tokens: int, first_token: int = 1) -> int | None:
    """The last layer at which erasing any question token still moves the answer by over half the largest effect.

    e is `erasure_profile`; the last l in 0..L-1 with e[l] > max(e) / 2. None where nothing has an effect. Shapes and
    errors as for `erasure_profile`. The probe is Csordás et al. 2025, section 3.4; the rule is ours.
    """
    e = erasure_profile(erasure_effect, n_answer_tokens, first_token)
    layers = np.flatnonzero(e > e.max() / 2)
    return int(layers[-1]) if layers.size else None


def erasure_profile(erasure_effect: Curve, n_answer_tokens: int, first_token: int = 1) -> np.ndarray:
    """The largest effect of erasing any question token at the input of each block, shape [L].

    erasure_effect has shape [L + 1, T], norm of a difference of probabilities; row l is what enters block l. Of the T
    tokens, the last A = n_answer_tokens are the answer and the one before them is where the answer is read: erasing it
    moves the answer at every depth. Token 0 is left out too, as in the skips: models use it as an attention sink, and
    erasing that moves every answer. ValueError if no question token is left, or a value is not
    finite.
    """
    effects = _checked("erasure", erasure_effect, n_axes=2).astype(float)
    question = effects[:-1, first_token : max(effects.shape[1] - n_answer_tokens - 1, 0)]
    if n_answer_tokens < 1 or not question.size:
        raise ValueError(
            f"erasure: no question token lies between token {first_token} and the one that predicts the answer "
            f"({effects.shape[1]} tokens, {n_answer_tokens} of them the answer); give a longer question"
        )
    return question.max(1)


def progress_depth(progress: Curve, threshold: float = 0.5) -> int | None:
    """The first layer whose input has gone at least half of the way from the embeddings to the final residual.

    The first l in 0..L-1 with s[l] >= threshold; progress [L + 1] is s_l = ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖², mean
    over tokens. None where only the last block gets there. ValueError if it is not finite. The rule is ours.
    """
    return _first(_checked("progress", progress)[:-1] >= threshold)


def settling_depth(settled: Curve, threshold: float = 0.5) -> int | None:
    """The first layer at whose input half of the tokens have settled: the median over tokens of where each does.

    A token settles at the first l with min over j <= l of JSD(p_j, y) <= 1/2 bit. settled [L] is `res_settled`, the
    share of tokens that have by layer l; the first l with settled[l] >= threshold. None where most settle after the
    last block only. ValueError if it is not finite. Thresholds are ours.
    """
    return _first(_checked("settled", settled) >= threshold)


def settling_profile(settled: Curve) -> np.ndarray:
    """The share of tokens that settles at each of layers 0..L-1, and after the last block, shape [L + 1].

    Its centre of mass is the mean over tokens of the settling depth, with L for those that settle last of all.
    """
    return np.diff(_checked("settled", settled).astype(float), prepend=0, append=1).clip(0)


def deep_thinking_ratio(lens: Curve | Mapping) -> float:
    """The share of tokens whose prediction settles only in the last 15 % of the layers.

    >>> dl.deep_thinking_ratio([0.0, 0.0, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0])
    0.25

    A token settles at the first layer c with min over j <= c of JSD(p_j, y) <= g = 1/2 bit, p_j the logit lens of h_j,
    the residual stream after j of L blocks; it is a deep-thinking token if c >= ⌈ρ L⌉, ρ = 0.85. The paper's
    tokens are those that the model generates: give the dict of `logit_lens(…, generate=n)`, or its `res_settled` [L].
    Here the embeddings, j = 0, count as a layer too. ValueError if it is not finite.
    Source: arXiv 2602.13517 (deep-thinking ratio).
    Cost: no forward pass.
    """
    curve = _checked("settled", lens["res_settled"] if isinstance(lens, Mapping) else lens)
    return 1 - float(curve[max(math.ceil(LATE * len(curve) - 1e-9) - 1, 0)])


def removal_depth(influence: Curve, loss: Curve, sizes: Curve) -> int | None:
    """The last layer that would be left if the removable blocks (see `most_removed`) were the last ones, L − 1 − n.

    influence [L], loss [N, L] and sizes [N] are `block_removal`'s. The rule is ours.
    """
    return len(influence) - 1 - most_removed(loss, sizes)


def most_removed(loss: Curve, sizes: Curve, at_most: float = AT_MOST) -> int:
    """The largest of sizes [N] whose cheapest start raises the loss [N, L] by at most so many nats; 0 for none."""
    cheapest = _checked("removal", np.nanmin(as_array(loss), 1))
    return int(as_array(sizes)[cheapest <= at_most].max(initial=0))


def skip_profile(kl: Curve) -> np.ndarray:
    """The mean damage of skipping each block, KL(y ‖ ȳ) in nats, without the rounding of what changes nothing, [L]."""
    return _checked("skip damage", kl).astype(float).clip(0)


def depth_score(profile: Curve) -> float | None:
    """The centre of mass of an effect over layers, sum(l · e[l]) / sum(e[l]), in layers.

    profile has shape [L], no value below zero, such as `skip_profile`. None where nothing has an effect. ValueError
    if a value is negative or not finite. Source: the depth score of Csordás et al. 2025, section 4.
    """
    e = _checked("depth score", profile).astype(float)
    if (e < 0).any():
        raise ValueError(f"depth score: the effect is {e.min():.3g} at layer {e.argmin()}; pass |e|")
    return float(np.arange(len(e)) @ e / e.sum()) if e.any() else None


def ratio(ed: int | None, n_layers: int) -> float | None:
    """The effective depth as a share of the model's depth, (ED + 1) / L; None where the effective depth is.

    >>> dl.ratio(2, 4)
    0.75

    ValueError if ed is not a layer of the model. Source: Hu et al. 2025, Table 1.
    Cost: no forward pass.
    """
    if ed is None:
        return None
    if not 0 <= ed < n_layers:
        raise ValueError(f"effective depth {ed} is not a layer of a model with {n_layers} layers (0..{n_layers - 1})")
    return (ed + 1) / n_layers


def as_array(values: Curve) -> np.ndarray:
    """A curve or map as an array in its own precision, bfloat16 as float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(values)


def n_answer_tokens(result: Mapping) -> int:
    """How many tokens at the end of an erasure result are the answer's: its `n_answer`.

    Older results and the papers' have none: there it is those whose text reaches into the answer in `meta`, or into the
    papers' ("28"); 1 if the tokens are not known.
    """
    if "n_answer" in result:
        return int(result["n_answer"])
    answer = result.get("meta", {}).get("settings", {}).get("answer", ANSWER)
    count, tokens = 1, result.get("tokens") or []
    while count < len(tokens) and len("".join(tokens[-count:])) < len(answer):
        count += 1
    return count


def _checked(name: str, values: Curve, n_axes: int = 1) -> np.ndarray:
    """The values as an array in their own precision: 0.3 stored as float32 must not exceed 0.3.

    ValueError if there are none, if they have another number of axes, or if one is not finite.
    """
    array = as_array(values)
    if array.ndim != n_axes or not array.size:
        raise ValueError(f"{name} must have one {'value' if n_axes == 1 else 'row'} per layer; shape is {array.shape}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise ValueError(
            f"{name} is {array[tuple(bad[0])]} at layer {bad[0][0]}, so its effective depth is undefined; run the "
            "probe again"
        )
    return array


def _first(hits: np.ndarray) -> int | None:
    return int(hits.argmax()) if hits.any() else None


@dataclass(frozen=True)
class Metric:
    """One depth of a model: the probe and keys it reads, and how it follows from them.

    rule: a layer, from the keys' curves; None if the depth is a centre of mass only. profile: the effect of each layer,
    whose centre of mass is the depth score; None for the papers' own metrics. threshold: the papers'. level: of the
    papers' metrics, the value that the curve is compared with, from curves [..., L] and a threshold. A layer satisfies
    the rule where the curve is below it; if
    `above`, where it is above it; if `turns`, where it is below it and the next layer is not. no_signal: why a probe's
    result carries no such depth, "" if it does.
    """

    probe: str
    keys: tuple[str, ...]
    rule: Callable[..., int | None] | None = None
    threshold: float | None = None
    profile: Callable[..., np.ndarray] | None = None
    level: Callable[[np.ndarray, Any], np.ndarray | float] | None = None
    above: bool = False
    turns: bool = False
    no_signal: Callable[[Mapping], str] = lambda result: ""

    def reads(self, result: Mapping) -> bool:
        """Whether a result has all keys of this metric."""
        return all(key in result for key in self.keys)

    def arguments(self, result: Mapping) -> list:
        """What rule and profile take from a probe's result; ValueError for that of another probe."""
        if missing := [key for key in self.keys if key not in result]:
            raise ValueError(f"there is no {', '.join(missing)} here; give the result of dl.{self.probe}")
        curves = [result[key] for key in self.keys]
        return [*curves, n_answer_tokens(result)] if self.probe == "residual_erasure" else curves

    def layer(self, result: Mapping) -> int | None:
        """The layer that the rule finds; None if there is none, or the metric has no rule."""
        return self.rule(*self.arguments(result)) if self.rule else None

    def curve(self, curves: Sequence[Curve]) -> np.ndarray:
        """The curve that the rule reads: the mean of its keys' curves."""
        return np.mean([as_array(curve) for curve in curves], axis=0)

    def gap(self, curves: np.ndarray, threshold: float | None = None) -> np.ndarray:
        """The distance of curves [..., L] from the level: below zero where a layer has crossed it."""
        if not self.level:
            raise TypeError(f"a metric of {self.probe} that is not the papers' has no level to be compared with")
        level = self.level(curves, self.threshold if threshold is None else float(threshold))
        return level - curves if self.above else curves - level

    def crosses(self, gaps: np.ndarray) -> np.ndarray:
        """Whether layer l of 0..L-2 satisfies the rule of one of the papers' metrics, [..., L - 1].

        gaps [..., L]: what `gap` returns, which for the cosine is the curve itself.
        """
        below = gaps < 0
        return below[..., :-1] & ~below[..., 1:] if self.turns else below[..., :-1]

    def depths(self, gaps: np.ndarray) -> np.ndarray:
        """The effective depth of each row of gaps [N, L]; where there is none, a layer beyond the rule.

        That is -1 if the cosine never is negative, else L-1: the curve crosses no earlier than at the last layer.
        """
        satisfied, beyond = self.crosses(gaps), gaps.shape[1] - 1
        layers = np.arange(beyond)
        if self.turns:
            last = np.where(satisfied, layers, -1).max(1, initial=-1)
            return np.where((last < 0) & (gaps < 0).any(1), beyond, last)
        return np.where(satisfied, layers, beyond).min(1, initial=beyond)

    def depth(self, curve: np.ndarray, threshold: float | None = None) -> int | None:
        """The effective depth of one curve [L]; None if no layer satisfies the rule."""
        (depth,) = self.depths(self.gap(curve, threshold)[None])
        return None if depth in (-1, len(curve) - 1) else int(depth)


METRICS = {
    "cosine": Metric(
        "relative_contribution",
        ("att_cos", "mlp_cos", "layer_cos"),
        effective_depth_cosine,
        level=lambda cosine, _: 0.0,
        turns=True,
        no_signal=_cosine_without_signal,
    ),
    "kl": Metric(
        "logit_lens",
        ("res_kl_divs",),
        effective_depth_kl,
        0.5,
        level=lambda kl, threshold: threshold * kl.max(-1, keepdims=True),
        no_signal=_lens_without_signal,
    ),
    "overlap": Metric(
        "logit_lens",
        ("res_overlaps",),
        effective_depth_overlap,
        0.3,
        level=lambda overlap, threshold: threshold,
        above=True,
        no_signal=_lens_without_signal,
    ),
    "skips_future": Metric("layer_effects", ("future_kl",), profile=skip_profile),
    "skips_all": Metric("layer_effects", ("all_kl",), profile=skip_profile),
    "erasure": Metric("residual_erasure", ("erasure_effect",), effective_depth_erasure, profile=erasure_profile),
    "progress": Metric("relative_contribution", ("progress",), progress_depth, 0.5),
    "removal": Metric("block_removal", ("block_influence", "removal_loss", "removal_sizes"), removal_depth, AT_MOST),
    "settling": Metric(
        "logit_lens", ("res_settled",), settling_depth, 0.5, settling_profile, no_signal=_lens_without_signal
    ),
}
PAPER_METRICS = ("cosine", "kl", "overlap")
