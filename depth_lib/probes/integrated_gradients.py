"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4)."""

import torch

from .quadrature import integrate
from .residual_stream import contributions, first, inputs, probabilities, rows_of_logits, start_at, token_budget


def integrated_gradients(llm, arch, ids, answer, layers, how, budget):
    """Integrated gradients of the answer's probability at the output of each block, or at what a part of it adds.

    With x = h_{l+1}, a_l or m_l [T, d], b its mean over the sequence and F the summed probability of the answer's true
    tokens: igrads[l, t] = Σ_d (x − b)[t, d] · ∫₀¹ ∂F/∂x[t, d] at b + r (x − b) dr. Of a_l or m_l only this contribution
    moves, and what follows is recomputed.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do; how: a dict of `at` ("block", "attention" or "mlp"), `steps`, that many left-end steps, or None for
    Gauss–Kronrod panels, and `tolerance`: until no token's estimated error is above tolerance · max |igrads[l]|;
    budget: tokens in one forward pass, or None. Returns for each layer `igrads` [T], `completeness` = Σ_t igrads −
    (F(x) − F(b)), `f_difference` = F(x) − F(b), `n_nodes` and, without steps, `error`: the estimated largest error of a
    token relative to max |igrads[l]|.
    """
    budget = token_budget(llm, budget, blocks_held=arch["n_layers"])
    rounding = 2.5 * torch.finfo(llm.dtype).eps  # F is known no better
    results = []
    for path in _paths(llm, arch, ids, layers, how["at"]):

        def sample(points, path=path):
            return _slopes(llm, arch, path, answer, points, budget)

        if how["steps"]:
            slopes, f = sample([1.0, *(k / how["steps"] for k in range(how["steps"]))])
            found = {"integral": slopes[1:].mean(0), "n_nodes": how["steps"], "f": (f[1], f[0])}
        else:
            found = integrate(sample, how["tolerance"], rounding)
        igrads, (f_b, f_x) = found["integral"], found["f"]
        result = {"igrads": torch.cat([igrads, torch.zeros(len(ids) - len(igrads))])}
        result |= {"completeness": igrads.sum() - (f_x - f_b), "f_difference": torch.tensor(f_x - f_b)}
        result |= {key: torch.tensor(found[key]) for key in ("n_nodes", "error") if key in found}
        results.append(result)
    return {key: torch.stack([result[key].float() for result in results]) for key in results[0]}


def _paths(llm, arch, ids, layers, at):
    """For each l of layers, neighbours, what `_slopes` needs; the blocks behind them do not run.

    A dict of `ids`, `x` [T, d], what moves, `rest` [T, d], the residual stream that it is added to, and `l`: the block
    that reads the sum. What attention adds is read by the MLP of its own block, so there `adds` is true, and `rest` is
    what enters block l; where attention and MLP are parallel the next block is the first that reads it.
    """
    paths = []
    with torch.no_grad():
        with llm.trace(inputs(ids), use_cache=False) as tracer:
            for l in layers:
                path = {"ids": ids, "l": l + 1, "adds": at == "attention" and not arch["parallel"]}
                path["dtype"] = llm.blocks[l].input.dtype
                if at == "block":
                    path["x"] = first(llm.blocks[l].output)[0].clone()
                    path["rest"] = torch.zeros_like(path["x"])
                else:
                    h, a, m = (part[0].clone() for part in contributions(llm.blocks[l], arch))
                    path |= {"x": a, "rest": h + m} if at == "attention" else {"x": m, "rest": h + a}
                    if path["adds"]:
                        path |= {"l": l, "rest": h}
                paths.append(path)
            tracer.stop()
    return paths


def _slopes(llm, arch, path, answer, points, budget):
    """Σ_d (x − b) · ∂F/∂x [R, T'] and F, a list of R, at the points r of a path; T' are the tokens that matter: those
    before the last of the answer, where the ones behind it change nothing."""
    ids, l, end = path["ids"], path["l"], answer[-1] if arch["cuts"] else len(path["ids"])
    b = path["x"].float().mean(0, keepdim=True)
    step, rest = path["x"][:end].float() - b, path["rest"][:end].float()
    rows = max(1, min(budget // end, rows_of_logits(llm, b.device) // len(answer)))
    slopes, f = [], []
    for begin in range(0, len(points), rows):
        r = torch.tensor(points[begin : begin + rows], device=b.device)[:, None, None]
        x = (b + r * step).requires_grad_()
        with llm.trace(inputs(ids[:end], batch=1 if arch["grows"] else len(r)), use_cache=False) as tracer:
            final = (rest.expand_as(x) if path["adds"] else rest + x).to(path["dtype"])
            start_at(llm, arch, l, final)
            if path["adds"]:
                attended = llm.blocks[l].attention_contribution.output
                added = (x / arch["residual_scale"]).to(first(attended)).reshape(first(attended).shape)
                llm.blocks[l].attention_contribution.output = (
                    (added, *attended[1:]) if isinstance(attended, tuple) else added
                )
            if l < arch["n_layers"]:
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
