"""Probe 4: until which block a token's residual is needed (Csordás et al. 2025, section 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        erasure_effect[l, t] = max over the answer's tokens of ‖y − ȳ‖₂, where they are predicted

Here all l are rows of one batch, each of which joins it where its run begins to differ (see `growing_batch`), and many
t share one sequence: what comes before t is not changed by erasing t (see `pack`).
"""

import torch

from .distributions import output_change
from .growing_batch import growing_batch
from .packing import packs
from .residual_stream import compares_in_batch, residuals, token_budget


def mean_residual(llm, arch, prompts, count=None):
    """The uninformative residual u [L + 1, d], float32: the mean of h_l over all tokens of all prompts (token ids).
    count(cost): told the tokens × blocks done after each prompt."""
    total, n_tokens = 0, 0
    for ids in prompts:
        total = total + torch.stack([h.float().sum(0).cpu() for h in residuals(llm, arch, ids)])
        n_tokens += len(ids)
        if count:
            count(len(ids) * arch["n_layers"])
    return total / n_tokens


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
    jobs = []
    for pack in packs(range(answer[-1]), end, arch):
        order, suffixes, _ = pack
        for_each_t = [[place for place in suffix if order[place] + 1 in answer] for suffix in suffixes]
        jobs.append((pack, [suffix.start for suffix in suffixes], for_each_t))
    rows = range(layers[0], _stop(arch, layers))
    found = _erase(llm, arch, ids, end, [(jobs, rows)], baseline_prompts, budget, tick)
    return _named(llm, found, ["erasure_effect"], rows)


def future_erasure(llm, arch, ids, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t], or h_l at all of tokens 1..t−1, by the uninformative residual u_l and measure all later outputs.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (the last has no later one: 0);
    past_erasure[l, t] = max over i ≥ t with tokens 1..t−1 erased (0 for t < 2, where there is none).

    ids: the T token ids; layers, baseline_prompts, budget, tick: as for `residual_erasure`. Returns both,
    [len(layers), T], or [L + 1, T] of all (nothing later reads h_L: 0), and the resolution of both.
    """
    single, several = [], []
    for pack in packs(range(len(ids) - 1), len(ids), arch):
        suffixes = pack[1]
        single.append((pack, [suffix.start for suffix in suffixes], [list(suffix[1:]) for suffix in suffixes]))
    for pack in packs(range(2, len(ids)), len(ids), arch):
        suffixes = pack[1]
        single_prefix = list(range(1, suffixes[0].start))  # the suffix of t sees tokens up to t − 1 of it
        several.append((pack, single_prefix, [list(suffix) for suffix in suffixes]))
    blocks = range(layers[0], layers[-1] + 1)
    work = [(single, blocks), (several, blocks)]
    found = _erase(llm, arch, ids, len(ids), work, baseline_prompts, budget, tick)
    return _named(llm, found, ["future_erasure", "past_erasure"], range(layers[0], _stop(arch, layers)))


def _stop(arch, layers):
    """One after the last row of these layers: h_L goes with the last block."""
    return layers[-1] + 1 if layers[-1] + 1 < arch["n_layers"] else arch["n_layers"] + 1


def _named(llm, found, keys, rows):
    result = {}
    for key, (effect, resolution) in zip(keys, found, strict=True):
        result[key] = effect[rows.start : rows.stop]
        if compares_in_batch(llm):
            result[f"{key}_resolution"] = 2 * resolution[rows.start : rows.stop]
    return result


def _erase(llm, arch, ids, end, work, baseline_prompts, budget, tick):
    """For each of `work` the effects of erasing, and those of rounding: tensors [2, L + 1, T].

    work: tuples of jobs and the l to erase at. A job is a pack, the places that are erased in it, and for each of its
    suffixes, which begin at t, the places where the effect of t is measured. end: how many of the ids are run.
    """
    total = sum(map(len, baseline_prompts)) * arch["n_layers"]
    total += sum(len(pack[0]) * (arch["n_layers"] - l) for jobs, layers in work for pack, *_ in jobs for l in layers)

    def count(cost):
        if tick:
            tick(cost, total)

    u = mean_residual(llm, arch, baseline_prompts, count)
    h = residuals(llm, arch, ids[:end])
    n_own = 2 if compares_in_batch(llm) else 0
    results = []
    for jobs, layers in work:
        effects, waiting = torch.zeros(2, arch["n_layers"] + 1, len(ids), dtype=torch.float32), []
        for pack, erased, measured in jobs:
            order, suffixes, _ = pack

            def erase(l, row, before, erased=erased):
                row[:, erased] = u[l].to(row)

            def watch(l, joined, order=order):
                count(len(order) * len(joined))

            read, erased_at = [], []
            for suffix, places in zip(suffixes, measured, strict=True):
                read += places
                erased_at += [order[suffix.start]] * len(places)
            tokens = token_budget(llm, budget)
            passes = growing_batch(llm, arch, ids[:end], pack, h, layers, erase, read, tokens, n_own, watch)
            waiting += [(erased_at, *one) for one in passes]
            if sum(varied[..., 0].numel() for _, _, varied, *_ in waiting) > 2**14:  # one pack may have few
                _measure(llm, arch, waiting, effects)
                waiting = []
        _measure(llm, arch, waiting, effects)
        results.append(effects)
    return results


def _measure(llm, arch, passes, effects):
    """Raise effects [2, L + 1, T] to the changes of the output that the final residuals of these passes lead to."""
    changes = output_change(llm, arch, [final for _, _, *final in passes])
    for (erased_at, joined, *_), (change,) in zip(passes, changes, strict=True):
        rows = slice(joined.start, joined.stop)
        for t, of_t in zip(erased_at, change.unbind(1), strict=True):
            effects[0, rows, t] = torch.maximum(effects[0, rows, t], of_t[-len(joined) :])
            if len(of_t) > len(joined):  # the first is the nudged row
                effects[1, rows] = torch.maximum(effects[1, rows], of_t[0])
