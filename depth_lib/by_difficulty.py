"""Does a harder question use more depth? The effects of skipping a block, by level of difficulty."""

import random
import reprlib
from collections.abc import Sequence
from numbers import Integral

import torch
from nnsight import TransformersModel

from .api import tokens_a_pass
from .data.examples import Example
from .data.tokens import answer_span
from .models.families import describe
from .probes.layer_effects import layer_effects
from .session import run


def depth_by_difficulty(
    llm: TransformersModel, examples: Sequence[Example], remote: bool | str = False, budget: int | None = None
) -> dict[str, torch.Tensor]:
    """What skipping block s before the answer does to later blocks and to the output, for questions of each level.

    D[s, l] = max over tokens i ≥ t of ‖c_l − c̄_l‖ / ‖c_l‖ when block s passes tokens 1..t−1 on unchanged, and
    o[s] = max ‖y − ȳ‖₂ over the same tokens. t is the token that predicts the answer's first one or, for an example
    that is measured `within` its answer of A tokens, the answer's start plus each of the first 4 of
    range(0, A − 4, 4), shuffled by one Random(123) for all examples (its start where there is none): maxima over t.

    examples: from `load_examples`, or a list of Example(level, question, answer); budget: tokens in one forward pass
    (default: what fits into free memory). Returns float32, for E examples, `layer_effect` [E, L, L] (skipped,
    affected), `output_effect` [E, L] and `level` [E]; for the K different `levels` [K] the mean and the maximum over
    their examples, `mean_layer_effect`, `max_layer_effect` [K, L, L], `mean_output_effect`, `max_output_effect` [K, L].
    Raises ValueError if there are no examples, or if one is none, has no answer, or no token between the first and t.
    `effective_depth.difficulty.depth_scores` makes one number a level of it. Source: Csordás et al. 2025, section 4.
    """
    examples = [_checked(number, example) for number, example in enumerate(examples or ())]
    if not examples:
        raise ValueError("there are no examples to measure; load some with dl.load_examples(...).")
    work, draw = [], random.Random(123)
    for number, example in enumerate(examples):
        ids, answer, _ = answer_span(llm, example.question, example.answer)
        starts = _measured_from(answer, draw) if example.within else [answer[0] - 1]
        if min(starts) < 2:
            raise ValueError(f"example {number} ({example.question!r}) has no token to skip; give a longer question.")
        work.append((ids, starts))
    how = {"remote": remote, "over": "work", "label": "depth by difficulty"}
    budget = tokens_a_pass(llm, budget, remote)
    found = run(layer_effects, llm, describe(llm), work, "future", "layer", budget, **how)
    level = torch.tensor([example.level for example in examples], dtype=torch.float32)
    result = {"level": level, "levels": level.unique()}
    for name, effect in (("layer_effect", found["effects"]), ("output_effect", found["outputs"].squeeze(-1))):
        groups = [effect[level == one] for one in result["levels"]]
        result[name] = effect
        result[f"mean_{name}"] = torch.stack([group.mean(0) for group in groups])
        result[f"max_{name}"] = torch.stack([group.amax(0) for group in groups])
    return result


def _checked(number: int, example: Sequence) -> Example:
    """The example, if it is a whole level, a question and an answer."""
    one = Example(*example) if isinstance(example, list | tuple) and len(example) in (3, 4) else None
    if one and isinstance(one.level, Integral) and isinstance(one.question, str) and isinstance(one.answer, str):
        return one
    raise ValueError(
        f"example {number} is {reprlib.repr(example)}; give (level, question, answer), the level a whole number, or "
        "load some with dl.load_examples(...)."
    )


def _measured_from(answer: list[int], draw: random.Random) -> list[int]:
    """Places within an answer from which on it is measured: four at most, one at least."""
    offsets = list(range(0, len(answer) - 4, 4))
    draw.shuffle(offsets)
    return [answer[0] + offset for offset in offsets[:4] or [0]]
