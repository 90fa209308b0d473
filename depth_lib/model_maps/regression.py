"""Weighted ridge regression from streamed moments: what is minimised is the squared relative error that is reported.

For source layer m and target layer l, with w = 1 / max(‖h_l‖, 1e-6)² of every token,

    W, b = argmin Σ_tokens w ‖W x + b − h_l‖² + λ ‖W‖²,        x = h_m of the source.

Why weighted: a model's first token has a residual some hundred times as long as the others. Without weights it rules
the fit, while the error that is shown, ‖W x + b − h_l‖ / ‖h_l‖, counts it as one token among many. Since the weights
belong to the target layer, XᵀWX belongs to the pair and not to the source layer alone. It is streamed with XᵀWY as
one product of (d_s + 1) × (d_s + 1 + d_t): 1 + d_s/d_t times the arithmetic and the memory of XᵀY, twice for models of
equal width and 1.3 times for 1536 → 5120. Weights shared by all layers would save that, and fit another error than
the one that is reported.
"""

import torch

STRENGTHS = [1e-12, 1e-9, 1e-6, 1e-3, 1.0]  # λ in units of the mean eigenvalue of the centred XᵀWX
_STRIPS = 4  # of the rows of XᵀWX: more leave out more of its lower triangle, in slower products
_TIE = 1e-12  # of the squares explained: a smaller gain on the third split is rounding, and the weaker ridge wins


def ones_beside(x: torch.Tensor) -> torch.Tensor:
    """[layers, n, d] as float64 [layers, n, d + 1], the last column 1: it brings sums and means along."""
    with_one = torch.ones(*x.shape[:2], x.shape[2] + 1, dtype=torch.float64, device=x.device)
    with_one[..., :-1] = x
    return with_one


def normed(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Target states [n, d_t] as float64, and 1 / max(‖y‖, 1e-6) [n, 1], the root of their weights."""
    y = y.double()
    return y, 1 / y.norm(dim=-1, keepdim=True).clamp_min(1e-6)


def accumulate(moments: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Add Σ w [x 1]ᵀ [x 1 y] of a block of tokens to moments [S, T, d_s + 1, d_s + 1 + d_t], for every pair.

    x: source states [S, n, d_s]; y: target states [T, n, d_t]. Of the symmetric XᵀWX only what `solve` reads is
    right: the upper triangle. Strips of rows leave most of the other one out.
    """
    x, width = ones_beside(x), x.shape[2] + 1
    strip = -(-width // _STRIPS)
    for l in range(len(y)):
        target, root = normed(y[l])
        target.mul_(root)
        for m in range(len(x)):
            rows = x[m] * root
            moments[m, l, :, width:].addmm_(rows.T, target)
            for start in range(0, width, strip):
                part = slice(start, min(start + strip, width))
                moments[m, l, part, start:width].addmm_(rows[:, part].T, rows[:, start:])


def solve(fit: torch.Tensor, choose: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The map of one pair from its moments on the split to fit; the ridge is the one with the least weighted squares
    on the split to choose. Writes [Wᵀ; b] [d_s + 1, d_t] over XᵀWY in `fit`; returns λ in STRENGTHS' unit and the
    weighted mean of the target [d_t], the best map that reads nothing.

    With XᵀWX = Q Λ Qᵀ (centred) all strengths share one factorisation, W(λ) = Q (Λ + λ)⁻¹ Qᵀ XᵀWY, and so does the loss
    Σ_ij D_i (Qᵀ G Q)_ij D_j (P Pᵀ)_ij − 2 Σ_i D_i (Qᵀ C Pᵀ)_ii, D = (Λ + λ)⁻¹, P = Qᵀ XᵀWY; G, C those of `choose`.
    """
    d = len(fit) - 1
    for moments in (fit, choose):
        square = moments[:, : d + 1]
        square.copy_(square.triu() + square.triu(1).T)
    mean = fit[d] / fit[d, d]
    centred = fit[:d] - fit[:d, d, None] * mean
    eigenvalues, q = _eigh(centred[:, :d])
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


def _eigh(matrix):
    """On one thread: threads that wait for each other a few hundred times a matrix take a hundred times as long where
    others compute, and hardly less where nobody does."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.linalg.eigh(matrix)
    finally:
        torch.set_num_threads(n_threads)


def errors(maps: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """‖W x + b − y‖ / max(‖y‖, 1e-6) [S, T, n] of every pair at every token; maps [S, T, d_s + 1, d_t]."""
    x = ones_beside(x)
    found = torch.empty(len(x), len(y), x.shape[1], dtype=torch.float64, device=x.device)
    for l in range(len(y)):
        target, root = normed(y[l])
        for m in range(len(x)):
            found[m, l] = (x[m] @ maps[m, l] - target).norm(dim=-1) * root[:, 0]
    return found
