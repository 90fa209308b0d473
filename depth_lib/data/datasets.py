"""A dataset is one YAML file, params/datasets/<name>.yaml: where its rows are, and jinja templates that write them."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from jinja2 import StrictUndefined, TemplateError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..params import find_dataset, params_files
from .rows import TEXT, PromptError, read_rows

DRAWN = ("addition", "multiplication", "sums")  # computed from a seed, without rows


class Refused(Exception):
    """A template refuses a row."""


def _fail(message: str) -> None:
    """In a template, refuse the row: {{ fail("why; what to do") }}."""
    raise Refused(message)


_TEMPLATES = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
_TEMPLATES.globals["fail"] = _fail


@dataclass(frozen=True)
class Dataset:
    """What params/datasets/<name>.yaml says; see `params.ParamsFile` for each key."""

    name: str
    repository: str | None
    config: str | None
    split: str
    file: Path | None
    template: str | None
    question: str | None
    answer: str | None
    level: str | None
    within_answer: bool
    max_tokens: int | None
    length_tokenizer: str | None
    n_examples: int

    def rows(self, source: str | Path) -> Iterator[tuple[str, dict]]:
        """Every row of a source with its name for errors; PromptError for a source that cannot be read."""
        place = self.repository, self.config, self.split
        label, rows = read_rows(self.name, place, self.file if source == "hub" and self.file else source)
        return ((f"{label} row {number}", row) for number, row in rows)

    def prompt(self, where: str, row: dict) -> str:
        """A row as a prompt; PromptError, beginning with `where`, for a row that does not fit."""
        if set(row) == {TEXT}:
            return row[TEXT]
        return self._write(self.template, where, row) if self.template else "".join(self.pair(where, row))

    def pair(self, where: str, row: dict) -> tuple[str, str]:
        """A row as question and answer; PromptError for a row that does not fit or has an empty one."""
        pair = tuple(self._write(template, where, row) for template in (self.question, self.answer))
        for name, text in zip(("question", "answer"), pair, strict=True):
            if not text.strip():
                raise PromptError(f"{where}: the {name} is empty; write it, or leave the row out")
        return pair

    def level_of(self, where: str, row: dict) -> int | None:
        """A row's level of difficulty: a number, a list's length, or the number in a text; None if there is none."""
        self._check(where, row, {self.level})
        value = row[self.level]
        if isinstance(value, list):
            return len(value) or None
        number = re.fullmatch(r"\D*([1-9][0-9]*)\D*", str(value))
        return int(number[1]) if number else None

    def _write(self, template, where, row):
        try:
            compiled, fields = _compiled(template)
            self._check(where, row, fields)
            return compiled.render(row)
        except Refused as problem:
            raise PromptError(f"{where}: {problem}") from None
        except (TemplateError, TypeError, AttributeError, ArithmeticError) as problem:
            raise PromptError(
                f"{where} does not fit the template of {self.name} ({problem}); correct the row, or the template in "
                f"{_path(self.name)}"
            ) from None

    def _check(self, where, row, fields):
        wanted = f"a {self.name} row has the fields {', '.join(sorted(fields))}"
        if not isinstance(row, dict):
            raise PromptError(f"{where} is not an object; {wanted}")
        for field in sorted(fields):
            if row.get(field) is None:
                raise PromptError(f"{where}: {field!r} is missing; {wanted}")


@cache
def _compiled(template):
    """A template, and the fields that it reads."""
    return _TEMPLATES.from_string(template), find_undeclared_variables(_TEMPLATES.parse(template)) - {"fail"}


def find(name: str) -> Dataset:
    """The dataset of this name; PromptError for an unknown one, or whose file lacks what makes prompts of rows."""
    if name in DRAWN or name not in params_files("datasets"):
        raise PromptError(f"unknown dataset {name!r}; {nearest(name, params_files('datasets'))}")
    said = find_dataset(name)
    if not said.get("TEMPLATE") and not (said.get("QUESTION_TEMPLATE") and said.get("ANSWER_TEMPLATE")):
        if Path(said.get("FILE") or "").suffix != ".txt":
            raise PromptError(f"{_path(name)} has no TEMPLATE; write how a row becomes a prompt, as in gsm8k.yaml")
    return Dataset(
        name=name,
        repository=said.get("REPOSITORY"),
        config=said.get("CONFIG"),
        split=said.get("SPLIT") or "train",
        file=_located(name, said["FILE"]) if said.get("FILE") else None,
        template=said.get("TEMPLATE"),
        question=said.get("QUESTION_TEMPLATE"),
        answer=said.get("ANSWER_TEMPLATE"),
        level=said.get("LEVEL"),
        within_answer=said.get("WITHIN_ANSWER", False),
        max_tokens=said.get("MAX_TOKENS"),
        length_tokenizer=said.get("LENGTH_TOKENIZER"),
        n_examples=10 if said.get("LEVEL") else said.get("N_EXAMPLES", 10),
    )


def with_levels() -> list[str]:
    """The datasets whose rows, or drawn sums, have levels of difficulty."""
    return [name for name in params_files("datasets") if name == "sums" or (find_dataset(name) or {}).get("LEVEL")]


def nearest(name: object, known: Collection[str]) -> str:
    """What to write in place of an unknown name: the nearest of the known ones, or any of them."""
    near = get_close_matches(str(name).lower(), known, n=3, cutoff=0.55)
    return f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(known)}"


def _path(name):
    return params_files("datasets")[name]


def _located(name, file):
    """A file as seen from the working directory or, if it is not there, from the folder of the dataset's YAML."""
    beside = _path(name).parent / file
    return Path(file) if Path(file).exists() or not beside.exists() else beside
