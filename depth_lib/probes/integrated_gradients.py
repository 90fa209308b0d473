"""Probe 5: which residuals the answer's probability comes from (Sundararajan et al. 2017; Csordás et al. 2025, 3.4).

The plain version, for the output h of block l, F(l, x) being the summed probability of the answer's tokens where h is
replaced by x:

    b = h.mean(0)
    for k in range(256):
        x = (b + k / 256 * (h - b)).requires_grad_()
        igrads[l] += ((h - b) * autograd.grad(F(l, x), x)).sum(-1) / 256

Here points on the path are chosen where F is steep (see quadrature.py), they are rows of a batch that starts at the
block that reads them, and tokens after the last that predicts are left out. Without gradients the integral is the sum
of what F changes by when one token alone takes a step of the path (`increments`).
"""

import torch

from .budget import rows_of_logits, tokens_in_pass
from .quadrature import increments, left_ends, panels
from .ranks import from_rank_0, is_sharded
from .residual_stream import (
    a_and_m,
    entering,
    final_residual,
    hidden_states,
    inputs,
    leaving,
    parts,
    rescaling,
    skip_rest,
    start_at,
    with_hidden_states,
)
from .unembedding import lens

_KEPT = 2**14  # tokens whose paths, a float32 vector for each block, are kept at once


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
    together = max(1, _KEPT // end)
    groups = (layers[start : start + together] for start in range(0, len(layers), together))
    for path in (path for group in groups for path in _paths(llm, arch, ids, end, group, at)):
        h = path.step.to(path.dtype)
        rows = (budget or tokens_in_pass(llm, h, gradients=with_gradients)) // end
        rows = max(1, min(rows, rows_of_logits(llm, h) // len(answer)))
        if not with_gradients:
            rule = increments(steps, end)
        else:
            rule = left_ends(steps) if steps else panels(tolerance, torch.finfo(h.dtype).eps, max_nodes)
        integrated, points = None, next(rule)
        most = left = max(max_nodes, len(points))  # points of this path, and those that it may still take
        while integrated is None:
            of_passes = [
                _one_pass(llm, arch, path, points[k : k + rows], ids[:end], (ids, answer), with_gradients)
                for k in range(0, len(points), rows)
            ]
            slopes, f = zip(*of_passes, strict=True)
            sample, taken = (torch.cat(slopes) if with_gradients else None, sum(f, [])), len(points)
            try:
                points = rule.send(from_rank_0(sample, is_sharded(llm)))  # the same nodes on every rank
            except StopIteration as finished:
                integrated, taken = finished.value, left
            left -= taken
            if tick:
                tick(taken / most / len(layers))
        results.append(_result(integrated, len(ids)))
    return {key: torch.stack([result[key] for result in results]) for key in results[0]}


def _result(integrated, n_tokens):
    """What is returned of one layer, as tensors: attributions of the tokens that are left out are 0."""
    f_b, f_x = integrated.pop("f")
    integral = integrated.pop("integral")
    numbers = {"completeness": integral.sum() - (f_x - f_b), "f_difference": f_x - f_b} | integrated
    igrads = torch.nn.functional.pad(integral, (0, n_tokens - len(integral)))
    return {"igrads": igrads} | {key: torch.as_tensor(x, dtype=torch.float32) for key, x in numbers.items()}


class Path:
    """b + r · step, r from 0 to 1: how what one block adds, or returns, moves from its mean to itself.

    b [1, d] and step = x − b [T', d], float32, T' being the tokens that are run. What block l reads is
    (rest + b + r · step) · scale, in `dtype`. But where the path is `within` a block, of what attention adds where the
    MLP of its own block reads it, block l reads `rest`, and its attention adds b + r · step.
    """

    def __init__(self, l, x, n_tokens, dtype, rest=0.0, scale=1.0, within=False):
        self.b = x.mean(0, keepdim=True)
        self.step = x[:n_tokens] - self.b
        self.l, self.dtype, self.rest, self.scale, self.within = l, dtype, rest, scale, within

    def at(self, points):
        """x [R, T', d] at points (r, t, s): b + r · step, but token t at s in place of r."""
        r, t, s = zip(*points, strict=True)
        place = torch.tensor(r, dtype=torch.float32)[:, None].repeat(1, len(self.step))
        place[range(len(t)), t] = torch.tensor(s, dtype=torch.float32)
        return self.b + place.to(self.b.device)[..., None] * self.step


def _paths(llm, arch, ids, end, layers, at):
    """The path of each of these layers; the blocks after them do not run."""
    paths = []
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            for l in layers:
                block = llm.blocks[l]
                if at == "block":
                    h = leaving(block)
                    paths.append(Path(l + 1, h[0].float(), end, h.dtype))
                    continue
                h = entering(block).clone()
                a, m = a_and_m(block, arch, h)
                before = h.to(a.device).float()
                x, others = (a, m) if at == "attention" else (m, a)
                if at == "attention" and not arch.parallel and all(parts(block, arch).values()):
                    paths.append(Path(l, x[0], end, h.dtype, before[0, :end], within=True))
                    continue
                scale = float(rescaling(before + a + m, leaving(block).float())) if arch.rescales else 1.0
                paths.append(Path(l + 1, x[0], end, h.dtype, (before + others)[0, :end], scale))
            # as many tokens as were run: gpt2 and gptj reshape what leaves their final norm to that
            skip_rest(llm, arch, layers[-1] + 1, h)
    return paths


def _one_pass(llm, arch, path, points, ids, target, with_gradients):
    """Of points of a path, Σ_d step · ∂F/∂x [R, T'] (None without gradients) and F, a list of R.

    ids: the tokens that are run; target: all token ids, and the answer's places among them.
    """
    is_final = path.l == arch.n_layers  # what moves is the final residual
    with torch.set_grad_enabled(with_gradients):
        with llm.trace(inputs(llm, arch, ids, 1 if arch.can_add_rows else len(points)), use_cache=False):
            x = path.at(points).requires_grad_(with_gradients)
            h = path.rest.expand_as(x) if path.within else (path.rest + x) * path.scale
            h = h.to(path.dtype)
            if not is_final:
                start_at(llm, arch, path.l, h)
                if path.within:
                    _attend(llm.blocks[path.l], arch, x)
                h = final_residual(llm, arch)
            f, slopes = _answer_probability(llm, arch, h[:, [place - 1 for place in target[1]]], *target), None
            if with_gradients:
                slopes = (torch.autograd.grad(f.sum(), x)[0] * path.step).sum(-1).cpu()
            f = f.tolist()
            skip_rest(llm, arch, 0 if is_final else arch.n_layers, h.detach())
    return slopes, f


def _attend(block, arch, x):
    """Let x [R, T', d] be all that attention adds in a block."""
    for module, scale, bias in parts(block, arch)["attention"]:
        output = module.output
        added = hidden_states(output)
        of_module = (x if bias is None else x - bias) / scale
        module.output = with_hidden_states(output, of_module.to(added).reshape(added.shape))
        x = torch.zeros_like(x)  # the first module's output is all of it


def _answer_probability(llm, arch, predicting, ids, answer):
    """F [R]: the summed probability of the answer's true tokens, from final residuals [R, A, d] that predict them."""
    y = lens(llm, arch, predicting.flatten(0, 1)).softmax(-1).unflatten(0, predicting.shape[:2])
    true = torch.tensor([ids[place] for place in answer], device=y.device)
    return y.gather(2, true[:, None].expand(len(y), -1, 1)).sum((1, 2))
