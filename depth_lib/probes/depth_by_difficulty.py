"""Does a harder question use more depth? Layer effects, measured where the answer is predicted.

The obvious loop, with c_l = h_{l+1} − h_l and y the output of the clean run:

    for each example, block s and position t:
        run the model, but skip block s at tokens 1..t−1
        layer_effect[s, l] = max over tokens i ≥ t of ‖c_l[i] − c̄_l[i]‖ / ‖c_l[i]‖
        output_effect[s] = max over tokens i ≥ t of ‖y[i] − ȳ[i]‖₂

Source: Csordás et al. 2025, section 4.
"""

import random
import reprlib
from collections.abc import Iterable, Sequence
from numbers import Integral

import torch
from nnsight import TransformersModel

from ..data.examples import Example
from ..data.tokens import answer_span, draw_four
from ..models.check import arch_to_change
from ..results.origin import with_origin
from ..results.result import Result
from ..session import run
from .layer_effects import measure_layer_effects


@with_origin
def depth_by_difficulty(
    llm: TransformersModel, examples: Sequence[Example], remote: bool | str = False, budget: int | None = None
) -> Result:
    """How skipping block s before the answer affects later blocks and the output, by difficulty level.

    >>> llm = dl.load_model("toy-4l")
    >>> result = dl.depth_by_difficulty(llm, dl.load_examples("sums", 2))
    >>> result["levels"].tolist(), result["mean_layer_effect"].shape
    ([2.0, 3.0, 4.0, 5.0, 6.0], torch.Size([5, 4, 4]))

    Effects are defined as in `layer_effects`, except that t is the position that predicts the answer's first token. For
    an example with within=True (a worked solution), t is each of up to 4 positions inside the answer, drawn with seed
    123. Effects are maxima over t.

    - llm: from `load_model`
    - examples: from `load_examples`, or a list of Example(level, question, answer, within=False)
    - remote: True for NDIF, or the address of a server
    - budget: tokens per forward pass

    Returns a dict of float32 tensors, for E examples of K levels:

    - layer_effect [E, L, L], output_effect [E, L], level [E]: per example
    - levels [K]: the levels
    - mean_layer_effect, max_layer_effect [K, L, L]: over the examples of a level
    - mean_output_effect, max_output_effect [K, L]: the same for the output
    - layer_effect_rounding_floor, output_effect_rounding_floor [E]: effects below this may be rounding errors (only in
      half precision or with quantised weights)

    Raises ValueError if there are no examples, or for an example without an answer or without a token between its first
    token and t.
    Source: Csordás et al. 2025, Figure 7.
    Cost: as for `layer_effects` with one position per example, or up to four with within=True.
    """
    if isinstance(examples, str) or not isinstance(examples, Iterable):
        raise ValueError(f"examples must be a list, such as dl.load_examples(...), got {type(examples).__name__}")
    examples = [_checked(number, example) for number, example in enumerate(examples)]
    if not examples:
        raise ValueError("there are no examples; load some with dl.load_examples(...)")
    arch, cases, draw = arch_to_change(llm), [], random.Random(123)
    for number, example in enumerate(examples):
        ids, answer, _ = answer_span(llm, example.question, example.answer)
        positions = [answer[0] - 1]
        if example.within:  # up to four of every 4th place of the answer, as published; at least its first
            positions = [answer[0] + offset for offset in draw_four(range(0, len(answer) - 4, 4), draw) or [0]]
        if min(positions) < 2:  # t = 1 skips nothing: token 0 stays
            raise ValueError(f"example {number} ({example.question!r}) has no token to skip; use a longer question")
        cases.append((ids, positions))
    effects = run(
        measure_layer_effects,
        llm,
        arch,
        prompts=cases,
        mode="future",
        part="layer",
        budget=budget,
        remote=remote,
        over="prompts",
        label="depth by difficulty",
    )
    effects["max_future_out"] = effects["max_future_out"][..., 0]  # [E, L, 1]
    level = torch.tensor([example.level for example in examples], dtype=torch.float32)
    result = {"level": level, "levels": level.unique()}
    for name, key in (("layer_effect", "max_future_layer"), ("output_effect", "max_future_out")):
        by_level = [effects[key][level == one] for one in result["levels"]]
        result[name] = effects[key]
        result[f"mean_{name}"] = torch.stack([group.mean(0) for group in by_level])
        result[f"max_{name}"] = torch.stack([group.amax(0) for group in by_level])
        if f"{key}_rounding_floor" in effects:
            result[f"{name}_rounding_floor"] = effects[f"{key}_rounding_floor"]
    return Result("depth_by_difficulty", result, llm)


def _checked(number: int, example: Sequence) -> Example:
    """The example, if it is a whole level, a question and an answer."""
    match example:
        case (Integral(), str(), str()) | (Integral(), str(), str(), _):
            return Example(*example)
    raise ValueError(
        f"example {number} is {reprlib.repr(example)}; use (level, question, answer), where level is an integer, "
        "or load some with dl.load_examples(...)"
    )
