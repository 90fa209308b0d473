"""Effective depth: the layer at which a model stops composing features and starts refining its answer.

Three rules on three curves over the layers l = 0..L-1 (Hu et al. 2025, Table 1). Every rule looks at
l in 0..L-2 only, and where no layer satisfies it the effective depth is missing (`None`): neither -1 nor an error.
"""

from collections.abc import Sequence

import numpy as np
import torch

Curve = torch.Tensor | np.ndarray | Sequence[float]


def effective_depth_cosine(att_cos: Curve, mlp_cos: Curve, layer_cos: Curve) -> int | None:
    """The last layer after which the contributions turn from removing to adding features.

    c = mean(att_cos, mlp_cos, layer_cos); the last l in 0..L-2 with c[l] < 0 and c[l+1] >= 0.
    Each curve has shape [L], cosines in [-1, 1]. ValueError if one is not finite, or if their lengths differ.
    Source: Hu et al. 2025, Table 1; the cosines are those of Csordás et al. 2025.
    """
    named = {"att_cos": att_cos, "mlp_cos": mlp_cos, "layer_cos": layer_cos}
    curves = [_curve("cosine", values, key) for key, values in named.items()]
    lengths = {key: len(curve) for key, curve in zip(named, curves, strict=True)}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise ValueError(f"cosine: the three curves must have one value a layer, found lengths {found}")
    c = sum(curves) / 3
    return _last((c[:-1] < 0) & (c[1:] >= 0))


def effective_depth_kl(kl: Curve, threshold: float = 0.5) -> int | None:
    """The first layer whose logit lens is near the model's answer, relative to the farthest layer.

    The first l in 0..L-2 with kl[l] < threshold · max(kl). kl has shape [L], nats. ValueError if it is not finite.
    Source: Hu et al. 2025, Table 1 (threshold 0.5).
    """
    curve = _curve("kl", kl)
    return _first(curve[:-1] < threshold * curve.max())


def effective_depth_overlap(overlap: Curve, threshold: float = 0.3) -> int | None:
    """The first layer whose logit lens already ranks the answer's top tokens high.

    The first l in 0..L-2 with overlap[l] > threshold. overlap has shape [L], the shared share of the top five in
    [0, 1]. ValueError if it is not finite. Source: Hu et al. 2025, Table 1 (threshold 0.3).
    """
    return _first(_curve("overlap", overlap)[:-1] > threshold)


def ratio(ed: int | None, n_layers: int) -> float | None:
    """The effective depth as a share of the model's depth, (ED + 1) / L; missing where the effective depth is.

    ValueError if ed is not a layer of the model (Hu et al. 2025, Table 1).
    """
    if ed is None:
        return None
    if not 0 <= ed < n_layers:
        raise ValueError(f"effective depth {ed} is not a layer of a model with {n_layers} layers (0..{n_layers - 1})")
    return (ed + 1) / n_layers


def _curve(metric: str, values: Curve, key: str | None = None) -> np.ndarray:
    """The values as a float array [L], in their own precision: 0.3 stored as float32 must not exceed 0.3."""
    name = f"{metric}: {key}" if key else metric
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    curve = np.asarray(values)
    if not np.issubdtype(curve.dtype, np.floating):
        curve = curve.astype(np.float64)
    if curve.ndim != 1 or len(curve) == 0:
        raise ValueError(f"{name} must have one value a layer, shape [L]; found shape {list(curve.shape)}")
    bad = np.flatnonzero(~np.isfinite(curve))
    if len(bad):
        raise ValueError(f"{name} is {curve[bad[0]]} at layer {bad[0]}, so its effective depth is undefined; "
                         "run the probe again")
    return curve


def _first(hits: np.ndarray) -> int | None:
    return int(np.argmax(hits)) if hits.any() else None


def _last(hits: np.ndarray) -> int | None:
    return int(np.flatnonzero(hits)[-1]) if hits.any() else None
