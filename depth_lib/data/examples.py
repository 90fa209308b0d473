"""Questions by difficulty level, from the rows of a data set or drawn at random."""

import random
from collections import Counter
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ..params import NAMED_SOURCES, warn
from .datasets import Dataset, dataset_named, with_levels
from .drawn import one_sum
from .rows import PromptError, check_count

TERMS = range(2, 7)  # of drawn sums


class Example(NamedTuple):
    """A question with its level and its answer, which follows it immediately.

    within: True measures effects at positions inside the answer, for worked solutions; False at the position that
    predicts its first token.
    """

    level: int
    question: str
    answer: str
    within: bool = False


def load_examples(dataset: str, n_per_level: int = 20, source: str | Path = "hub", seed: int = 42) -> list[Example]:
    """Questions with answers, by difficulty level, easy levels first.

    >>> dl.load_examples("sums", 1)[0]
    Example(level=2, question='1 + 0 = ', answer='1', within=False)

    - dataset: "mquake" (2 to 4 hops), "math" (levels 1 to 5), "sums" (2 to 6 terms, drawn at random), or a file
      params/datasets/<name>.yaml with LEVEL
    - n_per_level: how many of each level; if there are fewer, all are used, with a warning
    - source: as for `load_prompts`
    - seed: for shuffling, and for drawing sums

    Returns a list of Example(level, question, answer, within). With within=True, `depth_by_difficulty` measures at
    positions inside the answer (worked solutions), not at the one that predicts its first token.

    Raises PromptError for a data set without levels, and in the same cases as `load_prompts`.
    Source: Csordás et al. 2025, section 4.
    Cost: no forward pass.
    """
    kind = dataset_named(dataset)
    if not kind.LEVEL:
        raise PromptError(f"{dataset!r} has no difficulty levels; choose from {', '.join(with_levels())}")
    check_count("n_per_level", n_per_level)
    is_drawn = dataset == "sums" and source in NAMED_SOURCES
    examples = _sums(n_per_level, seed) if is_drawn else _from_rows(kind, source, seed)
    level = attrgetter("level")
    by_level = groupby(sorted(examples, key=level), level)
    chosen = [example for _, group in by_level for example in islice(group, n_per_level)]
    fewer = [f"{n} of level {one}" for one, n in Counter(map(level, chosen)).items() if n < n_per_level]
    if fewer:
        warn(f"{dataset} has only {', '.join(fewer)}, not {n_per_level}; using all of them")
    return chosen


def _sums(n_per_level: int, seed: int) -> list[Example]:
    rng, examples = random.Random(seed), []
    for terms in TERMS:
        answers = {}
        while len(answers) < min(n_per_level, 10**terms):  # without repetition
            answers.update([one_sum(rng, terms)])
        examples += [Example(terms, *pair) for pair in answers.items()]
    return examples


def _from_rows(dataset: Dataset, source: str | Path, seed: int) -> list[Example]:
    """The examples of all rows with a level, shuffled."""
    rows = []
    for where, row in dataset.rows(source):
        if isinstance(row, str):
            raise PromptError(
                f"{where} is plain text and has no level; use a .jsonl file with {dataset.DATASET}'s fields"
            )
        rows.append((dataset.level_of(row), *dataset.pair(where, row), dataset.WITHIN_ANSWER))
    examples = [Example(*row) for row in rows if row[0] is not None]
    name = dataset.name_of(source)
    if not examples:
        raise PromptError(
            f"{name} has no row with a level in the field {dataset.LEVEL!r}; write whole numbers, 0 or more"
        )
    if n_without := len(rows) - len(examples):
        warn(f"{n_without} of {len(rows)} rows of {name} have no level (a whole number, 0 or more) and are left out")
    random.Random(seed).shuffle(examples)
    return examples
