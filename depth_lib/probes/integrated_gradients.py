"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4).

The plain version, for the output h of block l, F(l, x) being the summed probability of the answer's tokens where h is
replaced by x:

    b = h.mean(0)
    for k in range(256):
        x = (b + k / 256 * (h - b)).requires_grad_()
        igrads[l] += ((h - b) * autograd.grad(F(l, x), x)).sum(-1) / 256

This one does three things differently: points on the path are chosen where F is steep (see quadrature.py); points of
several blocks share a pass, in which those of block l join the batch after block l, so that no block before it runs
for them; and tokens after the last that predicts are left out.
"""

import torch

from .quadrature import left_ends, panels
from .residual_stream import (
    agreed,
    contributions,
    enter,
    entering,
    final_residual,
    first,
    inputs,
    is_sharded,
    leaving,
    lens,
    parts,
    rescaling,
    rows_of_logits,
    start_at,
    token_budget,
    with_first,
)


def integrated_gradients(llm, arch, ids, answer, layers, at, steps, tolerance, budget, tick=None):
    """Integrated gradients of the answer's probability at the output of each block, or at what a part of it adds.

    With x = h_{l+1}, a_l or m_l [T, d], b its mean over the sequence and F the summed probability of the answer's true
    tokens: igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] at b + r (x − b) dr. Of a_l or m_l only this contribution
    moves, and what follows is recomputed.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do, ascending; at: "block", "attention" or "mlp"; steps: so many left-end steps, or None for panels, until
    no token's estimated error is above tolerance · max |igrads[l]| or 256 points are taken; budget: tokens in one
    forward pass, or None; tick(cost, total): told what is done.

    Returns for each layer `igrads` [T], `completeness` = Σ_t igrads − (F(x) − F(b)), `f_difference` = F(x) − F(b),
    `n_nodes` and, without steps, the estimated largest errors of a token relative to max |igrads[l]|: `quadrature`,
    what `rounding` makes of the integral in half precision, and `error`, the root of the sum of their squares.
    """
    end = answer[-1] if arch["cuts"] else len(ids)  # the last token that predicts is answer[-1] − 1
    rows = token_budget(llm, budget, blocks_held=arch["n_layers"]) // end
    rows = max(1, min(rows, rows_of_logits(llm, llm.device) // len(answer)))
    seeds = (None, 1, 2) if llm.dtype.itemsize < 4 and not steps else (None,)
    paths = [_paths(llm, arch, ids, end, layers, at, seed) for seed in seeds]
    eps = torch.finfo(llm.dtype).eps
    rules = [left_ends(steps) if steps else panels(tolerance, eps, len(answer)) for _ in layers]
    costs, results = [arch["n_layers"] + 1 - l for l in layers], {}
    wanted = {k: next(rule) for k, rule in enumerate(rules)}  # block -> (points, path)
    while wanted:
        requests = [(paths[which][k], points) for k, (points, which) in wanted.items()]
        samples = _slopes(llm, arch, requests, ids[:end], (ids, answer), rows)
        for k, sample in zip(list(wanted), samples, strict=True):
            try:
                wanted[k] = rules[k].send(agreed(sample, is_sharded(llm)))  # the same nodes on every rank
            except StopIteration as finished:
                results[k] = _result(finished.value, len(ids))
                del wanted[k]
                if tick:
                    tick(costs[k], sum(costs))
    return {key: torch.stack([results[k][key] for k in range(len(layers))]) for key in results[0]}


def _result(integrated, n_tokens):
    """What is returned of one layer, as tensors: attributions of the tokens that are left out are 0."""
    f_b, f_x = integrated.pop("f")
    integral = integrated.pop("integral")
    numbers = {"completeness": integral.sum() - (f_x - f_b), "f_difference": f_x - f_b} | integrated
    igrads = torch.zeros(n_tokens, dtype=torch.float32)
    igrads[: len(integral)] = integral
    return {"igrads": igrads} | {key: torch.as_tensor(x, dtype=torch.float32) for key, x in numbers.items()}


def _paths(llm, arch, ids, end, layers, at, seed):
    """For each l of layers what `_slopes` needs; the blocks after them do not run.

    A dict of the path's start `b` [1, d] and its length `step` = x − b [T', d], float32, T' being the first `end`
    tokens, `rest` [T', d], the residual stream that what moves is added to, its `dtype`, and `l`: the block
    that reads the sum. What attention adds is read by the MLP of its own block, so there `within` is true, and `rest`
    is what enters block l; where attention and MLP are parallel the next block is the first that reads it.

    With a seed the same residuals as another rounding makes them: the embeddings are moved by half of what the dtype
    tells apart, the same on every machine.
    """
    paths = []
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            if seed is not None:
                h = entering(llm.blocks[0])
                draw = torch.rand(h.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
                moved = h.float() * (1 + torch.finfo(h.dtype).eps * (draw.to(h.device) - 0.5))
                enter(llm, arch, 0, moved.to(h.dtype))
            for l in layers:
                within = at == "attention" and not arch["parallel"] and all(parts(llm.blocks[l], arch).values())
                path = {"l": l + 1, "within": within, "scale": 1.0}
                path["dtype"] = llm.blocks[l].input.dtype
                if at == "block":
                    x = leaving(llm.blocks[l])[0].float().clone()
                    rest = torch.zeros_like(x)
                else:
                    h, a, m = (x[0].clone() for x in contributions(llm.blocks[l], arch))
                    x, rest = (a, h + m) if at == "attention" else (m, h + a)
                    if path["within"]:
                        path["l"], rest = l, h
                    elif arch["rescales"]:
                        path["scale"] = float(rescaling(h + a + m, leaving(llm.blocks[l])[0].float()))
                b = x.mean(0, keepdim=True)
                paths.append({**path, "b": b, "step": x[:end] - b, "rest": rest[:end]})
            tracer.stop()
    return paths


def _slopes(llm, arch, requests, ids, target, rows):
    """For each of `requests`, a path and points r of it, Σ_d (x − b) · ∂F/∂x [R, T'] and F, a list of R.

    The paths are in the order of their blocks; a pass holds at most `rows` points, of paths that enter different
    blocks, and of one path alone where batches cannot grow. ids: the tokens that are run; target: all token ids, and
    the answer's places among them.
    """
    passes, room = [], 0
    for k, (path, points) in enumerate(requests):
        while points:
            if not room or not arch["grows"] or passes[-1][-1][1]["l"] == path["l"]:
                passes.append([])
                room = rows
            passes[-1].append((k, path, points[:room]))
            points, room = points[room:], room - len(points[:room])
    slopes, f = [[] for _ in requests], [[] for _ in requests]
    for pieces in passes:
        for (k, *_), (slope, probability) in zip(pieces, _one_pass(llm, arch, pieces, ids, target), strict=True):
            slopes[k].append(slope)
            f[k] += probability
    return [(torch.cat(slope), probability) for slope, probability in zip(slopes, f, strict=True)]


def _one_pass(llm, arch, pieces, ids, target):
    """Of each piece, (_, path, points), what `_slopes` returns; its rows join the batch before the block that reads
    them."""
    n_rows = [len(points) for _, _, points in pieces]
    with llm.trace(inputs(ids, batch=1 if arch["grows"] else sum(n_rows)), use_cache=False) as tracer:
        rows, moving = None, []
        for _, path, points in pieces:
            l, r = path["l"], torch.tensor(points, dtype=torch.float32, device=path["b"].device)
            moving.append(x := (path["b"] + r[:, None, None] * path["step"]).requires_grad_())
            joining = path["rest"].expand_as(x) if path["within"] else (path["rest"] + x) * path["scale"]
            joining = joining.to(path["dtype"])
            if rows is None:
                rows = joining
                start_at(llm, arch, l, rows)
            else:
                rows = leaving(llm.blocks[l - 1])
                rows = torch.cat([rows, joining.to(rows.device)])
            if l < arch["n_layers"]:
                enter(llm, arch, l, rows)
            if path["within"]:
                moved = x
                for module, scale, bias in parts(llm.blocks[l], arch)["attention"]:
                    moved = moved if bias is None else moved - bias
                    output = module.output
                    added = first(output)
                    others = added.reshape(rows.shape)[: -len(points)]
                    added = torch.cat([others, (moved / scale).to(added)]).reshape(added.shape)
                    module.output = with_first(output, added)
                    moved = torch.zeros_like(x)  # the first module's output is all that attention adds
        if pieces[-1][1]["l"] < arch["n_layers"]:
            rows = final_residual(llm, arch)
        f = _answer_probability(llm, arch, rows[:, [place - 1 for place in target[1]]], *target)
        gradients = torch.autograd.grad(f.sum(), moving)
        slopes = [
            (gradient * path["step"]).sum(-1).cpu() for gradient, (_, path, _) in zip(gradients, pieces, strict=True)
        ]
        f = [piece.tolist() for piece in f.split(n_rows)]
        tracer.stop()
    return list(zip(slopes, f, strict=True))


def _answer_probability(llm, arch, predicting, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, A, d] that predict them."""
    y = lens(llm, arch, predicting.flatten(0, 1)).softmax(-1).unflatten(0, predicting.shape[:2])
    true = torch.tensor([ids[place] for place in answer], device=y.device)
    return y.gather(2, true[:, None].expand(len(y), -1, 1)).sum((1, 2))
