"""The question and answer for erasure and integrated gradients: by name, drawn, or your own."""

import hashlib
import re
from dataclasses import dataclass

from ..params import not_among
from .prompts import ANSWER, QUESTION, PromptError, load_prompts

# The papers' own: Csordás et al. 2025, section 3.4 and appendix, the last four after DeepMind's Mathematics.
PAIRS = {
    "sum": (QUESTION, ANSWER),
    "spouse": ("The spouse of the performer of Imagine is", " Yoko Ono"),
    "fractions": ("Q: What is ((-14)/(-6))/(1162/(-4980))? A: ", "-10"),
    "signed_sum": ("Q: What is the value of -24 + -10 + 22 + 1 + 1 + 25? A: ", "-15"),  # as published; it is 15
    "nested": ("Q: What is 1 - 3 - (63 + 7 - 60)? A: ", "-12"),
    "product": ("Q: (10/3)/((-8)/16)*(-90)/(-75) A: ", "-8"),
}
DRAWN_PAIRS = ("addition", "multiplication")  # the first prompt that a seed draws
DEFAULT_PAIR = "sum"


@dataclass
class Pair:
    """A question and its answer; `label` is part of the file names of its results, "" for the default pair."""

    label: str
    question: str
    answer: str


def find_pair(
    name: str = DEFAULT_PAIR, question: str | None = None, answer: str | None = None, seed: int = 123
) -> Pair:
    """The pair of this name, or these two strings.

    name: one of PAIRS, or "addition" or "multiplication" (the first prompt of this seed; the label names a seed other
    than 123). The label of your own pair is its first words and a hash.

    Raises PromptError for an unknown name, or a question without an answer.
    """
    if question is None and answer is None:
        if name in DRAWN_PAIRS:
            operation, equals, result = load_prompts(name, 1, seed=seed)[0].partition("= ")
            return Pair(name + f"-{seed}" * (seed != 123), operation + equals, result)
        if problem := not_among([*PAIRS, *DRAWN_PAIRS], "pair", name):
            raise PromptError(problem)
        question, answer = PAIRS[name]
    if not question or not answer:
        lacking = "ANSWER" if question else "QUESTION"
        raise PromptError(
            f"QUESTION is {question!r} and ANSWER is {answer!r}; provide both: set {lacking} too, or leave out both"
        )
    for known, pair in PAIRS.items():
        if pair == (question, answer):
            return Pair("" if known == DEFAULT_PAIR else known, question, answer)
    words = re.sub("[^a-z0-9]+", "-", question.lower()).strip("-")[:24].strip("-")
    digest = hashlib.sha256(f"{question}\0{answer}".encode()).hexdigest()[:8]
    return Pair(f"{words}-{digest}".lstrip("-"), question, answer)
