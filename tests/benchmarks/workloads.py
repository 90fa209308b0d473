"""What is measured: each probe on prompts of a given length, ours through the public functions and the literal one."""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import depth_lib as dl
from depth_lib.data.prompts import ANSWER, QUESTION
from tests.benchmarks import floor, literal
from tests.benchmarks.quadrature import fewest_nodes
from tests.benchmarks.shapes import give_answer
from tests.oracles import answer_span, effect_positions


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    `ours()` -> the probe's dict. `literal(parts)` -> the literal one's dict, on some of its `n_parts` (prompts, or rows
    of layers) or on all (None); `fixed()` is what it does besides the parts. `compared(result, parts)` -> the same
    numbers from ours. `floor(result)` -> Work. `peak_parts`: parts that reach the literal one's peak memory.
    `goal`: least ratio to literal, largest ratio to the floor, largest ratio of peak memory, on the small shape.
    """

    probe: str
    ours: Callable
    literal: Callable
    compared: Callable
    floor: Callable
    n_parts: int
    goal: tuple[float, float, float]
    peak_parts: tuple[int, ...] | None = None
    fixed: Callable | None = None


def prompt(n_tokens, seed):
    """A random string of exactly n tokens for a tokenizer of characters without a <bos>."""
    draw = random.Random(seed)
    return "".join(draw.choice(string.ascii_letters + string.digits) for _ in range(n_tokens))


def real_prompt(llm, n_tokens):
    """GSM8K's first prompts, one after the other, up to their n-th token."""
    text = "\n\n".join(dl.load_prompts("gsm8k", source="sample"))
    end = llm.tokenizer(text, return_offsets_mapping=True)["offset_mapping"][n_tokens - 1][1]
    assert _length(llm, text[:end]) == n_tokens
    return text[:end]


def _length(llm, text):
    return len(llm.tokenizer(text)["input_ids"])


def prompts(n, n_tokens):
    return [prompt(n_tokens, seed) for seed in range(n)]


def _pick(items, parts):
    return items if parts is None else [items[part] for part in parts]


def _rows(parts):
    return slice(None) if parts is None else list(parts)


def _means(keys):
    """Token-pooled means of some prompts, from a probe's sums over each."""
    return lambda result, parts=None: {
        key: result[f"{key}_sums"][_rows(parts)].sum(0) / result["n_tokens"][_rows(parts)].sum() for key in keys
    }


def contribution(llm, texts):
    return Workload(
        probe="relative_contribution",
        ours=partial(dl.relative_contribution, llm, texts),
        literal=lambda parts=None: literal.relative_contribution(llm, _pick(texts, parts)),
        compared=_means(("rc_att", "rc_mlp", "rc_layer", "att_cos", "mlp_cos", "layer_cos")),
        floor=lambda result: floor.relative_contribution(llm.config, [_length(llm, text) for text in texts]),
        n_parts=len(texts),
        goal=(1.5, 1.8, 1.0),
    )


def lens(llm, texts):
    return Workload(
        probe="logit_lens",
        ours=partial(dl.logit_lens, llm, texts),
        literal=lambda parts=None: literal.logit_lens(llm, _pick(texts, parts)),
        compared=_means(("res_kl_divs", "res_overlaps")),
        floor=lambda result: floor.logit_lens(llm.config, [_length(llm, text) for text in texts]),
        n_parts=len(texts),
        goal=(4.0, 1.4, 0.35),
    )


def effects(llm, texts, mode):
    lengths = [_length(llm, text) for text in texts]
    positions = effect_positions(lengths) if mode == "future" else [None] * len(texts)

    def by_literal(parts=None):
        starts = [[None] if t is None else t for t in _pick(positions, parts)]
        layers, out = literal.layer_effects(llm, _pick(texts, parts), starts)
        return {"layer": layers, "out": out}

    def compared(result, parts=None):
        return {key: result[f"max_{mode}_{key}_by_prompt"][_rows(parts)].amax(0) for key in ("layer", "out")}

    return Workload(
        probe="layer_effects",
        ours=partial(dl.layer_effects, llm, texts, mode=mode),
        literal=by_literal,
        compared=compared,
        floor=lambda result: floor.layer_effects(llm.config, lengths, positions),
        n_parts=len(texts),
        peak_parts=(0,),
        goal=(3.3, 1.6, 1.0) if mode == "future" else (2.1, 1.4, 1.0),
    )


def _question(llm, n_tokens, n_answer=2):
    """(question, answer, places of the answer) of n tokens in all, with a model that gives that answer."""
    text = prompt(n_tokens, seed=n_tokens)
    question, answer = text[:-n_answer], text[-n_answer:]
    ids, span = answer_span(llm.tokenizer, question, answer)
    give_answer(llm, ids, range(*span))
    return question, answer, span


def _real_question(llm):
    return QUESTION, ANSWER, answer_span(llm.tokenizer, QUESTION, ANSWER)[1]


def erasure(llm, asked, baseline, goal):
    question, answer, span = asked

    def by_literal(parts=None):
        return {"effect": literal.residual_erasure(llm, question + answer, span, baseline, parts)}

    return Workload(
        probe="residual_erasure",
        ours=partial(dl.residual_erasure, llm, question, answer, baseline),
        literal=by_literal,
        compared=lambda result, parts=None: {"effect": result["erasure_effect"][_rows(parts)]},
        floor=lambda result: floor.residual_erasure(llm.config, range(*span), [_length(llm, x) for x in baseline]),
        n_parts=llm.config.num_hidden_layers + 1,
        peak_parts=(0,),
        goal=goal,
        fixed=partial(literal.mean_residuals, llm, baseline),
    )


def gradients(llm, asked):
    question, answer, span = asked
    n_tokens = _length(llm, question + answer)
    ours = partial(dl.integrated_gradients, llm, question, answer)

    @cache
    def needed():
        return fewest_nodes(llm, answer_span(llm.tokenizer, question, answer)[0], span)

    def at_the_same_nodes(result, parts=None):
        return {"igrads": ours(quadrature="riemann")["igrads"][_rows(parts)]}

    return Workload(
        probe="integrated_gradients",
        ours=ours,
        literal=lambda parts=None: {"igrads": literal.integrated_gradients(llm, question + answer, span, parts)},
        compared=at_the_same_nodes,
        floor=lambda result: floor.integrated_gradients(llm.config, n_tokens, range(*span), needed()),
        n_parts=llm.config.num_hidden_layers,
        peak_parts=(0,),  # the first row keeps the longest graph
        goal=(25.0, 1.8, 0.5),
    )


# tokens a prompt; prompts for contribution, lens, effects in future and in all mode; tokens of the two questions
SIZES = {
    "few": (200, (4, 2, 1, 1), (20, 60)),
    "ten": (200, (10, 10, 10, 10), (20, 60)),
    "tiny": (40, (2, 2, 1, 1), (9, 14)),
}


def workloads(llm, size="few", times=1):
    """The workloads of one of SIZES for a model, as name -> a function that makes the Workload; `times` the prompts.

    "real": GSM8K's text, and the sum that the notebooks look at. Erasure's baseline is one prompt as long as the
    question ("ten": ten prompts), which both ways pay for.
    """
    if size == "real":
        return real_workloads(llm)
    n_tokens, counts, (short, long) = SIZES[size]
    n_contribution, n_lens, n_future, n_all = (times * n for n in counts)

    asked = partial(_question, llm)

    def baseline(n):
        return prompts(10, n_tokens) if size == "ten" else prompts(1, n)

    return {
        f"relative contribution, {n_contribution} × {n_tokens}": lambda: contribution(
            llm, prompts(n_contribution, n_tokens)
        ),
        f"logit lens, {n_lens} × {n_tokens}": lambda: lens(llm, prompts(n_lens, n_tokens)),
        f"layer effects, future, {n_future} × {n_tokens}": lambda: effects(llm, prompts(n_future, n_tokens), "future"),
        f"layer effects, all, {n_all} × {n_tokens}": lambda: effects(llm, prompts(n_all, n_tokens), "all"),
        f"residual erasure, {short} tokens": lambda: erasure(
            llm, _question(llm, short), baseline(short), (20.0, 1.8, 1.0)
        ),
        f"residual erasure, {long} tokens": lambda: erasure(llm, asked(long), baseline(long), (5.0, 2.0, 1.2)),
        f"integrated gradients, {short} tokens": lambda: gradients(llm, asked(short)),
    }


def _real_gradients(llm):
    """As `gradients`, at the nodes that ours took: what is compared are two quadratures, 256 left ends being the
    rougher one, and to look for the fewest nodes would take longer than all else."""
    whole = gradients(llm, asked := _real_question(llm))
    n_tokens, span = _length(llm, "".join(asked[:2])), range(*asked[2])
    return replace(
        whole,
        compared=lambda result, parts=None: {"igrads": result["igrads"][_rows(parts)]},
        floor=lambda result: floor.integrated_gradients(llm.config, n_tokens, span, result["n_nodes"].int().tolist()),
    )


def real_workloads(llm):
    """The five probes on one prompt of 120 and one of 300 tokens, and on the one sum."""
    texts = [real_prompt(llm, n_tokens) for n_tokens in (120, 300)]
    makers = {
        "relative contribution, 120 + 300": (lambda: contribution(llm, texts), 1.4),
        "logit lens, 120 + 300": (lambda: lens(llm, texts), 3.2),
        "layer effects, future, 120 + 300": (lambda: effects(llm, texts, "future"), 4.0),
        "layer effects, all, 120 + 300": (lambda: effects(llm, texts, "all"), 2.4),
        "residual erasure, the sum": (lambda: erasure(llm, _real_question(llm), texts[:1], (0, 0, 0)), 28.0),
        "integrated gradients, the sum": (lambda: _real_gradients(llm), 4.0),
    }
    return {name: lambda make=make, x=x: replace(make(), goal=(x, 1.3, None)) for name, (make, x) in makers.items()}


def largest_difference(ours, truth):
    """max |ours − truth| / max |truth|, the worst of all keys."""
    return max(
        ((ours[key] - truth[key].cpu().float()).abs().max() / truth[key].abs().max().cpu()).item() for key in truth
    )
