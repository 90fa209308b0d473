"""The Jacobian lens: how the last layer moves when the residual stream does, at all later tokens together.

The obvious loop, with V all tokens but the first 16 and the last (tests/oracles/lenses.py):

    for each l in 0..L−1:
        J = torch.autograd.functional.jacobian(blocks l..L−1, h_l)          # [T', d, T, d], of h_L by h_l
        A_l = J[V, :, V, :].sum(0).mean(1)                                  # causal, so t' ≥ t

Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace); the estimator is that of their reference code.
"""

import torch

from ..residual.budget import tokens_in_pass
from ..residual.residual_stream import inputs
from ..residual.stream import Stream

SKIPPED = 16  # first tokens, which models use as attention sinks


def measure_jacobian(llm, arch, ids, budget=None, method="gradients", tick=None):
    """A [L, d, d], float32: A_l = (1 / |V|) Σ_{t ∈ V} Σ_{t' ∈ V} ∂h_{L,t'} / ∂h_{l,t} of one text.

    Gradients: row j of all A_l is one gradient, of Σ_{t'} h_{L,t'}[j]. Cost: one forward pass of a batch of rows,
    which is kept, and d backward rows. Increments: column i of A_l is a central difference of Σ_{t'} h_L by h_l ± ε
    e_i at all t ∈ V. ε is the root mean square of h_l times the cube root of the rounding unit. Cost: 2 d rows for
    each l, through blocks l..L − 1.

    - ids: T ≥ 18 token ids
    - budget: tokens per call, or None
    - tick(share): called with the share of work done
    """
    of_text = _by_gradients if method == "gradients" else _by_increments
    with torch.set_grad_enabled(method == "gradients"):
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            stream = Stream(llm, arch, ids, 1)
            rows = (budget or tokens_in_pass(llm, arch, stream.h[0], gradients=method == "gradients")) // len(ids)
            A = of_text(stream, slice(SKIPPED, len(ids) - 1), rows, tick)
    return {"A": A}


def _by_gradients(stream, inside, rows, tick):
    """All A_l [L, d, d], some rows after the other."""
    units, found = torch.eye(stream.arch.width).split(max(1, rows)), []
    h = [stream.h[0].repeat(len(units[0]), 1, 1).requires_grad_()]
    for l in range(stream.arch.n_layers):
        h.append(stream.block(l, h[-1]))
    for some in units:
        cotangents = torch.zeros_like(h[-1])
        cotangents[: len(some), inside] = some[:, None].to(h[-1])
        gradients = torch.autograd.grad(h[-1], h[:-1], cotangents, retain_graph=True)
        found.append(torch.stack([x[: len(some), inside].float().mean(1).cpu() for x in gradients]))
        if tick:
            tick(len(some) / stream.arch.width)
    return torch.cat(found, 1)


def _by_increments(stream, inside, rows, tick):
    """All A_l [L, d, d], some columns of one after the other."""
    units, A = torch.eye(stream.arch.width).split(max(1, rows // 2)), []
    for l, h in enumerate(stream.h[:-1]):
        step, columns = torch.finfo(h.dtype).eps ** (1 / 3) * h[inside].float().square().mean().sqrt().to(h.dtype), []
        for some in units:
            moved = h.repeat(2 * len(some), 1, 1)
            moved[:, inside] += step * torch.cat([some, -some])[:, None].to(h)
            up, down = stream.after(l, moved)[:, inside].float().mean(1).cpu().chunk(2)
            columns.append((up - down) / (2 * step.float().cpu()))
            if tick:
                tick(len(some) / stream.arch.width / stream.arch.n_layers)
        A.append(torch.cat(columns).T)
    return torch.stack(A)
