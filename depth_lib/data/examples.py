"""Questions with known difficulty: (level, question, answer), from rows of a dataset with levels or drawn."""

import random
import warnings
from pathlib import Path
from typing import NamedTuple

from . import datasets
from .datasets import nearest
from .prompts import one_sum
from .rows import PromptError

TERMS = range(2, 7)  # of drawn sums


class Example(NamedTuple):
    """A question of one level of difficulty and its answer, which follows it without anything between.

    within: what follows is measured from places inside the answer on, for answers that are worked out in it; otherwise
    from the place that predicts the answer's first token.
    """

    level: int
    question: str
    answer: str
    within: bool = False


def load_examples(dataset: str, n_per_level: int = 20, source: str | Path = "hub", seed: int = 42) -> list[Example]:
    """n_per_level examples of each level, easy levels first (Csordás et al. 2025, section 4).

    dataset: "mquake" (level: hops, 2–4), "math" (level as printed, 1–5), "sums" (terms, 2–6; drawn with `seed`, each
    once), or the name of a file params/datasets/<name>.yaml with LEVEL. Of rows, all are read, shuffled by
    random.Random(seed), and the first of each level taken; with fewer, all there are and a warning. source: as for
    `load_prompts`. Raises PromptError: no levels, or as `load_prompts`.
    """
    if dataset not in (known := datasets.with_levels()):
        raise PromptError(f"{dataset!r} has no levels of difficulty; {nearest(dataset, known)}")
    if isinstance(n_per_level, bool) or not isinstance(n_per_level, int) or n_per_level < 1:
        raise PromptError(f"n_per_level is {n_per_level!r}; give a whole number of at least 1")
    found = _sums(n_per_level, seed) if dataset == "sums" else _of_rows(dataset, source, seed)
    levels = {level: [one for one in found if one.level == level] for level in sorted({one.level for one in found})}
    if fewer := [f"{len(all_of)} of level {level}" for level, all_of in levels.items() if len(all_of) < n_per_level]:
        name = dataset if dataset == "sums" else f"{dataset} from {source}"
        warnings.warn(f"{name} has {', '.join(fewer)}, not {n_per_level}: using those", stacklevel=2)
    return [one for all_of in levels.values() for one in all_of[:n_per_level]]


def _sums(n_per_level: int, seed: int) -> list[Example]:
    draw, found = random.Random(seed), []
    for terms in TERMS:
        drawn = {}
        while len(drawn) < min(n_per_level, 10**terms // 2):  # each once, and there are 10**terms
            drawn |= dict([one_sum(draw, terms)])
        found += [Example(terms, *pair) for pair in drawn.items()]
    return found


def _of_rows(dataset: str, source: str | Path, seed: int) -> list[Example]:
    spec, examples, without = datasets.find(dataset), [], 0
    for where, row in spec.rows(source):
        pair, level = spec.pair(where, row), spec.level_of(where, row)
        if level:
            examples.append(Example(level, *pair, spec.within_answer))
        else:
            without += 1
    if not examples:
        raise PromptError(f"{dataset} from {source} has no row with a level in {spec.level!r}; write a number there")
    if without:
        left = f"{without} of {len(examples) + without} rows"
        warnings.warn(f"{left} of {dataset} from {source} are left out: no level in {spec.level!r}", stacklevel=3)
    random.Random(seed).shuffle(examples)
    return examples
