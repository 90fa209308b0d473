"""Probe 4: until which block a token's residual is needed for the answer (Csordás et al. 2025, section 3.4)."""

import torch

from .packing import additive, packs
from .residual_stream import add_row, first, inputs, output_change, start_at, token_budget


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
    budget = token_budget(llm, budget)
    u = mean_residual(llm, arch, baseline_prompts)
    end = answer[-1] if arch["cuts"] else len(ids)  # the last predicting position is answer[-1] − 1
    effect = torch.zeros(arch["n_layers"] + 1, len(ids))
    for layout in packs(range(answer[-1]), end, arch):
        _erase_every_residual(llm, arch, ids, layout, answer, layers, u, budget, effect)
    return {"erasure_effect": effect[layers[0] : _stop(layers[-1] + 1, arch)]}


def _erase_every_residual(llm, arch, ids, layout, answer, layers, u, budget, effect):
    """Fill `effect` for the tokens t of one layout: every suffix is erased at its first place, in row l of the batch.

    Row 0 of the batch stays clean; the row that erases h_l joins before block l, that of h_L after the last one.
    """
    n_layers, tokens = arch["n_layers"], [ids[i] for i in layout["order"]]
    erased = [places.start for places in layout["suffixes"]]
    read = [_predicting(layout["order"], places, answer) for places in layout["suffixes"]]
    rows_a_pass = max(1, budget // len(tokens) - 1)
    clean = None
    for begin in range(layers[0], layers[-1] + 1, rows_a_pass):
        end = _stop(min(begin + rows_a_pass, layers[-1] + 1), arch)
        batch = 1 if arch["grows"] else 1 + end - begin
        encoding = inputs(tokens, layout["order"], additive(layout["visible"], llm.dtype), batch)
        with torch.no_grad():
            with llm.trace(encoding, use_cache=False) as tracer:
                if clean is not None:
                    start_at(llm, arch, begin, clean.expand(batch, -1, -1))
                h = llm.blocks[begin].input
                for l in range(begin, n_layers + 1):
                    if l == end:
                        clean = h[:1].clone()
                    if l < end:
                        row = h[:1].clone()
                        row[:, erased] = u[l].to(h)
                        h = add_row(h, row, 1 + l - begin, arch["grows"])
                    if l < n_layers:
                        llm.blocks[l].input = h
                        h = first(llm.blocks[l].output)
                change = (
                    output_change(llm, arch, h[:, sum(read, [])]).cpu().split([len(places) for places in read], dim=1)
                )
                for place, changes in zip(erased, change, strict=True):
                    effect[begin:end, layout["order"][place]] = changes.amax(1)
                tracer.stop()


def _stop(l, arch):
    """The end of a range of residuals that goes to block l: past h_L, which no block reads, behind the last one."""
    return l if l < arch["n_layers"] else l + 1


def _predicting(order, places, answer):
    """The places of one suffix whose output predicts an answer token."""
    return [place for place in range(places.start, places.stop) if order[place] + 1 in answer]
