"""Multiple choice: texts with several endings, one of which is right."""

import itertools
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from .datasets import dataset_named
from .rows import PromptError

_HERE = "\0"


class Choice(NamedTuple):
    """A text, its possible endings and the number of the right one."""

    context: str
    endings: list[str]
    right: int


class _Row(BaseModel):
    ctx: str
    endings: list[str]
    label: Annotated[int, Field(ge=0)]


def load_choices(dataset: str = "hellaswag", n_examples: int = 100, source: str | Path = "hub") -> list[Choice]:
    """The first n_examples rows of a dataset with the fields ctx, endings and label, worded as in its prompts.

    >>> dl.load_choices("hellaswag", 1, source="embedded")[0].endings[0]
    ' puts the cookies on a tray and opens the oven.'

    source: as for `load_prompts`. Raises PromptError as it does, and for a row without these fields.
    Cost: no forward pass.
    """
    kind, choices = dataset_named(dataset, source), []
    for where, row in itertools.islice(kind.rows(source), n_examples):
        endings, label = _checked(where, row)
        # where the template writes the ending: once, at the end of what it writes for any label
        context, *after = kind.prompt(where, row | {"endings": [_HERE] * len(endings), "label": label}).split(_HERE)
        context = context.rstrip(" ")  # a space belongs to the ending, as tokenizers have it
        texts = [kind.prompt(where, row | {"label": number}) for number in range(len(endings))]
        if after != [""] or not all(text.startswith(context) for text in texts):
            raise PromptError(f"{where}: {kind.DATASET}'s template does not end with endings[label]; correct it")
        choices.append(Choice(context, [text.removeprefix(context) for text in texts], label))
    return choices


def _checked(where, row):
    """The endings of a row, and the number of the right one."""
    try:
        found = _Row.model_validate(row)
    except ValidationError as error:
        (field, *_), problem = error.errors()[0]["loc"] or ["row"], error.errors()[0]["msg"]
        raise PromptError(f"{where}: {field} does not fit ({problem}); choices have ctx, endings and label") from None
    if found.label >= len(found.endings):
        raise PromptError(f"{where}: label {found.label} is no index of its {len(found.endings)} endings; correct it")
    return found.endings, found.label
