"""The direct effect of one contribution on each later block: local effects (Csordás et al. 2025, 3.3).

The obvious loop, with h and c of the clean run (tests/oracles/effects.py):

    for each s < l and position t:
        run block l alone on h_l[i] − c_s[i] at tokens 1 ≤ i < t, and on h_l[i] elsewhere; it adds c̄_l
        local[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / max(‖c_l[i]‖, 1e-6)
"""

import torch
from nnsight import TransformersModel

from ..data.tokens import skips_of
from ..models.check import arch_to_change
from ..residual.residual_stream import inputs
from ..residual.rounding import rounding_floor
from ..residual.stream import Stream, contribution, relative_change, stacked
from ..results.means import over_prompts
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def local_effects(
    llm: TransformersModel,
    prompts: list[str],
    mode: str = "future",
    remote: bool | str = False,
    budget: int | None = None,
) -> Result:
    """The change in what block l adds if block s's contribution is removed from the input of block l alone.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.local_effects(llm, prompts)["max_future_local"].tril().any()
    tensor(False)

    Block l reads h_l − c_s at tokens 1..t − 1, where c_s = h_{s+1} − h_s, and everything else is unchanged: the direct
    part of `layer_effects`. local[s, l] = max ‖c_l − c̄_l‖ / ‖c_l‖ over tokens i ≥ t.

    - llm: from `load_model`
    - prompts: list of strings
    - mode: "future" or "all" (t = T, and every token is measured), as for `layer_effects`
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns a dict of float32 tensors:

    - max_<mode>_local [L, L]: effects; row: removed block, column: affected block, 0 for l ≤ s
    - max_<mode>_local_by_prompt [P, L, L]: per prompt
    - max_<mode>_local_rounding_floor [P]: effects below this may be rounding errors (only in half precision or with
      quantised weights)

    Raises ValueError in the same cases as `layer_effects`.
    Source: Csordás et al. 2025, Figure 5.
    Cost: one forward pass per prompt, and (L − 1) / 2 more for each position.
    """
    arch = arch_to_change(llm)
    # of prompts that are long enough, and their numbers for messages
    cases, prompt_numbers = skips_of(llm, prompts, mode, ("future", "all"))
    how = {"remote": remote, "over": "prompts", "label": f"local effects, {mode}", "numbers": prompt_numbers}
    effects = run(measure_local_effects, llm, arch, cases, mode, budget, gives=f"P L L: max_{mode}_local", **how)
    return Result("local_effects", over_prompts(effects), llm)


def measure_local_effects(llm, arch, prompts, mode, budget):
    """Take c_s out of the input of block l alone, as if it did not travel through the blocks between.

    prompts, budget: as for `layer_effects`; mode: "future" or "all". Returns `max_<mode>_local` [P, L, L], the maxima
    over each prompt's positions, 0 for l ≤ s, and where rounding shows `max_<mode>_local_rounding_floor` [P], from
    `rounding_floor`.
    """
    results = []
    for ids, positions in prompts:
        with torch.no_grad():
            with llm.trace(inputs(llm, arch, ids), use_cache=False):
                stream = Stream(llm, arch, ids, budget)
                effects = _local(stream, positions, mode == "all").cpu()
                floors = rounding_floor(stream, updates=True)  # the largest changes when h_0 moves by one rounding unit
        floor = {f"max_{mode}_local_rounding_floor": x for key, x in floors.items() if key == "updates"}
        results.append({f"max_{mode}_local": effects} | floor)
    return stacked(results)


def _local(stream, positions, everywhere):
    """The local effects [L, L] of every s, the largest at any position t, or at all tokens (everywhere)."""
    h, n_layers, n_clean = stream.h, stream.arch.n_layers, int(stream.compares_in_batch)
    c = [contribution(before, after) for before, after in zip(h, h[1:], strict=False)]
    effects = torch.zeros(n_layers, n_layers, dtype=torch.float32, device=h[-1].device)
    for l in range(1, n_layers):
        cases = [(s, t) for t in positions for s in range(l)]
        for start in range(0, len(cases), stream.n_rows):
            some = cases[start : start + stream.n_rows]
            x = h[l].repeat(n_clean + len(some), 1, 1)
            for row, (s, t) in zip(x[n_clean:], some, strict=True):
                row[1:t] = h[l][1:t] - c[s][1:t].to(row.device)
            changed = contribution(x, stream.block(l, x))
            changes = relative_change(changed[n_clean:], changed[0] if n_clean else c[l])
            for (s, t), change in zip(some, changes, strict=True):
                largest = change[0 if everywhere else t :].max()
                effects[s, l] = effects[s, l].maximum(largest.to(effects.device))
    return effects
