"""Every public probe, in all modes and of all parts: `EVERY[name](llm, **where)`."""

import depth_lib as dl
from depth_lib.data.examples import Example
from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe
from depth_lib.probes.integrated_gradients import measure_integrated_gradients
from depth_lib.session import run

TEXTS = ["The quick brown fox jumps over 13 lazy dogs, and back again", "abcdefghijkl mnop", "8 apples and 5, thirteen"]
SUM = ("5 + 7 + 1 = ", "13")
ANY = {"quadrature": 1.0, "method": "gradients"}  # an estimated error that any first panel has
STEPS = {"quadrature": 1.0, "method": "increments", "steps": 2}
EXAMPLES = [Example(1, "5 + 7 = ", "12"), Example(2, "8 apples and 5, thir", "teen")]


def gradients_of_blocks(llm, question, answer, blocks, tolerance=0.01, steps=None, method="gradients"):
    """The result of `integrated_gradients` for a few blocks, since all of a real model take minutes."""
    ids, places, _ = answer_span(llm, question, answer)
    work = (describe(llm), ids, list(places), list(blocks), "block", steps, tolerance, None)
    return run(measure_integrated_gradients, llm, *work, method=method)


def _call(probe, *args, **settings):
    return lambda llm, **where: probe(llm, *args, **settings, **where)


EVERY = {
    "relative_contribution": _call(dl.relative_contribution, TEXTS),
    "logit_lens": _call(dl.logit_lens, TEXTS),
    "logit_lens, two keys": _call(dl.logit_lens, TEXTS, all_measures=False),
    "logit_lens, generated": _call(dl.logit_lens, TEXTS, generate=3),
    "logit_lens, answers": _call(dl.logit_lens, TEXTS, answers=["12", " and so on", "!"]),
    "relative_contribution, last": _call(dl.relative_contribution, TEXTS, at="last"),
    "direct_effects": _call(dl.direct_effects, *SUM),
    "block_accuracy": _call(dl.block_accuracy, [("5 + 7 = ", ["12", "13"], 0)]),
    "residual_erasure": _call(dl.residual_erasure, *SUM, TEXTS),
    "answer_lens": _call(dl.answer_lens, *SUM),
    "future_erasure": _call(dl.future_erasure, *SUM, TEXTS),
    "local_effects, future": _call(dl.local_effects, TEXTS, mode="future"),
    "local_effects, all": _call(dl.local_effects, TEXTS, mode="all"),
    "gradients": _call(dl.integrated_gradients, *SUM, **ANY),
    "gradients, attention": _call(dl.integrated_gradients, *SUM, **ANY, at="attention"),
    "gradients, mlp": _call(dl.integrated_gradients, *SUM, **ANY, at="mlp"),
    "gradients, riemann": _call(dl.integrated_gradients, *SUM, quadrature="riemann", method="gradients"),
    "increments": _call(dl.integrated_gradients, *SUM, **STEPS),
    "increments, attention": _call(dl.integrated_gradients, *SUM, **STEPS, at="attention"),
    "increments, mlp": _call(dl.integrated_gradients, *SUM, **STEPS, at="mlp"),
    "depth_by_difficulty": _call(dl.depth_by_difficulty, EXAMPLES),
    "block_removal": _call(dl.block_removal, TEXTS, sizes="all"),
    "block_removal, mlp": _call(dl.block_removal, TEXTS, part="mlp"),
    "block_orders": _call(
        dl.block_orders, TEXTS, [[0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 1, 2, 3], [3, 2, 1, 0], [0, 2]]
    ),
    "choice_accuracy, order": _call(dl.choice_accuracy, [("5 + 7 = ", ["12", "13"], 0)], order=[1, 0, 2, 2, 3]),
    "choice_accuracy": _call(dl.choice_accuracy, [("5 + 7 = ", ["12", "13"], 0)]),
}
EVERY |= {
    f"layer_effects, {mode}, {part}": _call(dl.layer_effects, TEXTS, mode=mode, part=part)
    for mode in ("future", "all", "remove")
    for part in ("layer", "attention", "mlp")
}
FIVE = ("relative_contribution", "logit_lens", "layer_effects, future, layer", "residual_erasure", "gradients")
FIRST = {call.partition(",")[0]: call for call in reversed(EVERY)}  # of each probe
# each probe, mode and part at least once
PAIRWISE = (
    *FIRST.values(),
    "logit_lens, generated",
    "increments, attention",
    "local_effects, all",
    "gradients, mlp",
    "layer_effects, all, attention",
    "layer_effects, remove, mlp",
)
