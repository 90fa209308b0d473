"""Weighted ridge regression from streamed moments: what is minimised is the squared relative error that is reported.

For source layer m and target layer l, with w = 1 / max(‖h_l‖, 1e-6)² of every token,

    W, b = argmin Σ_tokens w ‖W x + b − h_l‖² + λ ‖W‖²,        x = h_m of the source.

Why weighted: the residual of a model's first token is some hundred times as long as the others. Without weights it
dominates the fit, although the reported error ‖W x + b − h_l‖ / ‖h_l‖ counts it as one token among many. Because the
weights depend on the target layer, XᵀWX belongs to the pair of layers. It is accumulated together with XᵀWY, as one
product of (d_s + 1) × (d_s + 1 + d_t).
"""

from itertools import product

import torch

STRENGTHS = [1e-12, 1e-9, 1e-6, 1e-3, 1.0]  # λ in units of the mean eigenvalue of the centred XᵀWX
_TIE = 1e-12  # of the squares explained: a smaller gain on the third split is rounding, and the weaker ridge wins


def accumulate(moments: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Add Σ w [x 1]ᵀ [x 1 y] of a sequence of tokens to moments [S, T, d_s + 1, d_s + 1 + d_t], for every pair.

    x: source states [S, n, d_s]; y: target states [T, n, d_t].
    """
    x, y = _with_ones(x), y.double()
    roots = _roots_of_weights(y)
    for m, l in product(range(len(x)), range(len(y))):
        rows = x[m] * roots[l]
        moments[m, l].addmm_(rows.T, torch.cat([rows, y[l] * roots[l]], 1))


def solve(fit: torch.Tensor, choose: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The map of one pair from its moments; the ridge is the one with the least squares on the moments to choose.

    Writes [Wᵀ; b] [d_s + 1, d_t] over XᵀWY in `fit`. Returns λ in STRENGTHS' unit, and the weighted mean of the target
    [d_t], which is the best map that ignores the source. With XᵀWX = Q Λ Qᵀ (centred) all strengths share one
    factorisation: W(λ) = Q (Λ + λ)⁻¹ Qᵀ XᵀWY. The squares are those of W up to what no W changes.
    """
    d = len(fit) - 1
    mean = fit[d] / fit[d, d]
    centred = fit[:d] - fit[:d, d, None] * mean
    # about the means of the split to fit, as the map is: Σ w (z − μ)(z − μ)ᵀ = M − μ s − s μ + Σw μμ
    around = choose[:d] - choose[:d, d, None] * mean - mean[:d, None] * (choose[d] - choose[d, d] * mean)
    eigenvalues, q = torch.linalg.eigh(centred[:, :d])
    unit = eigenvalues.mean().clamp_min(torch.finfo(torch.float64).tiny)
    rotated = q.T @ centred[:, d + 1 :]
    least = None
    for ridge in STRENGTHS:
        weights = q @ (rotated / (eigenvalues.clamp_min(0) + ridge * unit)[:, None])
        loss = (weights * (around[:, :d] @ weights - 2 * around[:, d + 1 :])).sum()
        if least is None or loss < least - _TIE * least.abs():
            least, strength, best = loss, ridge, weights
    fit[:d, d + 1 :] = best
    fit[d, d + 1 :] = mean[d + 1 :] - mean[:d] @ best
    return strength, mean[d + 1 :].clone()


def errors(
    maps: torch.Tensor, means: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """‖W x + b − y‖ / max(‖y‖, 1e-6) at every token: of every pair [S, T, n], and of the means alone [T, n].

    maps: [S, T, d_s + 1, d_t]; means: [T, d_t].
    """
    x, y = _with_ones(x), y.double()
    roots = _roots_of_weights(y)
    of_maps = torch.stack([((row @ maps[m] - y) * roots).norm(dim=-1) for m, row in enumerate(x)])
    return of_maps, ((means[:, None] - y) * roots).norm(dim=-1)


def _with_ones(x):
    """[layers, n, d] as float64 [layers, n, d + 1]; the last column is 1, so that moments include sums and means."""
    return torch.cat([x.double(), x.new_ones(*x.shape[:2], 1, dtype=torch.float64)], -1)


def _roots_of_weights(y):
    """1 / max(‖y‖, 1e-6) [T, n, 1], the square roots of the weights of float64 states [T, n, d_t]."""
    return 1 / y.norm(dim=-1, keepdim=True).clamp_min(1e-6)
