"""Weighted ridge regression from streamed moments: what is minimised is the squared relative error that is reported.

For states x of the source and h of the target, with w = 1 / max(‖h‖, 1e-6)² of every token,

    W, b = argmin Σ_tokens w ‖W x + b − h‖² + λ ‖W‖².

Why weighted: the residual of a model's first token is some hundred times as long as the others. Without weights it
dominates the fit, although the reported error ‖W x + b − h‖ / ‖h‖ counts it as one token among many. Because the
weights depend on the target, XᵀWX belongs to the pair of layers. It is accumulated together with XᵀWY, as one product
of (d_s + 1) × (d_s + 1 + d_t).
"""

from collections.abc import Iterator

import torch

STRENGTHS = [1e-12, 1e-9, 1e-6, 1e-3, 1.0]  # λ in units of the mean eigenvalue of the centred XᵀWX
_TIE = 1e-12  # of the squares explained: a smaller gain on the third split is rounding, and the weaker ridge wins


def with_ones(x: torch.Tensor) -> torch.Tensor:
    """[n, d + 1]; the last column is 1, so that moments include sums and means."""
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def root_weights(h: torch.Tensor) -> torch.Tensor:
    """1 / max(‖h‖, 1e-6) of each token, [n, 1]."""
    return 1 / h.norm(dim=1, keepdim=True).clamp_min(1e-6)


def moments(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Σ w [x 1]ᵀ [x 1 h] in float64, [d_s + 1, d_s + 1 + d_t], of source states [n, d_s] and target states [n, d_t]."""
    roots = root_weights(h := h.double())
    rows = with_ones(x.double()) * roots
    return rows.T @ torch.cat([rows, h * roots], 1)


def means(moments: torch.Tensor) -> torch.Tensor:
    """The weighted means of [x 1 h], [d_s + 1 + d_t]."""
    return moments[-1] / moments[-1, len(moments) - 1]


def solved(moments: torch.Tensor, strengths: list[float]) -> Iterator[torch.Tensor]:
    """[Wᵀ; b] [d_s + 1, d_t] for each λ, in STRENGTHS' unit."""
    d, mean = len(moments) - 1, means(moments)
    centred = moments[:d] - moments[:d, d, None] * mean
    for strength in strengths:
        ridge = strength * centred.diagonal().mean() + torch.finfo(torch.float64).tiny
        W = torch.linalg.solve(centred[:, :d] + ridge * torch.eye(d).double(), centred[:, d + 1 :])
        yield torch.cat([W, (mean[d + 1 :] - mean[:d] @ W)[None]])


def best(fit: torch.Tensor, choose: torch.Tensor) -> torch.Tensor:
    """`solved` with the λ of STRENGTHS that leaves the least squares on the moments to choose."""
    d, mean, least = len(fit) - 1, means(fit), None
    # about the means of the split to fit, as the map is: Σ w (z − μ)(z − μ)ᵀ = M − s μ − μ s + Σw μ μ
    around = choose[:d] - choose[:d, d, None] * mean - mean[:d, None] * (choose[d] - choose[d, d] * mean)
    for weights in solved(fit, STRENGTHS):
        W = weights[:d]
        loss = (W * (around[:, :d] @ W - 2 * around[:, d + 1 :])).sum()  # up to what no W changes
        if least is None or loss < least - _TIE * least.abs():
            least, found = loss, weights
    return found
