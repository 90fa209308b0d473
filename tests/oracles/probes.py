"""The five probes by their definitions: a loop around a full forward for every single intervention."""

import random

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, log_softmax, softmax

from tests.oracles.streams import block_states, first, hooks, is_parallel, lens, places, residuals, run, with_first

TINY = 1e-6


def norm(x):
    return x.norm(dim=-1)


@torch.no_grad()
def relative_contribution(model, prompts):
    """Norm ratios and cosines of what attention, MLP and block add, mean over all tokens of `prompts`, lists of ids."""
    sums, n_tokens = {}, 0
    for input_ids in prompts:
        h, a, m, _ = residuals(model, input_ids)
        before = h[:-1]
        mlp_reads = before if is_parallel(model) else before + a
        per_token = {
            "rc_att": norm(a) / norm(before).clamp(min=TINY),
            "rc_mlp": norm(m) / norm(mlp_reads).clamp(min=TINY),
            "rc_layer": norm(a + m) / norm(before).clamp(min=TINY),
            "att_cos": cosine_similarity(a, before, dim=-1, eps=TINY),
            "mlp_cos": cosine_similarity(m, mlp_reads, dim=-1, eps=TINY),
            "layer_cos": cosine_similarity(a + m, before, dim=-1, eps=TINY),
            "io_cos": cosine_similarity(before, h[1:], dim=-1, eps=TINY),
            "norm_att": norm(a),
            "norm_mlp": norm(m),
            "norm_residual": norm(h),
        }
        for key, value in per_token.items():
            sums[key] = sums.get(key, 0) + value.sum(dim=-1)
        n_tokens += len(input_ids)
    return {key: total / n_tokens for key, total in sums.items()}


def effect_positions(lengths):
    """For each prompt length the positions t of future mode, drawn by one generator through all prompts."""
    generator = random.Random(123)
    drawn = []
    for T in lengths:
        positions = list(range(8, T - 4, 8))
        generator.shuffle(positions)
        drawn.append(positions[:4])
    return drawn


@torch.no_grad()
def layer_effects(model, prompts, mode, positions=None):
    """Largest change of later contributions and of the output when a block is skipped; `mode` is "future" or "all".

    `positions`: one list of t for each prompt, instead of the drawn ones.
    """
    if positions is None:
        positions = effect_positions([len(input_ids) for input_ids in prompts])
    if mode == "future" and not any(positions):
        raise ValueError("no prompt has 13 tokens or more")
    n_blocks = len(places(model)[0])
    layers, out = torch.zeros(n_blocks, n_blocks), torch.zeros(n_blocks, 1)
    for input_ids, drawn in zip(prompts, positions, strict=True):
        h, logits = block_states(model, input_ids)
        layers, out = layers.to(h), out.to(h)
        T = len(input_ids)
        for t in drawn if mode == "future" else [None]:
            skipped = range(1, t) if mode == "future" else range(1, T)
            measured = slice(t, T) if mode == "future" else slice(0, T)
            for s in range(n_blocks):
                h_bar, logits_bar = _skipping(model, input_ids, s, list(skipped))
                c, c_bar = h[1:] - h[:-1], h_bar[1:] - h_bar[:-1]
                change = norm(c - c_bar) / norm(c).clamp(min=TINY)
                y, y_bar = softmax(logits, -1), softmax(logits_bar, -1)
                layers[s] = layers[s].maximum(change[:, measured].amax(dim=1))
                out[s, 0] = out[s, 0].maximum(norm(y - y_bar)[measured].max())
    return {f"max_{mode}_layer": layers, f"max_{mode}_out": out}


def _skipping(model, input_ids, s, tokens):
    """(h, logits) of a run in which block `s` hands `tokens` through unchanged."""
    block = places(model)[0][s]
    entered = []

    def entering(_, args, kwargs):
        entered.append((args[0] if args else kwargs["hidden_states"]).clone())

    def leaving(_, args, output):
        hidden = first(output).clone()
        hidden[:, tokens] = entered[-1][:, tokens]
        return with_first(output, hidden)

    pre = block.register_forward_pre_hook(entering, with_kwargs=True)
    with hooks(pre, block.register_forward_hook(leaving)):
        return block_states(model, input_ids)


@torch.no_grad()
def logit_lens(model, prompts):
    """How far the lens at each block's input is from the final distribution, mean over all tokens of `prompts`."""
    sums, n_tokens = {}, 0
    for input_ids in prompts:
        h, logits = block_states(model, input_ids)
        log_y = log_softmax(logits, -1)
        for key in ("res_kl_divs", "res_overlaps", "top1_agreement", "reciprocal_rank"):
            sums.setdefault(key, torch.zeros(len(h) - 1).to(h))
        for layer in range(len(h) - 1):
            log_p = log_softmax(lens(model, h[layer]), -1)
            sums["res_kl_divs"][layer] += (log_p.exp() * (log_p - log_y)).sum()
            for p, y in zip(log_p, log_y, strict=True):
                top = y.argmax()
                shared = set(p.topk(5).indices.tolist()) & set(y.topk(5).indices.tolist())
                sums["res_overlaps"][layer] += len(shared) / 5
                sums["top1_agreement"][layer] += float(p.argmax() == top)
                sums["reciprocal_rank"][layer] += 1 / (1 + (p > p[top]).sum())
        n_tokens += len(input_ids)
    return {key: total / n_tokens for key, total in sums.items()}


def answer_span(tokenizer, question, answer):
    """(input ids of question + answer, first and last + 1 of the tokens that spell any of the answer's characters)."""
    encoded = tokenizer(question + answer, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    spelling = [i for i, (start, stop) in enumerate(offsets) if stop > start and stop > len(question)]
    if spelling[0] == 0:
        raise ValueError("nothing stands before the answer, so nothing predicts it")
    return encoded["input_ids"], (spelling[0], spelling[-1] + 1)


def _replacing(model, layer, h_l):
    """A hook that puts h_l [T, d] in the place of residual l: what enters block 0, or what leaves block `layer` − 1."""
    blocks = places(model)[0]
    if layer > 0:
        return blocks[layer - 1].register_forward_hook(lambda _, args, output: with_first(output, h_l[None]))

    def entering(_, args, kwargs):
        return ((h_l[None], *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": h_l[None]})

    return blocks[0].register_forward_pre_hook(entering, with_kwargs=True)


@torch.no_grad()
def residual_erasure(model, input_ids, span, baseline_prompts):
    """erasure_effect [L+1, T]: change of the answer's distributions when residual l of token t becomes the mean u_l.

    `span`: (first, last + 1) of the answer's tokens; `baseline_prompts`: lists of ids.
    """
    u = torch.cat([block_states(model, ids)[0] for ids in baseline_prompts], dim=1).mean(dim=1)
    h, logits = block_states(model, input_ids)
    predicting = slice(span[0] - 1, span[1] - 1)
    y = softmax(logits, -1)[predicting]
    effect = torch.zeros(h.shape[:2]).to(h)
    for layer in range(h.shape[0]):
        for t in range(h.shape[1]):
            erased = h[layer].clone()
            erased[t] = u[layer]
            with hooks(_replacing(model, layer, erased)):
                y_bar = softmax(run(model, input_ids), -1)[predicting]
            effect[layer, t] = norm(y - y_bar).max()
    return {"erasure_effect": effect}


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

    def F(layer, residual):
        if at == "block":
            hook = _replacing(model, layer + 1, residual)
        else:
            hook = _part(model, layer, at).register_forward_hook(
                lambda _, args, output: with_first(output, residual.clone().reshape(first(output).shape))
            )
        with hooks(hook):
            y = softmax(run(model, input_ids), -1)
        return sum(y[i - 1, input_ids[i]] for i in range(*span))

    igrads = torch.zeros(len(x), len(input_ids)).to(x)
    completeness = torch.zeros(len(x)).to(x)
    for layer in range(len(x)) if layers is None else layers:
        b = x[layer].mean(dim=0, keepdim=True)
        gradient = torch.zeros_like(x[layer])
        for r, weight in zip(points, weights, strict=True):
            point = (b + float(r) * (x[layer] - b)).requires_grad_()
            gradient += float(weight) * torch.autograd.grad(F(layer, point), point)[0]
        igrads[layer] = ((x[layer] - b) * gradient).sum(dim=-1)
        with torch.no_grad():
            completeness[layer] = igrads[layer].sum() - (F(layer, x[layer]) - F(layer, b.expand_as(x[layer])))
    return {"igrads": igrads, "completeness": completeness}


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
