"""The Jacobian lens: how the last layer moves when the residual stream does, at all later tokens together.

The obvious loop, with V all tokens but the first 16 and the last (tests/oracles/lenses.py):

    for each l in 0..L−1:
        J = torch.autograd.functional.jacobian(blocks l..L−1, h_l)          # [T', d, T, d], of h_L by h_l
        A_l = J[V, :, V, :].sum(0).mean(1)                                  # causal, so t' ≥ t

Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace); the estimator is that of their reference code.
"""

import torch

from .budget import tokens_in_pass
from .residual_stream import clean_run, enter, entering, final_residual, inputs, leave, leaving, skip_rest, start_at

SKIPPED = 16  # first tokens, which models use as attention sinks


def jacobian(llm, arch, ids, budget=None, tick=None):
    """`A` [L, d, d], float32: A_l = (1 / |V|) Σ_{t ∈ V} Σ_{t' ∈ V} ∂h_{L,t'} / ∂h_{l,t} of one text.

    Row j of all A_l is one gradient, of Σ_{t'} h_{L,t'}[j]. ids: its T ≥ 18 token ids; budget: tokens in one pass, or
    None; tick(share): told what is done. Cost: one forward pass of a batch of rows, which is kept, and d backward rows.
    """
    n_layers, inside, of_features = arch.n_layers, slice(SKIPPED, len(ids) - 1), []
    some = _features(llm, arch, ids, budget, blocks_held=n_layers)
    with torch.enable_grad():
        with llm.trace(inputs(llm, arch, ids, batch=len(some[0])), use_cache=False):
            h = [entering(llm.blocks[0]).detach().requires_grad_()]
            enter(llm, arch, 0, h[0])
            for l, block in enumerate(llm.blocks):
                h.append(leaving(block).clone())
                leave(llm, arch, l, h[-1])
            for features in some:
                cotangents = _at(features, inside, h[-1], 1)
                gradients = torch.autograd.grad(h[-1], h[:-1], cotangents, retain_graph=True)
                rows = [gradient[: len(features), inside].float().mean(1).cpu() for gradient in gradients]
                of_features.append(torch.stack(rows))
                if tick:
                    tick(len(features) / arch.width)
            skip_rest(llm, arch, n_layers, h[-1].detach())
    return {"A": torch.cat(of_features, 1)}


def forward_jacobian(llm, arch, ids, budget=None, tick=None):
    """`jacobian` by central differences, for where no gradient comes back.

    Column i of A_l is Σ_{t'} (h_{L,t'} of h_l + ε e_i − that of h_l − ε e_i) / 2 ε |V|, with all t ∈ V moved at once. ε
    is the root mean square of h_l there times the cube root of the dtype's rounding unit: the error of rounding falls
    as 1 / ε, that of curvature grows as ε². Cost: 2 d rows for each l, through blocks l..L−1, no backward pass.
    """
    n_layers, inside, of_layers = arch.n_layers, slice(SKIPPED, len(ids) - 1), []
    h, _ = clean_run(llm, arch, ids)
    for l in range(n_layers):
        step = torch.finfo(h[l].dtype).eps ** (1 / 3) * h[l][inside].float().square().mean().sqrt().to(h[l].dtype)
        of_features = []
        for features in _features(llm, arch, ids, budget, rows=2):
            rows = h[l].expand(len(features), -1, -1)
            moves = _at(features, inside, rows, step)
            with torch.no_grad():
                with llm.trace(inputs(llm, arch, ids, batch=2 * len(rows)), use_cache=False):
                    start_at(llm, arch, l, torch.cat([rows + moves, rows - moves]))
                    final = final_residual(llm, arch)
                    up, down = final[:, inside].float().mean(1).cpu().chunk(2)
                    skip_rest(llm, arch, n_layers, final)
            of_features.append((up - down) / (2 * step.float().cpu()))
            if tick:
                tick(len(rows) / arch.width / n_layers)
        of_layers.append(torch.cat(of_features).T)
    return {"A": torch.stack(of_layers)}


def _features(llm, arch, ids, budget, rows=1, blocks_held=1):
    """The features that are done in one pass after the other, as many rows each."""
    h, _ = clean_run(llm, arch, ids, last=0)
    some = (budget or tokens_in_pass(llm, h[0], gradients=blocks_held > 1)) // (rows * len(ids))
    return torch.arange(arch.width).split(max(1, some))


def _at(features, inside, rows, value):
    """Zeros like the rows [n, T, d], but in each row its feature has this value at the tokens inside."""
    result = torch.zeros_like(rows)
    result[torch.arange(len(features)), inside, features] = value
    return result
