"""Questions with known difficulty: (level, question, answer), from rows of a dataset with levels or drawn."""

import random
import warnings
from pathlib import Path
from typing import NamedTuple

from .datasets import Dataset, with_levels
from .prompts import one_sum
from .rows import PromptError

TERMS = range(2, 7)  # of drawn sums


class Example(NamedTuple):
    """A question of one level of difficulty and its answer, which follows it without anything between.

    within: effects are measured after positions drawn inside the answer, for worked solutions; otherwise from the
    position that predicts the answer's first token.
    """

    level: int
    question: str
    answer: str
    within: bool = False


def load_examples(dataset: str, n_per_level: int = 20, source: str | Path = "hub", seed: int = 42) -> list[Example]:
    """n_per_level examples of each level, easy levels first (Csordás et al. 2025, section 4).

    dataset: "mquake" (level: hops, 2–4), "math" (level as printed, 1–5), "sums" (terms, 2–6; drawn with `seed`, each
    once), or the name of a file params/datasets/<name>.yaml with LEVEL. All rows are read and shuffled by
    random.Random(seed), and the first of each level are taken; if there are fewer, all of them, with a warning.
    source: as for `load_prompts`. Raises PromptError: no levels, or as `load_prompts`.
    """
    if dataset not in with_levels():
        raise PromptError(f"{dataset!r} has no levels of difficulty; use one of {', '.join(with_levels())}")
    if not isinstance(n_per_level, int) or n_per_level < 1:
        raise PromptError(f"n_per_level is {n_per_level!r}; give a whole number of at least 1")
    examples = _sums(n_per_level, seed) if dataset == "sums" else _from_rows(dataset, source, seed)
    by_level = {}
    for example in sorted(examples, key=lambda example: example.level):
        by_level.setdefault(example.level, []).append(example)
    fewer = [f"{len(group)} of level {level}" for level, group in by_level.items() if len(group) < n_per_level]
    if fewer:
        name = dataset if dataset == "sums" else f"{dataset} from {source}"
        warnings.warn(f"{name} has {', '.join(fewer)}, not {n_per_level}: using those", stacklevel=2)
    return [example for group in by_level.values() for example in group[:n_per_level]]


def _sums(n_per_level: int, seed: int) -> list[Example]:
    rng, examples = random.Random(seed), []
    for terms in TERMS:
        drawn = {}
        while len(drawn) < min(n_per_level, 10**terms // 2):  # each once, and there are 10**terms
            drawn |= dict([one_sum(rng, terms)])
        examples += [Example(terms, *pair) for pair in drawn.items()]
    return examples


def _from_rows(name: str, source: str | Path, seed: int) -> list[Example]:
    dataset, examples, n_without = Dataset(name), [], 0
    for where, row in dataset.rows(source):
        pair, level = dataset.pair(where, row), dataset.level_of(row)
        if level:
            examples.append(Example(level, *pair, dataset.params.WITHIN_ANSWER))
        else:
            n_without += 1
    field = dataset.params.LEVEL
    if not examples:
        raise PromptError(f"{name} from {source} has no row with a level in {field!r}; write a number there")
    if n_without:
        n_rows = n_without + len(examples)
        warnings.warn(
            f"{n_without} of {n_rows} rows of {name} from {source} are left out: no level in {field!r}", stacklevel=3
        )
    random.Random(seed).shuffle(examples)
    return examples
