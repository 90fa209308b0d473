"""Probe 4: until which block a token's residual is needed (Csordás et al. 2025, section 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        erasure_effect[l, t] = max over the answer's tokens of ‖y − ȳ‖₂, where they are predicted

Here all l are rows of one batch, each of which joins it where its run begins to differ (see `growing_batch`), and many
t share one sequence: what comes before t is not changed by erasing t (see `Pack`).
"""

import torch

from .clean_run import CleanRun
from .growing_batch import growing_batch, rounding_floor
from .packing import Places
from .residual_stream import clean_run


def residual_erasure(llm, arch, ids, answer, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t] by the uninformative residual u_l, for every l and t, and measure the change of the answer.

    ids: the T token ids of question and answer; answer: the places of the answer's tokens among them; layers:
    consecutive blocks l, at whose input h_l is erased; with the last block also h_L; baseline_prompts: token ids of the
    prompts that u is the mean of; budget: tokens in one forward pass, or None; tick(share): told what is done.

    Returns `erasure_effect` [len(layers), T], or [L + 1, T] of all; 0 for tokens after the last predicting position.
    Where rounding shows also `erasure_effect_rounding_floor` [len(layers)], the same number for each l.
    """
    end = answer[-1] if arch["cuts"] else len(ids)  # the last token that predicts is answer[-1] − 1
    clean, jobs, predicted = CleanRun(llm, arch, ids[:end], budget), [], set(answer)
    for pack in clean.packs(range(answer[-1])):
        tokens = pack.tokens
        predicting = [[place for place in suffix if tokens[place] + 1 in predicted] for suffix in pack.suffixes]
        jobs.append((pack, [suffix.start for suffix in pack.suffixes], predicting))
    return _erase(clean, len(ids), {"erasure_effect": jobs}, layers, arch["n_layers"], baseline_prompts, tick)


def future_erasure(llm, arch, ids, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t], or h_l at all of tokens 1..t−1, by the uninformative residual u_l and measure all later outputs.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (the last has no later one: 0);
    past_erasure[l, t] = max over i ≥ t with tokens 1..t−1 erased (0 for t < 2, where there is none).

    ids: the T token ids; layers, baseline_prompts, budget, tick: as for `residual_erasure`. Returns both,
    [len(layers), T], or [L + 1, T] of all (nothing later reads h_L: 0), and their rounding floors.
    """
    clean, single, several = CleanRun(llm, arch, ids, budget), [], []
    for pack in clean.packs(range(len(ids) - 1)):
        later = [suffix[1:] for suffix in pack.suffixes]
        single.append((pack, [suffix.start for suffix in pack.suffixes], later))
    for pack in clean.packs(range(2, len(ids))):
        # the suffix of t sees tokens up to t − 1 of the prefix
        several.append((pack, range(1, pack.prefix), pack.suffixes))
    work = {"future_erasure": single, "past_erasure": several}
    return _erase(clean, len(ids), work, layers, arch["n_layers"] - 1, baseline_prompts, tick)


def _erase(clean, n_tokens, work, layers, last, baseline_prompts, tick):
    """The effects of erasing at these layers, as the two probes return them.

    n_tokens: T. work: for each effect its packs, each with the places that are erased in it and, for each of its
    suffixes, which begin at t, the places where the effect of t is measured. last: the last l to erase at.
    """
    llm, arch = clean.llm, clean.arch
    # row L, of what leaves the last block, goes with that block
    rows = range(layers[0], layers[-1] + 1 if layers[-1] + 1 < arch["n_layers"] else arch["n_layers"] + 1)
    erased_at = range(rows.start, min(rows.stop, last + 1))
    u_0, *u = _mean_residuals(llm, arch, baseline_prompts, [0, *erased_at], clean.h)
    jobs = [(name, *job) for name, of_effect in work.items() for job in of_effect]
    effects = {name: torch.zeros(len(rows), n_tokens, dtype=torch.float32) for name in work}
    for name, pack, erased, measured in jobs:
        erased = Places(erased)

        def erase(k, row, before, erased=erased):
            row[:, erased.on(row.device)] = u[k].to(row)

        read = [place for places in measured for place in places]
        changes, _ = growing_batch(clean, pack, erased_at, erase, read)
        of_suffixes = changes[0].split([len(places) for places in measured], dim=-1)
        for t, change in zip(pack.starts, of_suffixes, strict=True):
            effects[name][: len(erased_at), t] = change.amax(-1)
        if tick:
            tick(1 / len(jobs))

    def erase_one(k, row):  # of eight tokens, all over the prompt, for what rounding does once something is erased
        row[:, k * row.shape[1] // 8] = u_0.to(row)

    for floor in rounding_floor(clean, change=erase_one).values():
        effects |= {f"{name}_rounding_floor": floor.expand(len(rows)) for name in work}
    return effects


def _mean_residuals(llm, arch, prompts, layers, like):
    """u_l [d] of these l, the mean of h_l over all tokens of the prompts, float32, where h_l is."""
    sums = [0] * len(layers)
    for ids in prompts:
        h, _ = clean_run(llm, arch, ids)
        sums = [total + h[l].float().sum(0) for total, l in zip(sums, layers, strict=True)]
    n_tokens = sum(map(len, prompts))
    return [(total / n_tokens).to(like[l].device) for total, l in zip(sums, layers, strict=True)]
