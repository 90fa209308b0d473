"""What is measured: each probe on given prompts, by the package, by hand, as the papers' scripts do, and as a floor."""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

import depth_lib as dl
from benchmarks import by_hand, floor, literal
from benchmarks.shapes import REAL, give_answer
from depth_lib.data.prompts import ANSWER, QUESTION
from tests.oracles import answer_span, effect_positions

SIZES = {"few": (200, 20), "tiny": (40, 9)}  # tokens of each of two prompts, and of the question with its answer


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    `ours()` is the probe's result; `by_hand(layers)` and `literal(layers)` are some of its tensors under the same keys,
    of some layers or all (None); only where `n_layers` is set they can be had for some. `floor(result)` is the `Work`
    that cannot be avoided.
    """

    ours: Callable
    by_hand: Callable
    literal: Callable
    floor: Callable
    n_layers: int | None = None


def workloads(llm, size):
    """name -> Workload of the five probes for a model, on random prompts of SIZES, or on real ones for a real model."""
    if size == REAL:
        texts, (question, answer) = [real_prompt(llm, n) for n in (120, 300)], (QUESTION, ANSWER)
    else:
        n_tokens, n_question = SIZES[size]
        texts = [random_prompt(n_tokens, seed) for seed in (0, 1)]
        question, answer = random_prompt(n_question - 2, 1000), random_prompt(2, 1001)
    ids, span = answer_span(llm.tokenizer, question, answer)
    if size != REAL:
        give_answer(llm, ids, range(*span))
    model, prompts = llm._module, [llm.tokenizer(text)["input_ids"] for text in texts]
    config, lengths = llm.config, [len(prompt) for prompt in prompts]
    positions = effect_positions(lengths)
    return {
        "relative contribution": Workload(
            ours=lambda: dl.relative_contribution(llm, texts),
            by_hand=lambda layers: by_hand.relative_contribution(model, prompts),
            literal=lambda layers: literal.relative_contribution(llm, texts),
            floor=lambda result: floor.relative_contribution(config, lengths),
        ),
        "logit lens": Workload(
            ours=lambda: dl.logit_lens(llm, texts, all_measures=False),
            by_hand=lambda layers: by_hand.logit_lens(model, prompts),
            literal=lambda layers: literal.logit_lens(llm, texts),
            floor=lambda result: floor.logit_lens(config, lengths),
        ),
        "layer effects, future": Workload(
            ours=lambda: dl.layer_effects(llm, texts, mode="future"),
            by_hand=lambda layers: by_hand.layer_effects(model, prompts, positions),
            literal=lambda layers: literal.layer_effects(llm, texts, positions),
            floor=lambda result: floor.layer_effects(config, lengths, positions),
        ),
        "residual erasure": Workload(
            ours=lambda: dl.residual_erasure(llm, question, answer, texts[:1]),
            by_hand=lambda layers: by_hand.residual_erasure(model, ids, span, prompts[:1], layers),
            literal=lambda layers: literal.residual_erasure(llm, question + answer, span, texts[:1], layers),
            floor=lambda result: floor.residual_erasure(config, range(*span), lengths[:1]),
            n_layers=config.num_hidden_layers + 1,
        ),
        "integrated gradients": Workload(
            ours=lambda: dl.integrated_gradients(llm, question, answer),
            by_hand=lambda layers: by_hand.integrated_gradients(model, ids, span, layers),
            literal=lambda layers: literal.integrated_gradients(llm, question + answer, span, layers),
            floor=lambda result: floor.integrated_gradients(
                config, len(ids), range(*span), result["n_nodes"].int().tolist()
            ),
            n_layers=config.num_hidden_layers,
        ),
    }


def random_prompt(n_tokens, seed):
    """A random string of exactly n tokens for a tokenizer of characters without a <bos>."""
    draw = random.Random(seed)
    return "".join(draw.choice(string.ascii_letters + string.digits) for _ in range(n_tokens))


def real_prompt(llm, n_tokens):
    """GSM8K's first prompts, one after the other, up to their n-th token."""
    text = "\n\n".join(dl.load_prompts("gsm8k", source="sample"))
    end = llm.tokenizer(text, return_offsets_mapping=True)["offset_mapping"][n_tokens - 1][1]
    return text[:end]
