"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4)."""

import torch

from .residual_stream import first, inputs, probabilities, start_at, token_budget


def integrated_gradients(llm, arch, ids, answer, quadrature, tolerance, layers, budget):
    """Integrated gradients of the answer's probability at the output of each block.

    With h = h_{l+1} [T, d], b its mean over the sequence and F the summed probability of the answer's true tokens:
    igrads[l, t] = Σ_d (h − b)[t, d] · ∫₀¹ ∂F/∂h[t, d] at b + r (h − b) dr.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; quadrature:
    "riemann" (256 left-end steps) or "gauss" (Gauss–Legendre nodes, doubled until |completeness| ≤ tolerance ·
    |F(h) − F(b)|, at most 256); layers: the blocks to do; budget: tokens in one forward pass, or None. Returns for
    each layer `igrads` [T], `completeness` = Σ_t igrads − (F(h) − F(b)), `f_difference` = F(h) − F(b) and `n_nodes`.
    """
    budget = token_budget(llm, budget)
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            residuals = [first(block.output)[0].clone() for block in llm.blocks]
            tracer.stop()
    results = []
    for l in layers:
        n_nodes = 256 if quadrature == "riemann" else 16
        while True:
            result = _integral(llm, arch, ids, answer, residuals[l], l, _nodes(quadrature, n_nodes), budget)
            error, difference = abs(result["completeness"].item()), abs(result["f_difference"].item())
            if n_nodes >= 256 or error <= max(tolerance * difference, 1e-6):
                break
            n_nodes *= 2
        results.append({**result, "n_nodes": torch.tensor(float(n_nodes))})
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _integral(llm, arch, ids, answer, h, l, nodes, budget):
    """The integral at the output h [T, d] of block l by a quadrature rule [(r, weight)]; F(b) and F(h) ride along."""
    end = answer[-1]  # later tokens are not seen by any position that predicts the answer
    b = h.float().mean(0, keepdim=True)
    step = h[:end].float() - b
    points = [(0.0, 0.0), (1.0, 0.0), *nodes]
    rows = max(1, budget // end)
    gradient, f = torch.zeros_like(step), []
    for begin in range(0, len(points), rows):
        r, weights = torch.tensor(points[begin : begin + rows], device=h.device).T[:, :, None, None]
        x = (b + r * step).requires_grad_()
        with llm.trace(inputs(ids[:end], batch=1 if arch["grows"] else len(r)), use_cache=False) as tracer:
            final = x.to(h.dtype)
            if l + 1 < arch["n_layers"]:
                start_at(llm, arch, l + 1, final)
                final = first(llm.blocks[-1].output)
            f_rows = _answer_probability(llm, arch, final, ids, answer)
            (slope,) = torch.autograd.grad(f_rows.sum(), x)
            gradient += (weights * slope).sum(0)
            f += f_rows.tolist()
            tracer.stop()
    igrads = torch.zeros(len(ids))
    igrads[:end] = (step * gradient).sum(-1).cpu()
    difference = torch.tensor(f[1] - f[0])
    return {"igrads": igrads, "completeness": igrads.sum() - difference, "f_difference": difference}


def _answer_probability(llm, arch, final, ids, answer):
    """F [R]: the summed probability of the answer's true tokens in every row of the final residuals [R, T, d]."""
    predicting = final[:, [place - 1 for place in answer]]
    y = probabilities(llm, arch, predicting.flatten(0, 1))
    true = torch.tensor([ids[place] for place in answer], device=y.device).repeat(len(final))
    return y.gather(1, true[:, None]).reshape(len(final), -1).sum(1)


def _nodes(quadrature, n):
    """n quadrature nodes in [0, 1] with their weights: left-end steps, or Gauss–Legendre by Golub & Welsch 1969."""
    if quadrature == "riemann":
        return [(k / n, 1 / n) for k in range(n)]
    k = torch.arange(1, n, dtype=torch.float64)
    off_diagonal = torch.diag(k / (4 * k**2 - 1).sqrt(), 1)
    nodes, vectors = torch.linalg.eigh(off_diagonal + off_diagonal.T)
    return [((x + 1) / 2, v**2) for x, v in zip(nodes.tolist(), vectors[0].tolist(), strict=True)]
