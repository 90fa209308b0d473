"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4)."""

import torch

from .residual_stream import first, inputs, probabilities, start_at, token_budget


def integrated_gradients(llm, arch, ids, answer, layers, tolerance, steps, budget):
    """Integrated gradients of the answer's probability at the output of each block.

    With h = h_{l+1} [T, d], b its mean over the sequence and F the summed probability of the answer's true tokens:
    igrads[l, t] = Σ_d (h − b)[t, d] · ∫₀¹ ∂F/∂h[t, d] at b + r (h − b) dr.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do; steps: that many left-end steps, or None for Gauss–Legendre nodes, doubled where the integral has not
    converged to tolerance · |F(h) − F(b)|; budget: tokens in one forward pass, or None. Returns for each layer
    `igrads` [T], `completeness` = Σ_t igrads − (F(h) − F(b)), `f_difference` = F(h) − F(b) and `n_nodes`.
    """
    budget = token_budget(llm, budget)
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            residuals = [first(block.output)[0].clone() for block in llm.blocks]
            tracer.stop()
    results = []
    for l in layers:

        def slopes(points, h=residuals[l], l=l):
            return _slopes(llm, arch, ids, answer, h, l, points, budget)

        igrads, difference, n_nodes = _left_ends(slopes, steps) if steps else _gauss(slopes, tolerance)
        result = {"igrads": torch.cat([igrads, torch.zeros(len(ids) - len(igrads))]), "n_nodes": torch.tensor(n_nodes)}
        result["f_difference"] = torch.tensor(difference)
        result["completeness"] = igrads.sum() - difference
        results.append(result)
    return {key: torch.stack([result[key].float() for result in results]) for key in results[0]}


def _slopes(llm, arch, ids, answer, h, l, points, budget):
    """Σ_d (h − b) · ∂F/∂h [R, T'] and F [R] at the points r of the path, h [T, d] being the output of block l.

    T' stops before the last answer token, where that changes nothing: no position that predicts the answer sees more.
    """
    end = answer[-1] if arch["cuts"] else len(ids)
    b = h.float().mean(0, keepdim=True)
    step = h[:end].float() - b
    rows = max(1, budget // end)
    slopes, f = [], []
    for begin in range(0, len(points), rows):
        r = torch.tensor(points[begin : begin + rows], device=h.device)[:, None, None]
        x = (b + r * step).requires_grad_()
        with llm.trace(inputs(ids[:end], batch=1 if arch["grows"] else len(r)), use_cache=False) as tracer:
            final = x.to(h.dtype)
            if l + 1 < arch["n_layers"]:
                start_at(llm, arch, l + 1, final)
                final = first(llm.blocks[-1].output)
            f_rows = _answer_probability(llm, arch, final, ids, answer)
            (gradient,) = torch.autograd.grad(f_rows.sum(), x)
            slopes.append((gradient * step).sum(-1).cpu())
            f += f_rows.tolist()
            tracer.stop()
    return torch.cat(slopes), f


def _left_ends(slopes, n):
    """The papers' rule: the mean slope at n left ends. Returns igrads [T'], F(h) − F(b) and n."""
    values, f = slopes([k / n for k in range(n)] + [1.0])
    return values[:-1].mean(0), f[-1] - f[0], n


def _gauss(slopes, tolerance, order=8, limit=512):
    """Gauss–Legendre nodes on panels of the path, bisected until each meets completeness, at most `limit` nodes.

    F is known at both ends of a panel, so Σ_t ∫ − (F(end) − F(start)) is the error of that panel alone: nodes are
    doubled where F is steep, and nowhere else. Where F jumps (a router, ReLUs) the limit ends it, and completeness
    tells. Returns igrads [T'], F(h) − F(b) and the number of nodes.
    """
    nodes, weights = _legendre(order)
    f, igrads, n_nodes = {}, 0, 0
    panels = [(0.0, 0.5), (0.5, 1.0)]
    while panels:
        points = [start + (end - start) * x for start, end in panels for x in nodes]
        ends = [r for r in sorted({r for panel in panels for r in panel}) if r not in f]
        values, f_rows = slopes(points + ends)
        f.update(zip(ends, f_rows[len(points) :], strict=True))
        n_nodes += len(points)
        allowed = max(tolerance * abs(f[1.0] - f[0.0]) / 16, 3e-7 * max(f.values()))  # float32 knows F no better
        steep, room = [], limit - n_nodes
        for (start, end), piece in zip(panels, values[: len(points)].split(order), strict=True):
            part = (end - start) * (weights[:, None] * piece).sum(0)
            if abs(part.sum().item() - (f[end] - f[start])) <= allowed or room < 2 * order:
                igrads = igrads + part
            else:
                room -= 2 * order
                steep += [(start, (start + end) / 2), ((start + end) / 2, end)]
        panels = steep
    return igrads, f[1.0] - f[0.0], n_nodes


def _legendre(n):
    """n Gauss–Legendre nodes (floats) and weights [n] on [0, 1], by Golub & Welsch 1969."""
    k = torch.arange(1, n, dtype=torch.float64)
    off_diagonal = torch.diag(k / (4 * k**2 - 1).sqrt(), 1)
    nodes, vectors = torch.linalg.eigh(off_diagonal + off_diagonal.T)
    return ((nodes + 1) / 2).tolist(), vectors[0].square().float()


def _answer_probability(llm, arch, final, ids, answer):
    """F [R]: the summed probability of the answer's true tokens in every row of the final residuals [R, T, d]."""
    predicting = final[:, [place - 1 for place in answer]]
    y = probabilities(llm, arch, predicting.flatten(0, 1))
    true = torch.tensor([ids[place] for place in answer], device=y.device).repeat(len(final))
    return y.gather(1, true[:, None]).reshape(len(final), -1).sum(1)
