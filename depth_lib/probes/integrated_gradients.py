"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4)."""

import torch

from .quadrature import integrate
from .residual_stream import first, inputs, probabilities, rows_of_logits, start_at, token_budget


def integrated_gradients(llm, arch, ids, answer, layers, tolerance, steps, budget):
    """Integrated gradients of the answer's probability at the output of each block.

    With h = h_{l+1} [T, d], b its mean over the sequence and F the summed probability of the answer's true tokens:
    igrads[l, t] = Σ_d (h − b)[t, d] · ∫₀¹ ∂F/∂h[t, d] at b + r (h − b) dr.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do; steps: that many left-end steps, or None for Gauss–Kronrod panels until no token's estimated error is
    above tolerance · max |igrads[l]|; budget: tokens in one forward pass, or None. Returns for each layer `igrads` [T],
    `completeness` = Σ_t igrads − (F(h) − F(b)), `f_difference` = F(h) − F(b), `n_nodes` and, without steps, `error`:
    the estimated largest error of a token relative to max |igrads[l]|.
    """
    residuals = _outputs(llm, ids, layers)
    budget = token_budget(llm, budget, blocks_held=arch["n_layers"])
    rounding = 2.5 * torch.finfo(llm.dtype).eps  # F is known no better
    results = []
    for l, h in zip(layers, residuals, strict=True):

        def sample(points, h=h, l=l):
            return _slopes(llm, arch, ids, answer, h, l, points, budget)

        if steps:
            slopes, f = sample([1.0, *(k / steps for k in range(steps))])
            found = {"integral": slopes[1:].mean(0), "n_nodes": steps, "f": (f[1], f[0])}
        else:
            found = integrate(sample, tolerance, rounding)
        igrads, (f_b, f_h) = found["integral"], found["f"]
        result = {"igrads": torch.cat([igrads, torch.zeros(len(ids) - len(igrads))])}
        result |= {"completeness": igrads.sum() - (f_h - f_b), "f_difference": torch.tensor(f_h - f_b)}
        result |= {key: torch.tensor(found[key]) for key in ("n_nodes", "error") if key in found}
        results.append(result)
    return {key: torch.stack([result[key].float() for result in results]) for key in results[0]}


def _outputs(llm, ids, layers):
    """h_{l+1} [T, d] for each l of layers, neighbours; the blocks behind them do not run."""
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            h = [first(llm.blocks[l].output)[0].clone() for l in layers]
            tracer.stop()
    return h


def _slopes(llm, arch, ids, answer, h, l, points, budget):
    """Σ_d (h − b) · ∂F/∂h [R, T'] and F, a list of R, at the points r of the path, h [T, d] being the output of block
    l; T' are the tokens that matter: those before the last of the answer, where the ones behind it change nothing."""
    end = answer[-1] if arch["cuts"] else len(ids)
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


def _answer_probability(llm, arch, predicting, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, A, d] that predict them."""
    true, f = torch.tensor([ids[place] for place in answer], device=predicting.device), []
    for piece in predicting.split(max(1, rows_of_logits(llm, predicting.device) // len(answer))):
        y = probabilities(llm, arch, piece.flatten(0, 1))
        f.append(y.gather(1, true.repeat(len(piece)).to(y.device)[:, None]).view(len(piece), -1).sum(1))
    return torch.cat(f)
