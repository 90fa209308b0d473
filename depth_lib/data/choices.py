"""Multiple choice: texts with several endings, one of which is right."""

import itertools
from pathlib import Path
from typing import NamedTuple

from .datasets import dataset_named
from .rows import PromptError


class Choice(NamedTuple):
    """A text, its possible endings and the number of the right one."""

    context: str
    endings: list[str]
    right: int


def load_choices(dataset: str = "hellaswag", n_examples: int = 100, source: str | Path = "hub") -> list[Choice]:
    """The first n_examples rows of a dataset with the fields ctx, endings and label, worded as in its prompts.

    >>> dl.load_choices("hellaswag", 1, source="embedded")[0].endings[0]
    ' puts the cookies on a tray and opens the oven.'

    source: as for `load_prompts`. Raises PromptError as it does, and for a row without these fields.
    Cost: no forward pass.
    """
    kind, choices = dataset_named(dataset, source), []
    for where, row in itertools.islice(kind.rows(source), n_examples):
        if not {"ctx", "endings", "label"} <= row.keys():
            raise PromptError(f"{where} has no ctx, endings and label; use hellaswag, or rows with these fields")
        texts = [kind.prompt(where, row | {"label": number}) for number in range(len(row["endings"]))]
        choices.append(Choice(row["ctx"], [text.removeprefix(row["ctx"]) for text in texts], int(row["label"])))
    return choices
