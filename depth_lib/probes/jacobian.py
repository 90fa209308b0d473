"""The Jacobian lens: how the last layer moves when the residual stream does, at all later tokens together.

The obvious loop, with V all tokens but the first 16 and the last (tests/oracles/lenses.py):

    for each l in 0..L−1:
        J = torch.autograd.functional.jacobian(blocks l..L−1, h_l)          # [T', d, T, d], of h_L by h_l
        A_l = J[V, :, V, :].sum(0).mean(1)                                  # causal, so t' ≥ t

Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace); the estimator is that of their reference code.
"""

import torch

from .budget import tokens_in_pass
from .residual_stream import clean_run, enter, final_residual, inputs, leave, leaving, skip_rest, start_at

SKIPPED = 16  # first tokens, which models use as attention sinks


def jacobian(llm, arch, ids, budget=None, method="gradients", tick=None):
    """`A` [L, d, d], float32: A_l = (1 / |V|) Σ_{t ∈ V} Σ_{t' ∈ V} ∂h_{L,t'} / ∂h_{l,t} of one text.

    "gradients": row j of all A_l is one gradient, of Σ_{t'} h_{L,t'}[j]. Cost: one forward pass of a batch of rows,
    which is kept, and d backward rows. "increments", where no gradient comes back: column i of A_l is Σ_{t'} (h_L' of
    h_l + ε e_i − that of h_l − ε e_i) / 2 ε |V|, with all t ∈ V moved at once. ε is the root mean square of h_l there
    times the cube root of the dtype's rounding unit: the error of rounding falls as 1 / ε, that of curvature grows as
    ε². Cost: 2 d rows for each l, through blocks l..L−1.

    ids: its T ≥ 18 token ids; budget: tokens in one pass, or None; tick(share): told what is done.
    """
    h, _ = clean_run(llm, arch, ids)
    one_way = method == "gradients"
    rows = (budget or tokens_in_pass(llm, h[0], gradients=one_way)) // len(ids)
    units = torch.eye(arch.width).split(max(1, rows if one_way else rows // 2))  # e_j, [n, d] of each pass
    inside = slice(SKIPPED, len(ids) - 1)
    if one_way:
        return {"A": _by_gradients(llm, arch, ids, h[0], units, inside, tick)}
    layers = range(arch.n_layers)
    return {"A": torch.stack([_by_increments(llm, arch, ids, h[l], l, units, inside, tick) for l in layers])}


def _by_gradients(llm, arch, ids, h_0, units, inside, tick):
    """All A_l [L, d, d], some rows after the other."""
    rows = []
    with torch.enable_grad():
        with llm.trace(inputs(llm, arch, ids, batch=len(units[0])), use_cache=False):
            h = [h_0.repeat(len(units[0]), 1, 1).requires_grad_()]
            enter(llm, arch, 0, h[0])
            for l, block in enumerate(llm.blocks):
                h.append(leaving(block).clone())
                leave(llm, arch, l, h[-1])
            for some in units:
                cotangents = torch.zeros_like(h[-1])
                cotangents[: len(some), inside] = some[:, None].to(h[-1])
                gradients = torch.autograd.grad(h[-1], h[:-1], cotangents, retain_graph=True)
                rows.append(torch.stack([x[: len(some), inside].float().mean(1).cpu() for x in gradients]))
                if tick:
                    tick(len(some) / arch.width)
            skip_rest(llm, arch, arch.n_layers, h[-1].detach())
    return torch.cat(rows, 1)


def _by_increments(llm, arch, ids, h_l, l, units, inside, tick):
    """A_l [d, d], some columns after the other."""
    step = torch.finfo(h_l.dtype).eps ** (1 / 3) * h_l[inside].float().square().mean().sqrt().to(h_l.dtype)
    columns = []
    for some in units:
        moved = h_l.repeat(2 * len(some), 1, 1)
        moved[:, inside] += step * torch.cat([some, -some])[:, None].to(h_l)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids, batch=len(moved)), use_cache=False):
                start_at(llm, arch, l, moved)
                final = final_residual(llm, arch)
                up, down = final[:, inside].float().mean(1).cpu().chunk(2)
                skip_rest(llm, arch, arch.n_layers, final)
        columns.append((up - down) / (2 * step.float().cpu()))
        if tick:
            tick(len(some) / arch.width / arch.n_layers)
    return torch.cat(columns).T
