"""Arithmetic with a known number of steps: flat sums, and nested expressions in the style of DeepMind Mathematics.

Source of the style: Saxton et al. 2019 (arXiv 1904.01557), modules arithmetic__add_or_sub_multiple and
arithmetic__mixed; the wording and the numbers are ours, and small, so that a toy can learn them.
"""

import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from depth_lib.data.drawn import one_sum
from depth_lib.data.examples import Example

LARGEST = 99  # of any intermediate result, either sign


def is_held_out(question: str) -> bool:
    """Whether a question is kept out of training: one in ten, by CRC-32, so that anybody can tell."""
    return zlib.crc32(question.encode()) % 10 == 0


def draw_sum(rng: random.Random, terms: int, held_out: bool) -> tuple[str, str]:
    """`one_sum` from one side of `is_held_out`."""
    while True:
        question, answer = one_sum(rng, terms)
        if is_held_out(question) == held_out:
            return question, answer


def draw_nested(rng: random.Random, steps: int, held_out: bool) -> tuple[str, str]:
    """Question and answer of an expression with `steps` operations, ("Q: What is (3 - 7)*2? A: ", "-8").

    Sums, differences and products of digits, bracketed as a random tree; no intermediate result exceeds `LARGEST`.
    """
    while True:
        text, value, _ = _tree(rng, steps)
        question = f"Q: What is {text}? A: "
        if value is not None and is_held_out(question) == held_out:
            return question, str(value)


@dataclass(frozen=True)
class Task:
    """How a problem of a level (number of terms or steps) is drawn, and which levels are seen in training."""

    draw: Callable[[random.Random, int, bool], tuple[str, str]]
    seen: range
    unseen: range


TASKS = {"sums": Task(draw_sum, range(2, 7), range(7, 10)), "nested": Task(draw_nested, range(1, 6), range(6, 10))}


def held_out_examples(task: str, levels: Iterable[int], n_per_level: int, seed: int = 0) -> list[Example]:
    """n_per_level different held-out problems of each level, the same for everybody who asks with this seed.

    task: a name of `TASKS`. Fewer where fewer exist: of the 100 sums of two digits, 12 are held out.
    """
    examples = []
    for level in levels:
        rng, found = random.Random(f"{task} {level} {seed}"), {}
        for _ in range(20 * n_per_level):  # enough to meet every one of those 12
            if len(found) < n_per_level:
                found |= dict([TASKS[task].draw(rng, level, True)])
        examples += [Example(level, *pair) for pair in found.items()]
    return examples


def _tree(rng: random.Random, steps: int) -> tuple[str, int | None, str]:
    """Text, value (None where a result is too large) and outermost operation of a random expression."""
    if not steps:
        digit = rng.randrange(10)
        return str(digit), digit, ""
    left_steps = rng.randrange(steps)
    left, x, left_op = _tree(rng, left_steps)
    right, y, right_op = _tree(rng, steps - 1 - left_steps)
    op = rng.choice("+-*")
    if x is None or y is None:
        return "", None, op
    value = {"+": x + y, "-": x - y, "*": x * y}[op]
    if op == "*":
        left, right = _bracketed(left, left_op), _bracketed(right, right_op)
        text = f"{left}*{right}"
    else:
        text = f"{left} {op} {_bracketed(right, right_op)}"
    return text, value if abs(value) <= LARGEST else None, op


def _bracketed(text: str, op: str) -> str:
    return f"({text})" if op in ("+", "-") else text
