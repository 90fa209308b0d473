"""A dataset is one YAML file, params/datasets/<name>.yaml: where its rows are, and jinja templates that write them."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..params import ParamsFile, dataset_names, find_dataset, not_among, params_files
from .rows import TEXT, PromptError, file_rows, hub_rows

DRAWN = ("addition", "multiplication", "sums")  # computed from a seed, without rows


class Refused(Exception):
    """A template refuses a row."""


def _fail(message: str) -> None:
    """In a template, refuse the row: {{ fail("why; what to do") }}."""
    raise Refused(message)


_TEMPLATES = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
_TEMPLATES.globals["fail"] = _fail


class Dataset:
    """A dataset by the name of its file params/datasets/<name>.yaml; `params` are the file's values.

    Raises PromptError for an unknown name, or a file without a template.
    """

    def __init__(self, name: str) -> None:
        if problem := not_among(dataset_names(), "DATASET", name):
            raise PromptError(problem)
        self.name, self.path, self.params = name, params_files("datasets")[name], ParamsFile(**find_dataset(name))
        has_template = self.params.TEMPLATE or (self.params.QUESTION_TEMPLATE and self.params.ANSWER_TEMPLATE)
        if not has_template and Path(self.params.FILE or "").suffix != ".txt":
            raise PromptError(f"{self.path} has no TEMPLATE; write how a row becomes a prompt, as in gsm8k.yaml")

    def rows(self, source: str | Path) -> Iterator[tuple[str, dict]]:
        """Every row of a source with its name for errors; PromptError for a source that cannot be read."""
        params = self.params
        if source != "hub":
            return file_rows(self.name, source)
        if params.FILE:  # as seen from the working directory, or else from the YAML's folder
            file = Path(params.FILE)
            return file_rows(self.name, file if file.exists() else self.path.parent / file)
        if not params.REPOSITORY:
            raise PromptError(f"{self.path} has neither REPOSITORY nor FILE; give one, or source=")
        return hub_rows(self.name, params.REPOSITORY, params.CONFIG, params.SPLIT or "train")

    def prompt(self, where: str, row: dict) -> str:
        """A row as a prompt; PromptError, beginning with `where`, for a row that does not fit."""
        if set(row) == {TEXT}:
            return row[TEXT]
        return self._write(self.params.TEMPLATE, where, row) if self.params.TEMPLATE else "".join(self.pair(where, row))

    def pair(self, where: str, row: dict) -> tuple[str, str]:
        """A row as question and answer; PromptError for a row that does not fit or has an empty one."""
        question = self._write(self.params.QUESTION_TEMPLATE, where, row)
        answer = self._write(self.params.ANSWER_TEMPLATE, where, row)
        if not question.strip() or not answer.strip():
            empty = "answer" if question.strip() else "question"
            raise PromptError(f"{where}: the {empty} is empty; write it, or leave the row out")
        return question, answer

    def level_of(self, row: dict) -> int | None:
        """A row's level of difficulty: a number, a list's length, or the number in a text; None if there is none."""
        value = row.get(self.params.LEVEL)
        if isinstance(value, list):
            return len(value) or None
        number = re.fullmatch(r"\D*([1-9][0-9]*)\D*", str(value))
        return int(number[1]) if number else None

    def _write(self, template: str, where: str, row: dict) -> str:
        try:
            return _compiled(template).render({field: value for field, value in row.items() if value is not None})
        except Refused as problem:
            raise PromptError(f"{where}: {problem}") from None
        except (TemplateError, TypeError, AttributeError, ArithmeticError) as problem:
            raise PromptError(
                f"{where} does not fit the template of {self.name} ({problem}); correct the row, or the template in "
                f"{self.path}"
            ) from None


@cache
def _compiled(template: str) -> Template:
    return _TEMPLATES.from_string(template)


def with_levels() -> list[str]:
    """The datasets whose rows, or drawn sums, have levels of difficulty."""
    return [name for name in dataset_names() if name == "sums" or find_dataset(name).get("LEVEL")]
