"""Multiple-choice questions: texts with several endings, one of which is right."""

import itertools
import reprlib
from pathlib import Path
from typing import NamedTuple

from ..embedded import choices_path
from ..params import NAMED_SOURCES, warn
from .datasets import dataset_named
from .rows import PromptError, check_count, file_rows

_HERE = "\0"


class Choice(NamedTuple):
    """A text, its possible endings and the index of the right one."""

    context: str
    endings: list[str]
    right: int


def load_choices(dataset: str = "hellaswag", n_examples: int = 100, source: str | Path = "hub") -> list[Choice]:
    """The first multiple-choice questions of a data set, worded like its prompts.

    >>> dl.load_choices("hellaswag", 1, source="embedded")[0].endings[0]
    ' puts the cookies on a tray and opens the oven.'

    - dataset: one whose rows have the fields ctx, endings and label
    - n_examples: the number of questions; if there are fewer, all are used, with a warning
    - source: as for `load_prompts`

    Returns a list of Choice(context, endings, right), where `right` is the index of the right ending.

    Raises PromptError for a row without these fields, and in the same cases as `load_prompts`.
    Cost: no forward pass.
    """
    check_count("n_examples", n_examples)
    kind, choices = dataset_named(dataset, source), []
    rows = kind.rows(source)
    if source in ("embedded", "sample") and (more := choices_path(dataset)).is_file():
        rows = itertools.chain(rows, file_rows(more))
    for where, row in itertools.islice(rows, n_examples):
        endings, label = _checked(where, row)
        # where the template writes the ending: once, at the end of what it writes for any label
        context, *after = kind.prompt(where, row | {"endings": [_HERE] * len(endings), "label": label}).split(_HERE)
        context = context.rstrip(" ")  # a space belongs to the ending, as tokenizers have it
        texts = [kind.prompt(where, row | {"label": number}) for number in range(len(endings))]
        if after != [""] or not all(text.startswith(context) for text in texts):
            raise PromptError(f"{where}: {kind.DATASET}'s template does not end with endings[label]; correct it")
        choices.append(Choice(context, [text.removeprefix(context) for text in texts], label))
    if len(choices) < n_examples:
        warn(f"{dataset} has only {len(choices)} rows, not {n_examples}; using all of them")
    return choices


def shipped_choices(n: int, source: str | Path) -> list[Choice]:
    """HellaSwag's questions from a named source, or, if the source is a file of prompts, the shipped ones."""
    return load_choices("hellaswag", n, source if source in NAMED_SOURCES else "sample")


def _checked(where, row):
    """The endings of a row, and the index of the right one."""
    if isinstance(row, str) or not {"ctx", "endings", "label"} <= row.keys():
        raise PromptError(f"{where} needs the fields ctx, endings and label; use hellaswag, or rows with these fields")
    endings, label = row["endings"], str(row["label"]).strip()
    if not isinstance(endings, list) or not all(isinstance(ending, str) for ending in endings):
        raise PromptError(
            f"{where}: endings must be a list of strings, got {reprlib.repr(endings)}; use a .jsonl or .parquet file"
        )
    if label not in map(str, range(len(endings))):
        raise PromptError(f"{where}: label {row['label']!r} is not an index of its {len(endings)} endings; correct it")
    return endings, int(label)
