"""The probes that the papers' five are extended by: local effects beside a literal version, and what parts cost."""

from functools import partial

import nnsight
import torch

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run_ticking
from tests.benchmarks import floor
from tests.benchmarks.run import doubled
from tests.benchmarks.workloads import SIZES, Workload, prompt, real_prompt
from tests.oracles import effect_positions


def literal_local_effects(llm, prompt, starts, sources):
    """local [sources, L]: a full forward pass for every (s, l, t), with c_s taken out of the input of block l alone."""
    with torch.no_grad():
        with llm.session():
            local = nnsight.save(_literal_local_effects(llm, prompt, starts, sources))
    return local


def _literal_local_effects(llm, prompt, starts, sources):
    clean, n_layers = [], len(llm.model.layers)
    with llm.trace(prompt):
        for layer in llm.model.layers:
            h = layer.input.detach().float()
            clean.append(layer.output.detach().float() - h)
        llm.output.logits.detach()
    rows = torch.zeros(len(sources), n_layers)
    for row, s in zip(rows, sources, strict=True):
        for l in range(s + 1, n_layers):
            for t in starts:
                with llm.trace(prompt):
                    h = llm.model.layers[l].input.clone()
                    h[:, 1:t] -= clean[s][:, 1:t].to(h)
                    llm.model.layers[l].input = h
                    c_bar = llm.model.layers[l].output.detach().float() - h.float()
                    llm.output.logits.detach()
                    change = (clean[l][:, t:] - c_bar[:, t:]).norm(dim=-1) / clean[l][:, t:].norm(dim=-1).clamp(
                        min=1e-6
                    )
                    row[l] = torch.maximum(row[l], change.max().cpu())
    return rows


def local_effects(llm, text):
    """The workload of local effects in future mode on one prompt; the literal way's parts are sources s."""
    n_layers = llm.config.num_hidden_layers
    n_tokens = len(llm.tokenizer(text)["input_ids"])
    (starts,) = effect_positions([n_tokens])

    def least(result):
        work = floor.Work(llm.config)
        changed = max(starts) - 1 + sum(n_tokens - t for t in starts)
        pairs = floor.seen(1, max(starts)) + sum(floor.seen(t, n_tokens) for t in starts)
        for l in range(n_layers):
            work.block(n_tokens + l * changed, floor.seen(0, n_tokens) + l * pairs, n_tokens + l * changed, n_tokens)
        return work

    def chosen(parts):
        return list(range(n_layers - 1) if parts is None else parts)

    return Workload(
        probe="local_effects",
        ours=partial(dl.local_effects, llm, [text]),
        literal=lambda parts=None: {"local": literal_local_effects(llm, text, starts, chosen(parts))},
        compared=lambda result, parts=None: {"local": result["max_future_local"][chosen(parts)]},
        floor=least,
        n_parts=n_layers - 1,
        peak_parts=(0,),
        goal=(3.0, 1.8, 1.0),
    )


def further_workloads(llm, size):
    """Local effects on one prompt of the size's tokens, as `workloads`."""
    text = text_and_pair(llm, size)[0]
    return {f"local effects, future, 1 × {len(llm.tokenizer(text)['input_ids'])}": lambda: local_effects(llm, text)}


def text_and_pair(llm, size):
    """The prompt, and the question with its answer, that parts are measured on."""
    if size == "real":
        return real_prompt(llm, 120), (QUESTION, ANSWER)
    n_tokens, _, (short, _) = SIZES[size]
    return prompt(n_tokens, 0), (prompt(short, short)[:-2], prompt(short, short)[-2:])


def parts(llm, text, pair):
    """Attention or MLP skips beside whole ones, and gradients there beside those at blocks: for each what is extended,
    the part, and how many times its time and its peak memory above the model it may take.

    Gradients are left-end sums of equal numbers of nodes. Those at attention begin one block earlier, whose MLP reads
    what moves: (L + 1) / (L − 1) as many blocks in all, and L in place of L − 1 in the longest graph.
    """
    n_layers, pairs = llm.config.num_hidden_layers, {}
    for part in ("attention", "mlp"):
        for mode in ("future", "all"):
            ways = [partial(dl.layer_effects, llm, [text], mode=mode, part=one) for one in ("layer", part)]
            pairs[f"{part} skip beside a layer's, {mode}"] = (*ways, 1.2, 1.05)
        ways = [partial(_left_ends, llm, *pair, at) for at in ("block", part)]
        more, longer = 1.1, 1.05
        if part == "attention":
            more, longer = more * (n_layers + 1) / (n_layers - 1), longer * n_layers / (n_layers - 1)
        pairs[f"gradients at {part} beside blocks"] = (*ways, round(more, 2), round(longer, 2))
    return pairs


def _left_ends(llm, question, answer, at, steps=32):
    """The package's integrated gradients from so many left ends."""
    (ids, places, _), arch = answer_span(llm, question, answer), describe(llm)
    work = arch, ids, places, list(range(arch["n_layers"])), {"at": at, "steps": steps}, None
    return run_ticking(integrated_gradients, llm, *work, remote=False)


def costs_of_parts(llm, text, pair, device, repeats):
    """Rows of the checks, without memory: what parts cost beside what they extend."""
    return [
        doubled(check, extended, part, device, repeats, bound) | {"goal_memory": goal}
        for check, (extended, part, bound, goal) in parts(llm, text, pair).items()
    ]
