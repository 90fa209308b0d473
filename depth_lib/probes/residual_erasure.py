"""Probe 4: the effect of erasing a token's residual on the answer (Csordás et al. 2025, section 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        erasure_effect[l, t] = max over the answer's tokens after t of ‖y − ȳ‖₂, where they are predicted
"""

import torch
from nnsight import TransformersModel

from ..data.tokens import answer_span, tokenize
from ..models.check import arch_to_change
from ..residual.residual_stream import inputs
from ..residual.rounding import rounding_floor
from ..residual.stream import Row, Stream, output_changes, residuals
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run


@with_origin
def residual_erasure(
    llm: TransformersModel,
    question: str,
    answer: str,
    baseline_prompts: list[str],
    remote: bool | str = False,
    budget: int | None = None,
) -> Result:
    """How much the answer changes if one token's residual stream is replaced by the mean at a given layer.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> erasure = dl.residual_erasure(llm, "5 + 7 = ", "12", prompts)
    >>> erasure["erasure_effect"].shape, len(erasure["tokens"])
    (torch.Size([5, 10]), 10)

    h_l[t] is replaced by u_l, the mean of h_l over all tokens of the baseline prompts. erasure_effect[l, t] =
    max ‖y − ȳ‖₂ over the positions that predict the answer's tokens, where y and ȳ are the output distributions without
    and with the erasure.

    - llm: from `load_model`
    - question, answer: strings, tokenised together
    - baseline_prompts: list of strings
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns:

    - erasure_effect [L + 1, T]: effects; row 0: embeddings, row l: output of block l − 1
    - n_answer [1]: the number of tokens of the answer
    - tokens: T strings
    - erasure_effect_rounding_floor [L + 1]: effects below this may be rounding errors (only in half precision or with
      quantised weights)

    Raises ValueError if the answer adds no token to the question, or nothing precedes it.
    Source: Csordás et al. 2025, Figure 6.
    Cost: a forward pass per baseline prompt, and about T L / 2 passes over the question and answer. In half precision,
    every batch also contains one unmodified copy of the sequence, and the rounding floor takes up to 24 more passes.
    """
    arch, (ids, positions, tokens) = arch_to_change(llm), answer_span(llm, question, answer)
    gives = "R T: erasure_effect"
    result = run_erasure(
        measure_residual_erasure, llm, arch, ids, baseline_prompts, remote, budget, gives, answer=positions
    )
    n_answer = torch.tensor([len(ids) - positions[0]], dtype=torch.float32)
    return Result("residual_erasure", result | {"n_answer": n_answer, "tokens": tokens}, llm)


def run_erasure(probe, llm, arch, ids, baseline_prompts, remote, budget, gives, **positions):
    """The results of an erasure probe at every layer."""
    baseline = tokenize(llm, baseline_prompts)
    arguments = {"ids": ids, "layers": list(range(arch.n_layers)), "baseline_prompts": baseline, **positions}
    return run(probe, llm, arch, **arguments, budget=budget, remote=remote, over="layers", gives=gives)


def measure_residual_erasure(llm, arch, ids, answer, layers, baseline_prompts, budget, tick=None):
    """Replace h_l[t] by the uninformative residual u_l, for every l and t, and measure the change of the answer.

    - ids: the T token ids of question and answer
    - answer: the places of the answer's tokens
    - layers: consecutive blocks l, at whose input h_l is erased; the last block includes h_L
    - baseline_prompts: token ids of the prompts for u
    - budget: tokens per call of a block, or None
    - tick(share): called with the share of work done

    Returns erasure_effect [len(layers), T], or [L + 1, T] for all layers; 0 after the last predicting position. If
    rounding shows, also erasure_effect_rounding_floor [len(layers)], the same number for each l.
    """
    erased = [(slice(t, t + 1), t, tuple(i - 1 for i in answer if i > t)) for t in range(answer[-1])]
    return erase(llm, arch, ids, {"erasure_effect": erased}, layers, baseline_prompts, budget, tick)


def erase(llm, arch, ids, erased, layers, baseline_prompts, budget, tick):
    """Each effect [len(layers), T] of {name: [(erased tokens, column t, positions that are compared)]}."""
    at = [*layers, arch.n_layers] if layers[-1] == arch.n_layers - 1 else [*layers]  # h_L goes with the last block
    u = _means(llm, arch, baseline_prompts)
    effects = {name: torch.zeros(len(at), len(ids), dtype=torch.float32) for name in erased}

    def row(l, tokens, read):
        def edit(h, before):
            h[tokens] = u[l].to(h)

        return Row(l, range(l, arch.n_layers), read, edit)

    def erase_one(k, h):  # for `rounding_floor`: the k-th of eight tokens all over the prompt, in both runs of a pair
        h[k * len(h) // 8] = u[0].to(h)

    # all layers of one case together: rows that are compared at the same positions share a product with the unembedding
    cases = [
        (name, k, tokens, t, read)
        for name in erased
        for tokens, t, read in erased[name]
        for k in range(len(at))
        if at[k] < arch.n_layers or read[0] < tokens.stop  # h_L of a token is read at this token alone
    ]
    with torch.no_grad():
        with llm.trace(inputs(llm, arch, ids), use_cache=False):
            stream = Stream(llm, arch, ids, budget)
            changes = output_changes(stream, [row(at[k], tokens, read) for _, k, tokens, _, read in cases], tick=tick)
            # the largest change when h_0 moves by one rounding unit, also of pairs of erased runs, nudged differently
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
