"""Rows drawn at random, without end: sums of digits, sums and products of two numbers."""

import random
from collections.abc import Iterator

DRAWN = ("addition", "multiplication", "sums")


def drawn_rows(dataset: str, seed: int) -> Iterator[tuple[str, dict]]:
    """Rows of a data set in DRAWN: two operands of six digits, or a sum of 2 to 6 digits with its answer."""
    rng = random.Random(seed)
    while True:
        if dataset == "sums":
            question, answer = one_sum(rng, rng.randint(2, 6))
            yield dataset, {"question": question, "answer": answer}
        else:
            yield dataset, {name: rng.randrange(10**5, 10**6) for name in "ab"}


def one_sum(rng: random.Random, terms: int) -> tuple[str, str]:
    """Question and answer of a sum of `terms` digits 0–9, such as ("5 + 7 + 5 = ", "17")."""
    digits = [rng.randrange(10) for _ in range(terms)]
    return " + ".join(map(str, digits)) + " = ", str(sum(digits))
