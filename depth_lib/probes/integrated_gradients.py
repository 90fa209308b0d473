"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4)."""

import torch

from .growing_batch import growing_batch
from .residual_stream import (
    clean_run,
    compares_in_batch,
    first,
    inputs,
    probabilities,
    rows_of_logits,
    start_at,
    token_budget,
)


def integrated_gradients(llm, arch, ids, answer, layers, tolerance, steps, budget):
    """Integrated gradients of the answer's probability at the output of each block.

    With h = h_{l+1} [T, d], b its mean over the sequence and F the summed probability of the answer's true tokens:
    igrads[l, t] = Σ_d (h − b)[t, d] · ∫₀¹ ∂F/∂h[t, d] at b + r (h − b) dr.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do; steps: that many left-end steps, or None for Gauss–Legendre nodes, doubled where the integral has not
    converged to tolerance · |F(h) − F(b)|; budget: tokens in one forward pass, or None. Returns for each layer `igrads`
    [T], `completeness` = Σ_t igrads − (F(h) − F(b)), `f_difference` = F(h) − F(b) and `n_nodes`.
    """
    clean = clean_run(llm, arch, ids)
    ends = _ends(llm, arch, ids, answer, clean, token_budget(llm, budget))
    budget = token_budget(llm, budget, blocks_held=arch["n_layers"])
    results = []
    for l in layers:
        f_b, f_h = ends[l]

        def slopes(points, h=clean["h"][l + 1][0], l=l):
            return _slopes(llm, arch, ids, answer, h, l, points, budget)

        if steps:
            igrads, n_nodes = slopes([k / steps for k in range(steps)])[0].mean(0), steps
        else:
            rounding = 2.5 * torch.finfo(llm.dtype).eps  # F is known no better
            igrads, n_nodes = _gauss(slopes, f_b, f_h, tolerance, rounding)
        result = {"igrads": torch.cat([igrads, torch.zeros(len(ids) - len(igrads))]), "n_nodes": torch.tensor(n_nodes)}
        result["f_difference"] = torch.tensor(f_h - f_b)
        result["completeness"] = igrads.sum() - (f_h - f_b)
        results.append(result)
    return {key: torch.stack([result[key].float() for result in results]) for key in results[0]}


def _ends(llm, arch, ids, answer, clean, budget):
    """(F(b), F(h)) of every block, as floats: always all, since they share a batch and its size decides on rounding."""
    places = list(range(_end(arch, ids, answer)))
    predicting = [place - 1 for place in answer]

    def flatten(l, row, before):
        row[:] = clean["h"][l].float().mean(1, keepdim=True)

    prompt = {"ids": ids, "budget": budget, "clean": None if compares_in_batch(llm) else clean}
    layout = {"order": places, "visible": None, "read": predicting}
    parts = growing_batch(llm, arch, prompt, layout, range(1, arch["n_layers"] + 1), flatten)
    ends = []
    with torch.no_grad():
        with llm.trace(inputs(ids[:1]), use_cache=False) as tracer:
            for part in parts:
                h = part["clean"][part["same"]][None]
                f_h, *f_b = _answer_probability(llm, arch, torch.cat([h, part["varied"]]), ids, answer).tolist()
                ends += [(f, f_h) for f in f_b]
            tracer.stop()
    return ends


def _end(arch, ids, answer):
    """Tokens that matter: those before the last of the answer, where the ones behind it change nothing before it."""
    return answer[-1] if arch["cuts"] else len(ids)


def _slopes(llm, arch, ids, answer, h, l, points, budget):
    """Σ_d (h − b) · ∂F/∂h [R, T'] and F [R] at the points r of the path, h [T, d] being the output of block l; T' is
    `_end`."""
    end = _end(arch, ids, answer)
    b = h.float().mean(0, keepdim=True)
    step = h[:end].float() - b
    rows = max(1, min(budget // end, rows_of_logits(llm, h.device) // len(answer)))
    slopes, f = [], []
    for begin in range(0, len(points), rows):
        r = torch.tensor(points[begin : begin + rows], device=h.device)[:, None, None]
        x = (b + r * step).requires_grad_()
        with llm.trace(inputs(ids[:end], batch=1 if arch["grows"] else len(r)), use_cache=False) as tracer:
            final = x.to(h.dtype)
            start_at(llm, arch, l + 1, final)
            if l + 1 < arch["n_layers"]:
                final = first(llm.blocks[-1].output)
            predicting = final[:, [place - 1 for place in answer]]
            f_rows = _answer_probability(llm, arch, predicting, ids, answer)
            (gradient,) = torch.autograd.grad(f_rows.sum(), x)
            slopes.append((gradient * step).sum(-1).cpu())
            f += f_rows.tolist()
            tracer.stop()
    return torch.cat(slopes), f


def _gauss(slopes, f_b, f_h, tolerance, rounding, order=8, limit=512):
    """Gauss–Legendre quadrature on [0, 1], halved into panels where it has not converged: igrads [T'] and its nodes.

    A panel's slopes must add up to its difference of F, within its share of the tolerance, and their expansion in
    Legendre polynomials must have died away: a sum alone can be right by chance. Panels stay where rounding is all
    that is left, and where the limit of nodes is reached.
    """
    nodes, weights = _legendre(order)
    last = _last_polynomials(nodes, weights)
    f, igrads, n_nodes = {0.0: f_b, 1.0: f_h}, 0, 0
    panels = [(0.0, 1.0)]
    while panels:
        points = [start + (end - start) * x for start, end in panels for x in nodes]
        ends = [r for r in sorted({r for panel in panels for r in panel}) if r not in f]
        values, f_rows = slopes(points + ends)
        f.update(zip(ends, f_rows[len(points) :], strict=True))
        n_nodes += len(points)
        change, noise = abs(f_h - f_b), rounding * max(f.values())
        steep, room = [], limit - n_nodes
        for (start, end), piece in zip(panels, values[: len(points)].split(order), strict=True):
            piece = (end - start) * piece
            part = (weights[:, None] * piece).sum(0)
            allowed = max(tolerance * change * (end - start), noise)
            error, tail = abs(part.sum().item() - (f[end] - f[start])), (last @ piece.sum(1)).abs().max().item()
            if (error <= allowed and tail <= 3 * (allowed * max(change, allowed)) ** 0.5) or room < 2 * order:
                igrads = igrads + part
            else:
                room -= 2 * order
                steep += [(start, (start + end) / 2), ((start + end) / 2, end)]
        panels = steep
    return igrads, n_nodes


def _legendre(n):
    """n Gauss–Legendre nodes (floats) and weights [n] on [0, 1], by Golub & Welsch 1969."""
    k = torch.arange(1, n, dtype=torch.float64)
    off_diagonal = torch.diag(k / (4 * k**2 - 1).sqrt(), 1)
    nodes, vectors = torch.linalg.eigh(off_diagonal + off_diagonal.T)
    return ((nodes + 1) / 2).tolist(), vectors[0].square().float()


def _last_polynomials(nodes, weights):
    """[2, n]: rows whose products with values at n nodes are the coefficients of the normalised Legendre polynomials of
    degrees n − 2 and n − 1, the last that n nodes tell apart; an error of ε goes with a tail of about √ε there."""
    x = 2 * torch.tensor(nodes, dtype=torch.float64) - 1
    polynomials = [torch.ones_like(x), x]
    for k in range(1, len(nodes) - 1):
        polynomials.append(((2 * k + 1) * x * polynomials[k] - k * polynomials[k - 1]) / (k + 1))
    return torch.stack([(2 * k + 1) ** 0.5 * polynomials[k] * weights for k in (len(x) - 2, len(x) - 1)]).float()


def _answer_probability(llm, arch, predicting, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, A, d] that predict them."""
    true, f = torch.tensor([ids[place] for place in answer], device=predicting.device), []
    for piece in predicting.split(max(1, rows_of_logits(llm, predicting.device) // len(answer))):
        y = probabilities(llm, arch, piece.flatten(0, 1))
        f.append(y.gather(1, true.repeat(len(piece)).to(y.device)[:, None]).view(len(piece), -1).sum(1))
    return torch.cat(f)
