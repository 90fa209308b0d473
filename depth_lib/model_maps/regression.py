"""Weighted ridge regression from streamed moments: what is minimised is the squared relative error that is reported.

For source layer m and target layer l, with w = 1 / max(‖h_l‖, 1e-6)² of every token,

    W, b = argmin Σ_tokens w ‖W x + b − h_l‖² + λ ‖W‖²,        x = h_m of the source.

Why weighted: the residual of a model's first token is some hundred times as long as the others. Without weights it
dominates the fit, although the reported error ‖W x + b − h_l‖ / ‖h_l‖ counts it as one token among many. Because the
weights depend on the target layer, XᵀWX belongs to the pair of layers. It is accumulated together with XᵀWY, as one
product of (d_s + 1) × (d_s + 1 + d_t).
"""

import torch

STRENGTHS = [1e-12, 1e-9, 1e-6, 1e-3, 1.0]  # λ in units of the mean eigenvalue of the centred XᵀWX
_TIE = 1e-12  # of the squares explained: a smaller gain on the third split is rounding, and the weaker ridge wins


def with_ones(x: torch.Tensor) -> torch.Tensor:
    """[layers, n, d] as float64 [layers, n, d + 1]; the last column is 1, so that moments include sums and means."""
    return torch.cat([x.double(), x.new_ones(*x.shape[:2], 1, dtype=torch.float64)], -1)


def normed(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Target states [n, d_t] as float64, and 1 / max(‖y‖, 1e-6) [n, 1], the square root of their weights."""
    y = y.double()
    return y, 1 / y.norm(dim=-1, keepdim=True).clamp_min(1e-6)


def accumulate(moments: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Add Σ w [x 1]ᵀ [x 1 y] of a block of tokens to moments [S, T, d_s + 1, d_s + 1 + d_t], for every pair.

    x: source states [S, n, d_s]; y: target states [T, n, d_t].
    """
    x = with_ones(x)
    for l, (h, root) in enumerate(map(normed, y)):
        for m in range(len(x)):
            rows = x[m] * root
            moments[m, l].addmm_(rows.T, torch.cat([rows, h * root], 1))


def solve(fit: torch.Tensor, choose: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The map of one pair from its moments; the ridge is the one with the least squares on the moments to choose.

    Writes [Wᵀ; b] [d_s + 1, d_t] over XᵀWY in `fit`; returns λ in STRENGTHS' unit and the weighted mean of the target
    [d_t], the best map that ignores the source.

    With XᵀWX = Q Λ Qᵀ (centred) all strengths share one factorisation, W(λ) = Q (Λ + λ)⁻¹ Qᵀ XᵀWY, and so does the loss
    Σ_ij D_i (Qᵀ G Q)_ij D_j (P Pᵀ)_ij − 2 Σ_i D_i (Qᵀ C Pᵀ)_ii, D = (Λ + λ)⁻¹, P = Qᵀ XᵀWY; G, C those of `choose`.
    """
    d = len(fit) - 1
    mean = fit[d] / fit[d, d]
    centred = fit[:d] - fit[:d, d, None] * mean
    eigenvalues, q = torch.linalg.eigh(centred[:, :d])
    p = q.T @ centred[:, d + 1 :]
    unit = eigenvalues.mean().clamp_min(torch.finfo(torch.float64).tiny)
    # about the means of the split to fit, as the map is: Σ w (z − μ)(z − μ)ᵀ = M − μ s − s μ + Σw μμ
    around = choose[:d] - choose[:d, d, None] * mean - mean[:d, None] * (choose[d] - choose[d, d] * mean)
    g, c = q.T @ around[:, :d] @ q * (p @ p.T), ((q.T @ around[:, d + 1 :]) * p).sum(1)
    shrink = [1 / (eigenvalues.clamp_min(0) + strength * unit) for strength in STRENGTHS]
    losses = torch.stack([s @ g @ s - 2 * s @ c for s in shrink])
    best = int((losses <= losses.min() + _TIE * losses.min().abs()).nonzero()[0])
    weights = q @ (p * shrink[best][:, None])
    fit[:d, d + 1 :] = weights
    fit[d, d + 1 :] = mean[d + 1 :] - mean[:d] @ weights
    return STRENGTHS[best], mean[d + 1 :].clone()


def errors(maps: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """‖W x + b − y‖ / max(‖y‖, 1e-6) [S, T, n] of every pair at every token; maps [S, T, d_s + 1, d_t]."""
    x = with_ones(x)
    result = torch.empty(len(x), *y.shape[:2], dtype=torch.float64, device=x.device)
    for l, (h, root) in enumerate(map(normed, y)):
        for m in range(len(x)):
            result[m, l] = (x[m] @ maps[m, l] - h).norm(dim=-1) * root[:, 0]
    return result
