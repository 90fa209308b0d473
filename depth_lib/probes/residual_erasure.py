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
                h.append(first(llm.blocks[arch["n_layers"] - 1].output)[0].float().sum(0).cpu())
                total, n_tokens = total + torch.stack(h), n_tokens + len(ids)
                tracer.stop()
        arch["tick"](len(ids) * arch["n_layers"])
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
    end = answer[-1] if arch["cuts"] else len(ids)  # the last predicting position is answer[-1] − 1
    stop = _stop(arch, layers)
    effect = torch.zeros(arch["n_layers"] + 1, len(ids), dtype=torch.float32)
    layouts = []
    for layout in packs(range(answer[-1]), end, arch):
        read = [[p for p in _places(suffix) if layout["order"][p] + 1 in answer] for suffix in layout["suffixes"]]
        layouts.append({**layout, "reads": read, "erased": [suffix.start for suffix in layout["suffixes"]]})
    arch = _counting(arch, baseline_prompts, layouts, range(layers[0], stop))
    u, prompt = mean_residual(llm, arch, baseline_prompts), prepared(llm, arch, ids[:end], budget)
    _erase(llm, arch, prompt, layouts, range(layers[0], stop), u, effect)
    return {"erasure_effect": effect[layers[0] : stop]}


def future_erasure(llm, arch, ids, layers, baseline_prompts, budget):
    """Replace h_l[t], or h_l at all of tokens 1..t−1, by the uninformative residual u_l and measure all later outputs.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (the last has no later one: 0);
    past_erasure[l, t] = max over i ≥ t with tokens 1..t−1 erased (0 for t < 2, where there is none).

    ids: the T token ids; layers, baseline_prompts, budget: as for `residual_erasure`. Returns both, [len(layers), T],
    or [L + 1, T] of all; nothing later reads h_L.
    """
    single, several = [], []
    for layout in packs(range(len(ids) - 1), len(ids), arch):
        reads = [list(_places(suffix))[1:] for suffix in layout["suffixes"]]
        single.append({**layout, "reads": reads, "erased": [suffix.start for suffix in layout["suffixes"]]})
    for layout in packs(range(2, len(ids)), len(ids), arch):  # a suffix sees erased tokens alone, however many
        reads = [list(_places(suffix)) for suffix in layout["suffixes"]]
        several.append({**layout, "reads": reads, "erased": list(range(1, layout["prefix"]))})
    rows, layers = slice(layers[0], _stop(arch, layers)), range(layers[0], layers[-1] + 1)
    arch = _counting(arch, baseline_prompts, single + several, layers)
    u, prompt = mean_residual(llm, arch, baseline_prompts), prepared(llm, arch, ids, budget)
    alone, together = torch.zeros(2, arch["n_layers"] + 1, len(ids), dtype=torch.float32)
    _erase(llm, arch, prompt, single, layers, u, alone)
    _erase(llm, arch, prompt, several, layers, u, together)
    return {"future_erasure": alone[rows], "past_erasure": together[rows]}


def _stop(arch, layers):
    """One behind the last row of these layers: h_L goes with the last block."""
    return layers[-1] + 1 if layers[-1] + 1 < arch["n_layers"] else arch["n_layers"] + 1


def _places(suffix):
    return range(suffix.start, suffix.stop)


def _counting(arch, baseline_prompts, layouts, layers):
    """`arch` with a tick that is told what is done, in tokens × blocks, and tells it, with the whole, to who asked."""
    total = sum(map(len, baseline_prompts)) * arch["n_layers"]
    total += sum(len(layout["order"]) for layout in layouts) * sum(arch["n_layers"] - l for l in layers)
    ask = arch.get("tick")
    return {**arch, "tick": lambda cost: ask and ask(cost, total)}


def _erase(llm, arch, prompt, layouts, layers, u, effect):
    """Raise effect[l, t] to the changes of the output at the places `reads` of the suffix that begins with token t,
    when h_l is erased at the places `erased` of its layout."""
    parts = []
    for layout in layouts:

        def erase(l, row, before, erased=layout["erased"]):
            row[:, erased] = u[l].to(row)

        def count(_, joined, order=layout["order"]):
            arch["tick"](len(order) * len(joined))

        read = [place for places in layout["reads"] for place in places]
        starts = [layout["order"][suffix.start] for suffix in layout["suffixes"]]
        t = [start for start, places in zip(starts, layout["reads"], strict=True) for _ in places]
        found = growing_batch(llm, arch, prompt, {**layout, "read": read}, layers, erase, count)
        parts += [{**part, "t": t} for part in found]
        if sum(part["varied"][..., 0].numel() for part in parts) > 2**14:  # each layout alone may have few
            _measure(llm, arch, parts, effect)
            parts = []
    _measure(llm, arch, parts, effect)


def _measure(llm, arch, parts, effect):
    """Raise `effect` to the changes of the output that the residuals of `parts` lead to."""
    for part, change in zip(parts, output_change(llm, arch, parts), strict=True):
        for m, t in enumerate(part["t"]):
            effect[part["l"], t] = torch.maximum(effect[part["l"], t], change[:, m])
