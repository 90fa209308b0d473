"""Probe 4: until which block a token's residual is needed for the answer (Csordás et al. 2025, section 3.4)."""

import torch

from .growing_batch import growing_batch, prepared
from .packing import packs
from .residual_stream import first, inputs, output_change


def mean_residual(llm, arch, prompts):
    """The uninformative residual u [L + 1, d], float32: the mean of h_l over all tokens of all prompts (token ids)."""
    total, n_tokens = 0, 0
    for ids in prompts:
        with torch.no_grad():
            with llm.trace(inputs(ids), use_cache=False) as tracer:
                h = [block.input[0].float().sum(0).cpu() for block in llm.blocks]
                h.append(first(llm.blocks[-1].output)[0].float().sum(0).cpu())
                total, n_tokens = total + torch.stack(h), n_tokens + len(ids)
                tracer.stop()
    return total / n_tokens


def residual_erasure(llm, arch, ids, answer, layers, baseline_prompts, budget):
    """Replace h_l[t] by the uninformative residual u_l, for every l and t, and measure the change of the answer.

    erasure_effect[l, t] = max over answer tokens of ‖y − ȳ‖₂, read at the positions that predict them.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers: the
    blocks to do, one after the other (h_l enters block l, and h_L goes with the last block); baseline_prompts: token
    ids of the prompts that u is the mean of; budget: tokens in one forward pass, or None. Returns `erasure_effect`
    [len(layers), T], or [L + 1, T] of all; 0 for tokens behind the last predicting position, which nothing measured
    sees.
    """
    u = mean_residual(llm, arch, baseline_prompts)
    end = answer[-1] if arch["cuts"] else len(ids)  # the last predicting position is answer[-1] − 1
    prompt = prepared(llm, arch, ids[:end], budget)
    stop = layers[-1] + 1 if layers[-1] + 1 < arch["n_layers"] else arch["n_layers"] + 1
    parts, effect = [], torch.zeros(arch["n_layers"] + 1, len(ids))
    for layout in packs(range(answer[-1]), end, arch):
        parts += _erase(llm, arch, prompt, layout, answer, range(layers[0], stop), u)
        if sum(part["varied"][..., 0].numel() for part in parts) > 2**14:  # each layout alone may have few
            _measure(llm, arch, parts, effect)
            parts = []
    _measure(llm, arch, parts, effect)
    return {"erasure_effect": effect[layers[0] : stop]}


def _erase(llm, arch, prompt, layout, answer, layers, u):
    """`growing_batch` for one layout, every suffix erased at its first place; with `t`, the erased token of each place
    that predicts the answer."""
    order, read, t = layout["order"], [], []
    for places in layout["suffixes"]:
        predicting = [place for place in range(places.start, places.stop) if order[place] + 1 in answer]
        read += predicting
        t += [order[places.start]] * len(predicting)
    erased = [places.start for places in layout["suffixes"]]

    def erase(l, row, before):
        row[:, erased] = u[l].to(row)

    parts = growing_batch(llm, arch, prompt, {**layout, "read": read}, layers, erase)
    return [{**part, "t": t} for part in parts]


def _measure(llm, arch, parts, effect):
    """Raise `effect` to the changes of the answer that the residuals of `parts` lead to."""
    for part, change in zip(parts, output_change(llm, arch, parts), strict=True):
        for m, t in enumerate(part["t"]):
            effect[part["l"], t] = torch.maximum(effect[part["l"], t], change[:, m])
