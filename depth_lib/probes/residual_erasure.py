"""Probe 4: until which block a token's residual is needed (Csordás et al. 2025, section 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        erasure_effect[l, t] = max over the answer's tokens of ‖y − ȳ‖₂, where they are predicted

Here all l and t are rows of a batch, each of which joins it where its run begins to differ (see `growing_batch`).
"""

import torch

from .clean_run import CleanRun
from .growing_batch import Row, growing_batch, rounding_floor
from .residual_stream import clean_run


class Erasure:
    """Of tokens start..stop − 1, measured at the positions `read`, a range or tuple; t: its column in the result."""

    def __init__(self, t, start, stop, read):
        self.t, self.erased, self.read = t, slice(start, stop), read


def residual_erasure(llm, arch, ids, answer, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t] by the uninformative residual u_l, for every l and t, and measure the change of the answer.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers:
    consecutive blocks l, at whose input h_l is erased; with the last block also h_L; baseline_prompts: token ids of the
    prompts that u is the mean of; budget: tokens in one forward pass, or None; tick(share): told what is done.

    Returns `erasure_effect` [len(layers), T], or [L + 1, T] of all; 0 for tokens after the last predicting position.
    Where rounding shows also `erasure_effect_rounding_floor` [len(layers)], the same number for each l.
    """
    end = answer[-1] if arch.may_truncate else len(ids)  # the last token that predicts is answer[-1] − 1
    predicting = [(t, tuple(i - 1 for i in answer if i > t)) for t in range(answer[-1])]
    erasures = {"erasure_effect": [Erasure(t, t, t + 1, read) for t, read in predicting]}
    clean = CleanRun(llm, arch, ids[:end], budget)
    return _erase(clean, len(ids), erasures, layers, arch.n_layers, baseline_prompts, tick)


def future_erasure(llm, arch, ids, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t], or h_l at all of tokens 1..t−1, by the uninformative residual u_l and measure all later outputs.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (the last has no later one: 0);
    past_erasure[l, t] = max over i ≥ t with tokens 1..t−1 erased (0 for t < 2, where there is none).

    ids: the T token ids; layers, baseline_prompts, budget, tick: as for `residual_erasure`. Returns both,
    [len(layers), T], or [L + 1, T] of all (nothing later reads h_L: 0), and their rounding floors.
    """
    n = len(ids)
    erasures = {
        "future_erasure": [Erasure(t, t, t + 1, range(t + 1, n)) for t in range(n - 1)],
        "past_erasure": [Erasure(t, 1, t, range(t, n)) for t in range(2, n)],
    }
    clean = CleanRun(llm, arch, ids, budget)
    return _erase(clean, n, erasures, layers, arch.n_layers - 1, baseline_prompts, tick)


def _erase(clean, n_tokens, erasures, layers, last, baseline_prompts, tick):
    """Each effect of {name: erasures} at these layers, up to the last that has any, as the two probes return them."""
    llm, arch = clean.llm, clean.arch
    # row L, of what leaves the last block, goes with that block
    wanted = range(layers[0], layers[-1] + 1 if layers[-1] + 1 < arch.n_layers else arch.n_layers + 1)
    erased_at = range(wanted.start, min(wanted.stop, last + 1))
    u_0, *u = _mean_residuals(llm, arch, baseline_prompts, [0, *erased_at], clean.h)

    def row(erasure, l, u_l):
        def erase(h, before):
            h[erasure.erased] = u_l.to(h)

        return Row(l, erasure.read, erase)

    effects = {name: torch.zeros(len(wanted), n_tokens, dtype=torch.float32) for name in erasures}
    cases = [(name, erasure, k) for name in erasures for erasure in erasures[name] for k in range(len(erased_at))]
    rows = [row(erasure, erased_at[k], u[k]) for _, erasure, k in cases]
    changes, _ = growing_batch(clean, rows, tick=tick)
    for (name, erasure, k), change in zip(cases, changes, strict=True):
        effects[name][k, erasure.t] = change.max()

    def erase_one(k, h):  # of eight tokens, all over the prompt, for what rounding does once something is erased
        h[k * len(h) // 8] = u_0.to(h)

    for floor in rounding_floor(clean, change=erase_one).values():
        effects |= {f"{name}_rounding_floor": floor.expand(len(wanted)) for name in erasures}
    return effects


def _mean_residuals(llm, arch, prompts, layers, like):
    """u_l [d] of these l, the mean of h_l over all tokens of the prompts, float32, where h_l is."""
    sums = [0] * len(layers)
    for ids in prompts:
        h, _ = clean_run(llm, arch, ids)
        sums = [total + h[l].float().sum(0) for total, l in zip(sums, layers, strict=True)]
    n_tokens = sum(map(len, prompts))
    return [(total / n_tokens).to(like[l].device) for total, l in zip(sums, layers, strict=True)]
