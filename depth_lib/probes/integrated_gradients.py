"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4)."""

import torch

from .quadrature import left_ends, panels
from .residual_stream import contributions, first, inputs, probabilities, rows_of_logits, start_at, token_budget


def integrated_gradients(llm, arch, ids, answer, layers, how, budget, tick=None):
    """Integrated gradients of the answer's probability at the output of each block, or at what a part of it adds.

    With x = h_{l+1}, a_l or m_l [T, d], b its mean over the sequence and F the summed probability of the answer's true
    tokens: igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] at b + r (x − b) dr. Of a_l or m_l only this contribution
    moves, and what follows is recomputed.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do; how: a dict of `at` ("block", "attention" or "mlp"), `steps`, that many left-end steps, or None for
    Gauss–Kronrod panels, and `tolerance`: until no token's estimated error is above tolerance · max |igrads[l]|;
    budget: tokens in one forward pass, or None; tick(cost, total): told what is done.

    Returns for each layer `igrads` [T], `completeness` = Σ_t igrads −
    (F(x) − F(b)), `f_difference` = F(x) − F(b), `n_nodes` and, without steps, `error`: the estimated largest error of a
    token relative to max |igrads[l]|.
    """
    end = answer[-1] if arch["cuts"] else len(ids)  # what is behind the last of the answer changes nothing
    paths = _paths(llm, arch, ids, end, layers, how["at"])
    rows = token_budget(llm, budget, blocks_held=arch["n_layers"]) // end
    rows = max(1, min(rows, rows_of_logits(llm, paths[0]["b"].device) // len(answer)))
    rounding = 2.5 * torch.finfo(llm.dtype).eps  # F is known no better
    rules = [left_ends(how["steps"]) if how["steps"] else panels(how["tolerance"], rounding) for _ in paths]
    costs, asked, found = [arch["n_layers"] + 1 - l for l in layers], {}, {}
    while len(found) < len(paths):
        for k in range(len(asked) + len(found), len(paths)):
            if sum(map(len, asked.values())) < 2 * rows:  # enough to choose from
                asked[k] = next(rules[k])
        taken = _fitting(asked, rows)
        requests = [(paths[k], asked[k]) for k in taken]
        for k, sample in zip(taken, _slopes(llm, arch, requests, ids[:end], (ids, answer), rows), strict=True):
            try:
                asked[k] = rules[k].send(sample)
            except StopIteration as finished:
                found[k] = _result(finished.value, len(ids))
                del asked[k]
                if tick:
                    tick(costs[k], sum(costs))
    return {key: torch.stack([found[k][key] for k in range(len(paths))]) for key in found[0]}


def _fitting(asked, rows):
    """Which paths ask for points that fill a pass together; what one asks for at a time is too little to be fast."""
    taken, room = [], rows
    for k in sorted(asked):
        if not taken or len(asked[k]) <= room:
            taken, room = [*taken, k], room - len(asked[k])
    return taken


def _result(found, n_tokens):
    """What is returned of one layer."""
    igrads, (f_b, f_x) = found["integral"], found["f"]
    result = {"igrads": torch.cat([igrads, torch.zeros(n_tokens - len(igrads), dtype=torch.float32)])}
    result |= {"completeness": igrads.sum() - (f_x - f_b), "f_difference": torch.tensor(f_x - f_b, dtype=torch.float32)}
    return result | {key: torch.tensor(found[key], dtype=torch.float32) for key in ("n_nodes", "error") if key in found}


def _paths(llm, arch, ids, end, layers, at):
    """For each l of layers, neighbours, what `_slopes` needs; the blocks behind them do not run.

    A dict of the path's begin `b` [1, d] and its way `step` [T', d], float32, T' being the first `end` tokens, `rest`
    [T', d], the residual stream that what moves is added to, its `dtype`, and `l`: the block that reads the sum. What
    attention adds is read by the MLP of its own block, so there `adds` is true, and `rest` is what enters block l;
    where attention and MLP are parallel the next block is the first that reads it.
    """
    paths = []
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            for l in layers:
                path = {"l": l + 1, "adds": at == "attention" and not arch["parallel"]}
                path["dtype"] = llm.blocks[l].input.dtype
                if at == "block":
                    x = first(llm.blocks[l].output)[0].float().clone()
                    rest = torch.zeros_like(x)
                else:
                    h, a, m = (part[0].clone() for part in contributions(llm.blocks[l], arch))
                    x, rest = (a, h + m) if at == "attention" else (m, h + a)
                    if path["adds"]:
                        path["l"], rest = l, h
                b = x.mean(0, keepdim=True)
                paths.append({**path, "b": b, "step": x[:end] - b, "rest": rest[:end]})
            tracer.stop()
    return paths


def _slopes(llm, arch, requests, ids, answer, rows):
    """For each of `requests`, a path and points r of it, Σ_d (x − b) · ∂F/∂x [R, T'] and F, a list of R.

    The paths are in the order of their blocks; a pass holds at most `rows` points, and those of one path alone where
    batches cannot grow.
    """
    passes, room = [], 0
    for k, (path, points) in enumerate(requests):
        while points:
            if not room or not arch["grows"]:
                passes.append([])
                room = rows
            passes[-1].append((k, path, points[:room]))
            points, room = points[room:], room - len(points[:room])
    slopes, f = [[] for _ in requests], [[] for _ in requests]
    for pieces in passes:
        for (k, *_), (slope, probability) in zip(pieces, _one_pass(llm, arch, pieces, ids, answer), strict=True):
            slopes[k].append(slope)
            f[k] += probability
    return [(torch.cat(slope), probability) for slope, probability in zip(slopes, f, strict=True)]


def _one_pass(llm, arch, pieces, ids, answer):
    """Of each piece, (_, path, points), what `_slopes` returns; its rows join the batch before the block that reads
    them."""
    n_rows = [len(points) for _, _, points in pieces]
    with llm.trace(inputs(ids, batch=1 if arch["grows"] else sum(n_rows)), use_cache=False) as tracer:
        rows, moving = None, []
        for _, path, points in pieces:
            l, r = path["l"], torch.tensor(points, dtype=torch.float32, device=path["b"].device)
            moving.append(x := (path["b"] + r[:, None, None] * path["step"]).requires_grad_())
            own = (path["rest"].expand_as(x) if path["adds"] else path["rest"] + x).to(path["dtype"])
            if rows is None:
                rows = own
                start_at(llm, arch, l, rows)
            else:
                rows = first(llm.blocks[l - 1].output)
                rows = torch.cat([rows, own.to(rows.device)])
                if l < arch["n_layers"]:
                    llm.blocks[l].input = rows
            if path["adds"]:
                attended = llm.blocks[l].attention_contribution.output
                given = first(attended)
                others = given.reshape(rows.shape)[: -len(points)]
                given = torch.cat([others, (x / arch["residual_scale"]).to(given)]).reshape(given.shape)
                llm.blocks[l].attention_contribution.output = (
                    (given, *attended[1:]) if isinstance(attended, tuple) else given
                )
        if l < arch["n_layers"]:
            rows = first(llm.blocks[arch["n_layers"] - 1].output)
        f = _answer_probability(llm, arch, rows[:, [place - 1 for place in answer[1]]], *answer)
        gradients = torch.autograd.grad(f.sum(), moving)
        slopes = [
            (gradient * path["step"]).sum(-1).cpu() for gradient, (_, path, _) in zip(gradients, pieces, strict=True)
        ]
        f = [piece.tolist() for piece in f.split(n_rows)]
        tracer.stop()
    return list(zip(slopes, f, strict=True))


def _answer_probability(llm, arch, predicting, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, A, d] that predict them."""
    true, f = torch.tensor([ids[place] for place in answer], device=predicting.device), []
    for piece in predicting.split(max(1, rows_of_logits(llm, predicting.device) // len(answer))):
        y = probabilities(llm, arch, piece.flatten(0, 1))
        f.append(y.gather(1, true.repeat(len(piece)).to(y.device)[:, None]).view(len(piece), -1).sum(1))
    return torch.cat(f)
