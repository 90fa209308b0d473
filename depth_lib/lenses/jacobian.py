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


def measure_jacobian(llm, arch, ids, budget=None, tick=None):
    """`A` [L, d, d], float32: A_l = (1 / |V|) Σ_{t ∈ V} Σ_{t' ∈ V} ∂h_{L,t'} / ∂h_{l,t} of one text.

    Row j of all A_l is one gradient, of Σ_{t'} h_{L,t'}[j]. Cost: one forward pass of a batch of rows, which is kept,
    and d backward rows.

    - ids: T ≥ 18 token ids
    - budget: tokens per call, or None
    - tick(share): called with the share of work done
    """
    inside, found = slice(SKIPPED, len(ids) - 1), []
    with torch.enable_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            stream = Stream(llm, arch, ids, 1)
            rows = (budget or tokens_in_pass(llm, arch, stream.h[0], gradients=True)) // len(ids)
            units = torch.eye(arch.width, dtype=torch.float32).split(max(1, rows))
            h = [stream.h[0].repeat(len(units[0]), 1, 1).requires_grad_()]
            for l in range(arch.n_layers):
                h.append(stream.block(l, h[-1]))
            for some in units:
                cotangents = torch.zeros_like(h[-1])
                cotangents[: len(some), inside] = some[:, None].to(h[-1])
                gradients = torch.autograd.grad(h[-1], h[:-1], cotangents, retain_graph=True)
                found.append(torch.stack([x[: len(some), inside].float().mean(1).cpu() for x in gradients]))
                if tick:
                    tick(len(some) / arch.width)
    return {"A": torch.cat(found, 1)}
