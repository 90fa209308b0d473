"""The effect on any later prediction of erasing a token's residual, or those of all tokens before (Csordás et al. 3.4).

The obvious loop, with u_l the mean of h_l over all tokens of other prompts (tests/oracles/answers.py):

    for each l and token t:
        run the model, but with h_l[t] = u_l
        future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂
        run the model, but with h_l = u_l at tokens 1..t−1; token 0 stays
        past_erasure[l, t] = max over i ≥ t of ‖y[i] − ȳ[i]‖₂

The trace is `erase` in residual_erasure.py: each case here is one of its rows at every l.
"""

from nnsight import TransformersModel

from ..data.tokens import answer_span
from ..models.check import arch_to_change
from ..results.origin import with_origin
from ..results.result import Result
from .residual_erasure import erase, run_erasure


@with_origin
def future_erasure(
    llm: TransformersModel,
    question: str,
    answer: str,
    baseline_prompts: list[str],
    remote: bool | str = False,
    budget: int | None = None,
) -> Result:
    """The largest change in any later prediction when a token's residual stream is replaced by the mean.

    >>> llm, prompts = dl.load_model("toy-4l"), dl.load_prompts("gsm8k", 3, source="embedded")
    >>> dl.future_erasure(llm, "5 + 7 = ", "12", prompts)["past_erasure"].shape
    torch.Size([5, 10])

    future_erasure[l, t] = max ‖y[i] − ȳ[i]‖₂ over i > t, when h_l[t] is replaced by u_l as in `residual_erasure`. y and
    ȳ are the output distributions without and with the erasure. past_erasure[l, t] replaces tokens 1..t − 1 together
    (all before t except the first), and takes the maximum over i ≥ t.

    - llm: from `load_model`
    - question, answer: strings, tokenised together
    - baseline_prompts: list of strings
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns:

    - future_erasure, past_erasure [L + 1, T]: effects; 0 where nothing is erased or nothing follows
    - <key>_rounding_floor [L + 1]: as for `residual_erasure`
    - tokens: T strings

    Raises ValueError in the same cases as `residual_erasure`.
    Source: Csordás et al. 2025, section 3.4.
    Cost: as for `residual_erasure`, with twice as many passes over the erased sequences.
    """
    arch, (ids, _, tokens) = arch_to_change(llm), answer_span(llm, question, answer)
    gives = "R T: future_erasure past_erasure"
    result = run_erasure(measure_future_erasure, llm, arch, ids, baseline_prompts, remote, budget, gives)
    return Result("future_erasure", result | {"tokens": tokens}, llm)


def measure_future_erasure(llm, arch, ids, layers, baseline_prompts, budget, tick=None):
    """The change of all later predictions if tokens are replaced by the uninformative residual u_l.

    future_erasure[l, t] = max over i > t of ‖y[i] − ȳ[i]‖₂ with token t erased (0 for the last). past_erasure[l, t]
    = max over i ≥ t with tokens 1..t − 1 erased (0 for t < 2).

    ids: the T token ids. layers, baseline_prompts, budget, tick: as for `residual_erasure`. Returns both,
    [len(layers), T], or [L + 1, T] for all layers (0 for h_L), and their rounding floors.
    """
    n = len(ids)
    erased = {  # cases: the erased tokens, the column t, and the positions that are compared
        "future_erasure": [(slice(t, t + 1), t, range(t + 1, n)) for t in range(n - 1)],
        "past_erasure": [(slice(1, t), t, range(t, n)) for t in range(2, n)],
    }
    return erase(llm, arch, ids, erased, layers, baseline_prompts, budget, tick)
