"""Probe 4: until which block a token's residual is needed (Csordás et al. 2025, section 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        erasure_effect[l, t] = max over the answer's tokens of ‖y − ȳ‖₂, where they are predicted

Here all l are rows of one batch, each of which joins it where its run begins to differ (see `growing_batch`), and many
t share one sequence: what comes before t is not changed by erasing t (see `pack`).
"""

import torch

from .growing_batch import growing_batch
from .packing import packs
from .residual_stream import compares_in_batch, residuals


def residual_erasure(llm, arch, ids, answer, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t] by the uninformative residual u_l, for every l and t, and measure the change of the answer.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers:
    consecutive blocks l, at whose input h_l is erased; with the last block also h_L; baseline_prompts: token ids of the
    prompts that u is the mean of; budget: tokens in one forward pass, or None; tick(cost, total): told what is done.

    Returns `erasure_effect` [len(layers), T], or [L + 1, T] of all; 0 for tokens after the last predicting position.
    Where rounding shows (see `compares_in_batch`), `erasure_effect_resolution` is the smallest effect of each l that
    can be told from it: twice its effect on an unmodified row, as the erased row's own rounding and u's are added.
    """
    end = answer[-1] if arch["cuts"] else len(ids)  # the last token that predicts is answer[-1] − 1
    jobs, predicted = [], set(answer)
    for pack in packs(range(answer[-1]), end, arch):
        order, suffixes = pack
        predicting = [[place for place in suffix if order[place] + 1 in predicted] for suffix in suffixes]
        jobs.append((pack, [suffix.start for suffix in suffixes], predicting))
    work = {"erasure_effect": jobs}
    return _erase(llm, arch, ids, end, work, layers, arch["n_layers"], baseline_prompts, budget, tick)


def future_erasure(llm, arch, ids, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t], or h_l at all of tokens 1..t−1, by the uninformative residual u_l and measure all later outputs.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (the last has no later one: 0);
    past_erasure[l, t] = max over i ≥ t with tokens 1..t−1 erased (0 for t < 2, where there is none).

    ids: the T token ids; layers, baseline_prompts, budget, tick: as for `residual_erasure`. Returns both,
    [len(layers), T], or [L + 1, T] of all (nothing later reads h_L: 0), and the resolution of both.
    """
    end, single, several = len(ids), [], []
    for pack in packs(range(end - 1), end, arch):
        suffixes = pack[1]
        single.append((pack, [suffix.start for suffix in suffixes], [suffix[1:] for suffix in suffixes]))
    for pack in packs(range(2, end), end, arch):
        suffixes = pack[1]
        prefix = list(range(1, suffixes[0].start))  # the suffix of t sees tokens up to t − 1 of it
        several.append((pack, prefix, suffixes))
    work = {"future_erasure": single, "past_erasure": several}
    return _erase(llm, arch, ids, end, work, layers, arch["n_layers"] - 1, baseline_prompts, budget, tick)


def _erase(llm, arch, ids, end, work, layers, last, baseline_prompts, budget, tick):
    """The effects of erasing at these layers, and of rounding, as the two probes return them.

    work: for each effect its jobs: a pack, the places that are erased in it, and for each of its suffixes, which begin
    at t, the places where the effect of t is measured. end: how many of the ids are run; last: the last l to erase at.
    """
    n_layers = arch["n_layers"]
    # row L, of what leaves the last block, goes with that block
    rows = range(layers[0], layers[-1] + 1 if layers[-1] + 1 < n_layers else n_layers + 1)
    erased_at = range(rows.start, min(rows.stop, last + 1))
    n_jobs = sum(len(jobs) for jobs in work.values())
    total = n_layers * len(baseline_prompts) + n_jobs * sum(n_layers - l for l in erased_at)

    def count(n_blocks):
        if tick:
            tick(n_blocks, total)

    u = 0  # the uninformative residual [L + 1, d]
    for prompt in baseline_prompts:
        u = u + torch.stack([h.float().sum(0).cpu() for h in residuals(llm, arch, prompt)])
        count(n_layers)
    u = u / sum(len(prompt) for prompt in baseline_prompts)
    h = residuals(llm, arch, ids[:end])
    result = {}
    for key, jobs in work.items():
        effects = torch.zeros(2, n_layers + 1, len(ids), dtype=torch.float32)
        for pack, erased, measured in jobs:

            def erase(k, row, before, erased=erased):
                row[:, erased] = u[erased_at[k]].to(row)

            read = [place for places in measured for place in places]
            changes = growing_batch(llm, arch, ids, pack, h, erased_at, erase, read, budget)[:, 0]
            count(sum(n_layers - l for l in erased_at))
            of_suffixes = changes.split([len(places) for places in measured], dim=-1)
            for suffix, change in zip(pack[1], of_suffixes, strict=True):
                effects[:, erased_at.start : erased_at.stop, pack[0][suffix.start]] = change.amax(-1)
        effect, rounding = effects[:, rows.start : rows.stop]
        result[key] = effect
        if compares_in_batch(llm, h[0]):
            result[f"{key}_resolution"] = 2 * rounding.amax(-1, keepdim=True).expand_as(rounding)
    return result
