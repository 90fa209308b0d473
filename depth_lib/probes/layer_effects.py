"""Probe 2: what skipping a block, or its attention or MLP, does to later computation (Csordás et al. 2025, 3.3).

The obvious loop, with c_l = h_{l+1} − h_l and y the output of the clean run (tests/oracles/effects.py):

    for each block s and position t:
        h̄_{s+1} = h_{s+1}, but at tokens 1..t−1 what leaves block s without the part: h_s, if it is the whole block
        for l in s + 1..L − 1:  h̄_{l+1} = block l of h̄_l
        for l in s..L − 1, with c̄_l = h̄_{l+1} − h̄_l and h̄_s = h_s:
            effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)
        output[s] = max over tokens i ≥ t of ‖y[i] − ȳ[i]‖₂

In mode "future" effect[s, s] = 0. In the other modes every token is measured, and it is 1 for a whole block.
"""

import torch
from nnsight import TransformersModel

from ..data.tokens import skips_of
from ..models.check import arch_to_change
from ..residual.residual_stream import inputs
from ..residual.rounding import rounding_floor
from ..residual.stream import Row, Stream, output_changes, stacked, without_part
from ..results.means import over_prompts
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def layer_effects(
    llm: TransformersModel,
    prompts: list[str],
    mode: str = "future",
    remote: bool | str = False,
    budget: int | None = None,
    part: str = "layer",
) -> Result:
    """The effect of skipping block s, or only its attention or MLP, on every later block and on the output.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.layer_effects(llm, prompts)["max_future_out"].shape
    torch.Size([4, 1])

    Block s is skipped at tokens 1..t − 1. With c_l = h_{l+1} − h_l, effect[s, l] = max ‖c_l − c̄_l‖ / ‖c_l‖ and
    output[s] = max ‖y − ȳ‖₂, over tokens i ≥ t, positions t and prompts. y is the output distribution; a bar marks the
    pass with block s skipped.

    - llm: from `load_model`
    - prompts: list of strings
    - mode: "future" (up to 4 positions t per prompt, drawn with seed 123 from 8, 16, …), "all" (skips the block at
      every token i ≥ 1 and measures at every token), or "remove" (also at token 0)
    - part: "layer", "attention" or "mlp"
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass; by default chosen from the device's memory

    Returns a dict of float32 tensors:

    - max_<mode>_layer [L, L]: effects; row: skipped block, column: affected block
    - max_<mode>_out [L, 1]: effect on the output probabilities
    - <mode>_kl [L]: KL(y ‖ ȳ), nats, mean over tokens, then prompts
    - <key>_by_prompt [P, …]: each of these per prompt
    - max_<mode>_layer_rounding_floor, max_<mode>_out_rounding_floor [P]: effects below this may be rounding errors
      (only in half precision or with quantised weights)

    In mode "future", prompts under 13 tokens are left out, and in mode "all" those of one token, with a warning.

    Raises ValueError for an unknown mode or part, a prompt without tokens, or if no prompt is long enough.
    Source: Csordás et al. 2025, Figures 3 and 17.
    Cost: one forward pass per prompt, and about L / 2 more for each position; for attention or MLP also one
    pass per prompt with a batch of two. Memory: the residual streams of one prompt.
    """
    arch = arch_to_change(llm, part)
    # of prompts that are long enough, and their numbers for messages
    cases, prompt_numbers = skips_of(llm, prompts, mode, ("future", "all", "remove"))
    how = {"remote": remote, "over": "prompts", "label": f"{part} effects, {mode}", "numbers": prompt_numbers}
    how["gives"] = f"P L L: max_{mode}_layer; P L 1: max_{mode}_out; P L: {mode}_kl"
    effects = run(measure_layer_effects, llm, arch, cases, mode, part, budget, **how)
    # over prompts: maxima of max_<key>, means of <mode>_kl
    return Result("layer_effects" if part == "layer" else f"{part}_effects", over_prompts(effects), llm)


def measure_layer_effects(llm, arch, prompts, mode, part, budget):
    """Skip block s for some tokens, and measure the change of every later contribution and of the output.

    - prompts: for each prompt its token ids and positions t; for "all" and "remove" t = T
    - mode: "future", "all" (skips every token i ≥ 1 and measures all) or "remove" (skips token 0 too)
    - part: "layer", "attention" or "mlp"
    - budget: tokens per call of a block, or None

    Returns maxima over the positions of each prompt:

    - max_<mode>_layer [P, L, L]: skipped, affected
    - max_<mode>_out [P, L, 1]: of the output
    - <mode>_kl [P, L]: mean of KL(y ‖ ȳ) over the measured tokens
    - max_<mode>_layer_rounding_floor, max_<mode>_out_rounding_floor [P]: if rounding shows
    """
    results = []
    for ids, positions in prompts:
        after, without = (None, None) if part == "layer" else without_part(llm, arch, ids, part)
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                stream = Stream(llm, arch, ids, budget, after)
                effects, distance, kl = _of_prompt(stream, positions, mode, without)
                # the largest changes when h_0 moves by one rounding unit
                floors = rounding_floor(stream, updates=True)
        result = {f"max_{mode}_layer": effects, f"max_{mode}_out": distance[:, None], f"{mode}_kl": kl}
        for name, floor in floors.items():
            result[f"max_{mode}_{'layer' if name == 'updates' else 'out'}_rounding_floor"] = floor
        results.append(result)
    return stacked(results)


def _of_prompt(stream, positions, mode, without):
    """The effects [L, L] of every block s, and the largest distance and the mean KL divergence of the output [L].

    without: what leaves each block if the part adds nothing, [T, d] each; None: what enters it, the whole is skipped.
    """
    n_layers, n_tokens, first = stream.arch.n_layers, len(stream.ids), 0 if mode == "remove" else 1

    def skip(s, t):
        def edit(h, before):
            h[first:t] = (without[s] if without else before)[first:t].to(h)

        return Row(s + 1, range(s + 1, n_layers), range(t if mode == "future" else 0, n_tokens), edit)

    n_skipped = n_layers - 1 if mode == "future" else n_layers  # nothing later reads what leaves the last block
    cases = [(s, t) for t in positions if t > first for s in range(n_skipped)]
    rows = [skip(s, t) for s, t in cases]
    changes = output_changes(stream, rows, damage=True, updates=True)
    effects = torch.zeros(n_layers, n_layers, dtype=torch.float32, device=stream.h[-1].device)
    distance, kl = torch.zeros(2, n_layers, dtype=torch.float32)
    for (s, _), row, change in zip(cases, rows, changes, strict=True):
        effects[s] = effects[s].maximum(row.moved)
        distance[s] = distance[s].maximum(change[0].max())
        kl[s] += change[1].sum() / sum(n_tokens - t if mode == "future" else n_tokens for t in positions)
    return effects.cpu(), distance, kl
