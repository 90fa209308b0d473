"""What an answer owes to residuals, by definition: a full forward for every layer, tokens or points as its rows."""

import numpy as np
import torch
from torch.nn.functional import softmax

from tests.oracles.streams import block_states, first, hooks, lens, norm, places, replacing, residuals, run, with_first


def answer_span(tokenizer, question, answer):
    """(input ids of question + answer, first and last + 1 of the tokens that spell any of the answer's characters)."""
    encoded = tokenizer(question + answer, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    spelling = [i for i, (start, stop) in enumerate(offsets) if stop > start and stop > len(question)]
    if spelling[0] == 0:
        raise ValueError("nothing stands before the answer, so nothing predicts it")
    return encoded["input_ids"], (spelling[0], spelling[-1] + 1)


@torch.no_grad()
def residual_erasure(model, input_ids, span, baseline_prompts, layers=None):
    """erasure_effect [L+1, T]: change of the answer's distributions when residual l of token t becomes the mean u_l.

    `span`: (first, last + 1) of the answer's tokens; `baseline_prompts`: lists of ids; `layers`: only these rows, the
    others are 0.
    """
    u = torch.cat([block_states(model, ids)[0] for ids in baseline_prompts], dim=1).mean(dim=1)
    h, logits = block_states(model, input_ids)
    predicting = slice(span[0] - 1, span[1] - 1)
    y = softmax(logits.double(), -1)[predicting]
    effect = torch.zeros(h.shape[:2]).to(h)
    for layer in range(h.shape[0]) if layers is None else layers:
        y_bar = _erased(model, input_ids, layer, h[layer], u[layer], [[t] for t in range(h.shape[1])])
        effect[layer] = norm(y - y_bar[:, predicting]).amax(dim=1)
    return {"erasure_effect": effect}


def _erased(model, input_ids, layer, h_l, u_l, tokens):
    """Output distributions [rows, T, V] of runs in which residual l of these tokens, a list for each run, is the mean;
    the runs are rows of one batch."""
    rows = h_l.repeat(len(tokens), 1, 1)
    for row, erased in zip(rows, tokens, strict=True):
        row[erased] = u_l
    ids = torch.as_tensor(input_ids).repeat(len(tokens), 1)
    with hooks(replacing(model, layer, rows)):
        return softmax(model(input_ids=ids, use_cache=False).logits.double(), -1)


@torch.no_grad()
def future_erasure(model, input_ids, baseline_prompts):
    """future_erasure and past_erasure [L+1, T]: change of later outputs when residual l of token t, or of all tokens
    1..t−1, becomes the mean."""
    u = torch.cat([block_states(model, ids)[0] for ids in baseline_prompts], dim=1).mean(dim=1)
    h, logits = block_states(model, input_ids)
    y = softmax(logits.double(), -1)
    alone, together = torch.zeros(h.shape[:2]).to(h), torch.zeros(h.shape[:2]).to(h)
    T = h.shape[1]
    for layer in range(h.shape[0]):
        for effect, erased, first_read in (
            (alone, [[t] for t in range(T)], [t + 1 for t in range(T)]),
            (together, [list(range(1, t)) for t in range(T)], list(range(T))),
        ):
            change = norm(y - _erased(model, input_ids, layer, h[layer], u[layer], erased))
            for t in range(T):
                if erased[t] and first_read[t] < T:
                    effect[layer, t] = change[t, first_read[t] :].max()
    return {"future_erasure": alone, "past_erasure": together}


def integrated_gradients(model, input_ids, span, quadrature="gauss", nodes=64, layers=None, at="block"):
    """igrads [L, T] and completeness [L]; "riemann" takes `nodes` left ends (256 in the papers), "gauss" as many nodes.

    `layers`: only these rows, the others are 0. at: "block", or "attention" or "mlp": what that part's module returns
    moves in place of the block's output.
    """
    input_ids = torch.as_tensor(input_ids)
    with torch.no_grad():
        x = block_states(model, input_ids)[0][1:] if at == "block" else _returned(model, input_ids, at)
    if quadrature == "gauss":
        points, weights = np.polynomial.legendre.leggauss(nodes)
        points, weights = (points + 1) / 2, weights / 2
    else:
        points, weights = np.arange(nodes) / nodes, np.full(nodes, 1 / nodes)

    def F(layer, rows):
        return _probability(model, input_ids, span, layer, rows, at)

    igrads = torch.zeros(len(x), len(input_ids)).to(x)
    completeness = torch.zeros(len(x)).to(x)
    r, weights = (torch.as_tensor(values).to(x)[:, None, None] for values in (points, weights))
    for layer in range(len(x)) if layers is None else layers:
        b = x[layer].mean(dim=0, keepdim=True)
        gradient = torch.zeros_like(x[layer])
        for some, weight in zip(r.split(64), weights.split(64), strict=True):  # points of the path are rows of a batch
            rows = (b + some * (x[layer] - b)).requires_grad_()
            gradient += (weight * torch.autograd.grad(F(layer, rows).sum(), rows)[0]).sum(dim=0)
        igrads[layer] = ((x[layer] - b) * gradient).sum(dim=-1)
        with torch.no_grad():
            ends = F(layer, torch.stack([x[layer], b.expand_as(x[layer])]))
            completeness[layer] = igrads[layer].sum() - (ends[0] - ends[1])
    return {"igrads": igrads, "completeness": completeness}


@torch.no_grad()
def increments(model, input_ids, span, steps, layers, at="block"):
    """igrads and completeness as `integrated_gradients`, from F alone: for each token and each step of the path, what F
    changes by when that token goes first, and when it goes last, halved."""
    input_ids = torch.as_tensor(input_ids)
    x = block_states(model, input_ids)[0][1:] if at == "block" else _returned(model, input_ids, at)
    igrads, completeness = torch.zeros(len(x), len(input_ids)).to(x), torch.zeros(len(x)).to(x)
    for layer in layers:
        b = x[layer].mean(dim=0, keepdim=True)
        for k in range(steps):
            here, there = (b + j / steps * (x[layer] - b) for j in (k, k + 1))
            for token in range(len(input_ids)):
                leads, lags = here.clone(), there.clone()
                leads[token], lags[token] = there[token], here[token]
                f = _probability(model, input_ids, span, layer, torch.stack([here, leads, lags, there]), at)
                igrads[layer, token] += (f[1] - f[0] + f[3] - f[2]) / 2
        ends = _probability(model, input_ids, span, layer, torch.stack([b.expand_as(x[layer]), x[layer]]), at)
        completeness[layer] = igrads[layer].sum() - (ends[1] - ends[0])
    return {"igrads": igrads, "completeness": completeness}


def _probability(model, input_ids, span, layer, rows, at):
    """F of each row [T, d] in the place of a block's output, or of what its attention or MLP returns."""
    if at == "block":
        hook = replacing(model, layer + 1, rows)
    else:
        hook = _part(model, layer, at).register_forward_hook(
            lambda _, args, output: with_first(output, rows.clone().reshape(first(output).shape))
        )
    with hooks(hook):
        y = softmax(model(input_ids=input_ids.repeat(len(rows), 1), use_cache=False).logits, -1)
    return sum(y[:, i - 1, input_ids[i]] for i in range(*span))


def _part(model, layer, at):
    """The module of a block whose output is what its attention or its MLP adds, but for a constant factor."""
    blocks, attention, mlp, _ = places(model)
    return blocks[layer].get_submodule(attention if at == "attention" else mlp)


def _returned(model, input_ids, at):
    """[L, T, d]: what the attention or the MLP modules return."""
    kept = []

    def keep(_, args, output):
        kept.append(first(output).reshape(len(input_ids), -1).clone())

    parts = [_part(model, layer, at) for layer in range(len(places(model)[0]))]
    with hooks(*[part.register_forward_hook(keep) for part in parts]):
        run(model, input_ids)
    return torch.stack(kept)


@torch.no_grad()
def direct_effects(model, input_ids, span):
    """direct_att and direct_mlp [L, A]: what log p of each of the answer's tokens loses without what a part adds to the
    final residual."""
    h, a, m, _ = residuals(model, input_ids)

    def log_p(final, token):
        return torch.log_softmax(lens(model, final[None])[0], -1)[token]

    effects = {}
    for key, added in (("direct_att", a), ("direct_mlp", m)):
        effects[key] = torch.stack(
            [
                torch.stack(
                    [
                        log_p(h[-1, place - 1], input_ids[place])
                        - log_p(h[-1, place - 1] - x[place - 1], input_ids[place])
                        for place in range(*span)
                    ]
                )
                for x in added
            ]
        )
    return effects
