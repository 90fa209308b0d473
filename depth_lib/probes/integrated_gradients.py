"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4).

The plain version, for the output h of block l, F(l, x) being the summed probability of the answer's tokens where h is
replaced by x:

    b = h.mean(0)
    for k in range(256):
        x = (b + k / 256 * (h - b)).requires_grad_()
        igrads[l] += ((h - b) * autograd.grad(F(l, x), x)).sum(-1) / 256

This one does three things differently: points on the path are chosen where F is steep (see quadrature.py); points of
several blocks share a pass, in which those of block l join the batch after block l, so that no block before it runs
for them; and tokens after the last that predicts are left out. Without gradients the integral is the sum of
what F changes by when one token alone takes a step of the path (`increments`).
"""

import torch

from .budget import rows_of_logits, token_budget
from .quadrature import increments, left_ends, panels
from .ranks import from_rank_0, is_sharded
from .residual_stream import (
    a_and_m,
    entering,
    final_residual,
    hidden_states,
    inputs,
    leave,
    leaving,
    parts,
    rescaling,
    skip_rest,
    start_at,
    with_hidden_states,
)
from .unembedding import lens

_KEPT = 2**14  # tokens whose paths, two float32 vectors for each block, are kept at once


def integrated_gradients(
    llm, arch, ids, answer, layers, at, steps, tolerance, budget, max_nodes=256, method="gradients", tick=None
):
    """Integrated gradients of the answer's probability at the output of each block, or at what a part of it adds.

    With x = h_{l+1}, a_l or m_l [T, d], b its mean over the sequence and F the summed probability of the answer's true
    tokens: igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] at b + r (x − b) dr. Of a_l or m_l only this contribution
    moves, and what follows is recomputed.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do, ascending; at: "block", "attention" or "mlp"; steps: so many left-end steps, or None for panels, until
    no token's estimated error is above tolerance · max |igrads[l]| or max_nodes points are taken; budget: tokens in one
    forward pass, or None; method: "gradients", or "increments" in so many steps; tick(share): told what is done.

    Returns for each layer `igrads` [T], `completeness` = Σ_t igrads − (F(x) − F(b)), `f_difference` = F(x) − F(b),
    `n_nodes` or of increments `n_steps` and, but of left ends, `error`, the estimated largest error of a token relative
    to max |igrads[l]|.
    """
    end, results = answer[-1] if arch.may_truncate else len(ids), []  # the last token that predicts is answer[-1] − 1
    with_gradients = method == "gradients"
    together = max(1, _KEPT // end)  # blocks whose paths are kept at once, and whose points may share a pass
    for start in range(0, len(layers), together):
        paths = _paths(llm, arch, ids, end, layers[start : start + together], at)
        h = paths[0]["b"].to(paths[0]["dtype"])
        rows = token_budget(llm, h, budget, blocks_held=arch.n_layers if with_gradients else 1) // end
        rows = max(1, min(rows, rows_of_logits(llm, h) // len(answer)))
        if not with_gradients:
            rules = [increments(steps, end) for _ in paths]
        elif steps:
            rules = [left_ends(steps) for _ in paths]
        else:
            rules = [panels(tolerance, torch.finfo(h.dtype).eps, max_nodes) for _ in paths]
        wanted, of_paths = {k: next(rule) for k, rule in enumerate(rules)}, {}  # path -> points, and -> result
        most = max(max_nodes, *map(len, wanted.values()))
        left = dict.fromkeys(wanted, most)  # path -> points that it may still take
        while wanted:
            requests = [(paths[k], points) for k, points in wanted.items()]
            samples = _sampled(llm, arch, requests, ids[:end], (ids, answer), rows, with_gradients)
            for k, sample in zip(list(wanted), samples, strict=True):
                taken = len(wanted[k])
                try:
                    wanted[k] = rules[k].send(from_rank_0(sample, is_sharded(llm)))  # the same nodes on every rank
                except StopIteration as finished:
                    of_paths[k] = _result(finished.value, len(ids))
                    del wanted[k]
                    taken = left[k]
                left[k] -= taken
                if tick:
                    tick(taken / most / len(layers))
        results += [of_paths[k] for k in range(len(paths))]
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _result(integrated, n_tokens):
    """What is returned of one layer, as tensors: attributions of the tokens that are left out are 0."""
    f_b, f_x = integrated.pop("f")
    integral = integrated.pop("integral")
    numbers = {"completeness": integral.sum() - (f_x - f_b), "f_difference": f_x - f_b} | integrated
    igrads = torch.nn.functional.pad(integral, (0, n_tokens - len(integral)))
    return {"igrads": igrads} | {key: torch.as_tensor(x, dtype=torch.float32) for key, x in numbers.items()}


def _paths(llm, arch, ids, end, layers, at):
    """For each l of layers what `_sampled` needs; the blocks after them do not run.

    A dict of the path's start `b` [1, d] and its length `step` = x − b [T', d], float32, T' being the first `end`
    tokens, `rest` [T', d], or 0, the residual stream that what moves is added to, its `dtype`, and `l`: the block
    that reads the sum. What attention adds is read by the MLP of its own block, so there `within` is true, and `rest`
    is what enters block l; where attention and MLP are parallel the next block is the first that reads it.
    """
    paths = []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            for l in layers:
                block, rest, scale = llm.blocks[l], 0.0, 1.0
                within = at == "attention" and not arch.parallel and all(parts(block, arch).values())
                if at == "block":
                    h = leaving(block)
                    x = h[0].float().clone()
                else:
                    h = entering(block).clone()
                    a, m = a_and_m(block, arch, h)
                    before = h.to(a.device).float()
                    x, others = (a, m) if at == "attention" else (m, a)
                    rest = before[0, :end] if within else (before + others)[0, :end]
                    if arch.rescales and not within:
                        scale = float(rescaling(before + a + m, leaving(block).float()))
                    x = x[0]
                b = x.mean(0, keepdim=True)
                path = {"l": l if within else l + 1, "within": within, "scale": scale, "dtype": h.dtype}
                paths.append(path | {"b": b, "step": x[:end] - b, "rest": rest})
            # as many tokens as were run: gpt2 and gptj reshape what leaves their final norm to that
            skip_rest(llm, arch, layers[-1] + 1, b.to(h.dtype).expand(1, len(ids), -1))
    return paths


def _sampled(llm, arch, requests, ids, target, rows, with_gradients):
    """For each of `requests`, a path and points (r, t, s) of it, Σ_d (x − b) · ∂F/∂x [R, T'] (None without gradients)
    and F, a list of R.

    The paths are in the order of their blocks; a pass holds at most `rows` points, of paths that enter different
    blocks, and of one path alone where batches cannot grow, or without gradients, where its points fill it. ids: the
    tokens that are run; target: all token ids, and the answer's places among them.
    """
    passes, room, shared = [], 0, arch.can_add_rows and with_gradients
    for k, (path, points) in enumerate(requests):
        while points:
            if not room or not shared or passes[-1][-1][1]["l"] == path["l"]:
                passes.append([])
                room = rows
            passes[-1].append((k, path, points[:room]))
            points, room = points[room:], room - len(points[:room])
    slopes, f = [[] for _ in requests], [[] for _ in requests]
    for pieces in passes:
        of_pieces = _one_pass(llm, arch, pieces, ids, target, with_gradients)
        for (k, *_), (slope, probability) in zip(pieces, of_pieces, strict=True):
            slopes[k].append(slope)
            f[k] += probability
    return [(torch.cat(s) if with_gradients else None, p) for s, p in zip(slopes, f, strict=True)]


def _one_pass(llm, arch, pieces, ids, target, with_gradients):
    """Of each piece, (_, path, points), what `_sampled` returns; its rows join the batch before the block that reads
    them."""
    n_rows, n_layers = [len(points) for _, _, points in pieces], arch.n_layers
    last = pieces[-1][1]["l"] == n_layers  # its rows are final residuals
    with torch.set_grad_enabled(with_gradients):
        with llm.trace(inputs(llm, arch, ids, batch=1 if arch.can_add_rows else sum(n_rows)), use_cache=False):
            rows, moving = None, []
            for _, path, points in pieces:
                l, x = path["l"], _places(path, points)
                moving.append(x.requires_grad_(with_gradients))
                joining = path["rest"].expand_as(x) if path["within"] else (path["rest"] + x) * path["scale"]
                joining = joining.to(path["dtype"])
                if rows is not None:
                    rows = leaving(llm.blocks[l - 1])
                    rows = torch.cat([rows, joining.to(rows.device)])
                    leave(llm, arch, l - 1, rows)
                else:
                    rows = joining
                    if l < n_layers:
                        start_at(llm, arch, l, rows)
                if path["within"]:
                    _attend(llm.blocks[l], arch, x, rows.shape)
            if not last:
                rows = final_residual(llm, arch)
            f = _answer_probability(llm, arch, rows[:, [place - 1 for place in target[1]]], *target)
            slopes = [None] * len(pieces)
            if with_gradients:
                gradients = torch.autograd.grad(f.sum(), moving)
                slopes = [(g * path["step"]).sum(-1).cpu() for g, (_, path, _) in zip(gradients, pieces, strict=True)]
            f = [piece.tolist() for piece in f.split(n_rows)]
            skip_rest(llm, arch, 0 if pieces[0][1]["l"] == n_layers else n_layers, rows.detach())
    return list(zip(slopes, f, strict=True))


def _attend(block, arch, x, shape):
    """Let x [R, T', d] be all that attention adds in the last R rows of a block's input, of this shape."""
    for module, scale, bias in parts(block, arch)["attention"]:
        x = x if bias is None else x - bias
        output = module.output
        added = hidden_states(output)
        others = added.reshape(shape)[: -len(x)]
        added = torch.cat([others, (x / scale).to(added)]).reshape(added.shape)
        module.output = with_hidden_states(output, added)
        x = torch.zeros_like(x)  # the first module's output is all of it


def _places(path, points):
    """x [R, T', d] at points (r, t, s) of a path: b + r (x − b), but token t at s in place of r."""
    b, step = path["b"], path["step"]
    r, t, s = zip(*points, strict=True)
    r, s = torch.tensor([r, s], dtype=torch.float32, device=b.device)[..., None]
    x = b + r[..., None] * step
    x[list(range(len(t))), list(t)] = b + s * step[list(t)]
    return x


def _answer_probability(llm, arch, predicting, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, A, d] that predict them."""
    y = lens(llm, arch, predicting.flatten(0, 1)).softmax(-1).unflatten(0, predicting.shape[:2])
    true = torch.tensor([ids[place] for place in answer], device=y.device)
    return y.gather(2, true[:, None].expand(len(y), -1, 1)).sum((1, 2))
