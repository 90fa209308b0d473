"""Probe 4: until which block a token's residual is needed (Csordás et al. 2025, section 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        erasure_effect[l, t] = max over the answer's tokens of ‖y − ȳ‖₂, where they are predicted
"""

import torch

from ..residual.residual_stream import inputs
from ..residual.rounding import rounding_floor
from ..residual.stream import Row, Stream, output_changes, residuals


def residual_erasure(llm, arch, ids, answer, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t] by the uninformative residual u_l, for every l and t, and measure the change of the answer.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers:
    consecutive blocks l, at whose input h_l is erased; with the last block also h_L; baseline_prompts: token ids of the
    prompts that u is the mean of; budget: tokens in one call of a block, or None; tick(share): told what is done.

    Returns `erasure_effect` [len(layers), T], or [L + 1, T] of all; 0 for tokens after the last predicting position.
    Where rounding shows also `erasure_effect_rounding_floor` [len(layers)], the same number for each l.
    """
    end = len(ids)
    erased = [(slice(t, t + 1), t, tuple(i - 1 for i in answer if i > t)) for t in range(answer[-1])]
    return _erase(llm, arch, ids, end, {"erasure_effect": erased}, layers, baseline_prompts, budget, tick)


def future_erasure(llm, arch, ids, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t], or h_l at all of tokens 1..t−1, by the uninformative residual u_l and measure all later outputs.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (the last has no later one: 0);
    past_erasure[l, t] = max over i ≥ t with tokens 1..t−1 erased (0 for t < 2, where there is none).

    ids: the T token ids; layers, baseline_prompts, budget, tick: as for `residual_erasure`. Returns both,
    [len(layers), T], or [L + 1, T] of all (nothing later reads h_L: 0), and their rounding floors.
    """
    n = len(ids)
    erased = {
        "future_erasure": [(slice(t, t + 1), t, range(t + 1, n)) for t in range(n - 1)],
        "past_erasure": [(slice(1, t), t, range(t, n)) for t in range(2, n)],
    }
    return _erase(llm, arch, ids, n, erased, layers, baseline_prompts, budget, tick)


def _erase(llm, arch, ids, end, erased, layers, baseline_prompts, budget, tick):
    """Each effect [len(layers), T] of {name: [(erased tokens, column t, positions that are compared)]}."""
    at = [*layers, arch.n_layers] if layers[-1] == arch.n_layers - 1 else [*layers]  # h_L goes with the last block
    u = _means(llm, arch, baseline_prompts)
    effects = {name: torch.zeros(len(at), len(ids), dtype=torch.float32) for name in erased}

    def row(l, tokens, read):
        def erase(h, before):
            h[tokens] = u[l].to(h)

        return Row(l, range(l, arch.n_layers), read, erase)

    def erase_one(k, h):  # of eight tokens, all over the prompt, for what rounding does once something is erased
        h[k * len(h) // 8] = u[0].to(h)

    cases = [(name, k, *case) for name in erased for case in erased[name] for k in range(len(at))]
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids[:end]), use_cache=False):
            stream = Stream(llm, arch, ids[:end], budget)
            changes = output_changes(stream, [row(at[k], tokens, read) for _, k, tokens, _, read in cases], tick=tick)
            floors = rounding_floor(stream, change=erase_one)
    for (name, k, _, t, _), change in zip(cases, changes, strict=True):
        effects[name][k, t] = change.max()
    return effects | {f"{name}_rounding_floor": x.expand(len(at)) for name in erased for x in floors.values()}


def _means(llm, arch, prompts):
    """u_0..u_L [d]: the mean of h_l over all tokens of the prompts, float32."""
    sums = 0
    for ids in prompts:
        h = residuals(llm, arch, ids)
        sums = sums + torch.stack([x.float().sum(0).to(h[-1].device) for x in h])
    return sums / sum(map(len, prompts))
