"""A data set is one YAML file, params/datasets/<name>.yaml: where its rows are, and jinja templates that write them."""

import hashlib
import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from functools import cache
from numbers import Number
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateRuntimeError, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..embedded import SAMPLES, prompts_path
from ..files import path_of
from ..params import NAMED_SOURCES, DatasetFile, Params, ParamsError, find_dataset, not_among, params_files
from .drawn import DRAWN, drawn_rows
from .rows import FORMATS, PromptError, file_rows, from_hub

# The keys of a data set's file that determine its rows on the Hub and their prompts.
_DEFINITION = {*DatasetFile.model_fields} - {*Params.model_fields, "FILE"}


def _fail(message: str) -> None:
    """In a template, refuse the row: {{ fail("why; what to do") }}."""
    raise TemplateRuntimeError(message)


def _printable(value: object) -> object:
    if isinstance(value, str | Number | date | Undefined):
        return value
    if callable(value):
        _fail("m.items is a method; write m['items'] for the item")
    _fail(f"a {type(value).__name__} is not text")


class _Templates(ImmutableSandboxedEnvironment):
    def getitem(self, obj: object, argument: object) -> object:
        if isinstance(obj, str) and not isinstance(argument, slice):
            _fail("the template takes an item of a list, but finds a string, as in every .csv")
        return super().getitem(obj, argument)


_TEMPLATES = _Templates(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_printable)
_TEMPLATES.globals["fail"] = _fail


class Dataset(DatasetFile):
    """A file params/datasets/<name>.yaml, and the rows, prompts and questions that it defines."""

    @property
    def path(self) -> Path:
        """The YAML file."""
        return params_files("datasets")[self.DATASET]

    @property
    def definition(self) -> str:
        """16 hexadecimal digits of a hash of all that determines the Hub's prompts: repository, split, templates …"""
        fields = json.dumps(self.model_dump(include=_DEFINITION), sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()[:16]

    def rows(self, source: str | Path, seed: int = 123) -> Iterator[tuple[str, Any]]:
        """Every row of a source, after its name in error messages; PromptError if the source cannot be read.

        Rows of a data set in DRAWN are drawn at random, unless the source is a file.
        """
        if self.DATASET in DRAWN and source in NAMED_SOURCES:
            return drawn_rows(self.DATASET, seed)
        if source == "hub" and self.FILE:  # relative to the working directory, or to the folder of the YAML file
            file = path_of(self.FILE)
            source = file if file.exists() else self.path.parent / file
        if source == "hub":
            return self._hub_rows()
        if source in NAMED_SOURCES:
            if self.DATASET not in SAMPLES:
                samples = ", ".join(SAMPLES)
                raise PromptError(
                    f"the package has no sample of {self.DATASET}, only of {samples}; use a file as the source"
                )
            source = prompts_path(self.DATASET, published=source == "sample")
        return file_rows(path_of(source))

    def name_of(self, source: str | Path) -> str:
        """The data set and its source, for messages; a data set that is a file is named by that file."""
        return f"{self.DATASET} from {source == 'hub' and self.FILE or source}"

    def _hub_rows(self) -> Iterator[tuple[str, dict]]:
        import datasets  # takes seconds, and files do not need it

        repository = self.REPOSITORY or ""
        with from_hub(self.DATASET, repository):
            how = {"split": self.SPLIT or "train", "revision": self.DATASET_REVISION}
            rows = datasets.load_dataset(repository, self.CONFIG, **how)
        for number, row in enumerate(rows, 1):
            yield f"{self.REPOSITORY} row {number}", row

    def prompt(self, where: str, row: dict | str, part: str = "all") -> str:
        """A row as a prompt, or a part of it; PromptError, beginning with `where`, if it does not fit the template.

        part: "all", "question", or "answer": the stored response where ANSWERS names its field, else the row's answer.
        """
        if isinstance(row, str):  # the prompt itself
            if part != "all":
                raise PromptError(
                    f"{where} is plain text and has no {part}; use a .jsonl file with a data set's fields"
                )
            return row
        if part == "answer" and self.ANSWERS:
            if not isinstance(response := row.get(self.ANSWERS), str):
                raise PromptError(
                    f"{where} has no text in {self.ANSWERS!r}; write the response there, or change ANSWERS"
                )
            return response
        if part != "all":
            return self._write(f"{part.upper()}_TEMPLATE", where, row)
        if self.TEMPLATE or not self.QUESTION_TEMPLATE:
            return self._write("TEMPLATE", where, row)
        return "".join(self.pair(where, row))

    def pair(self, where: str, row: dict) -> tuple[str, str]:
        """A row as question and answer; PromptError if it does not fit the templates, or one is empty."""
        texts = {name: self._write(f"{name.upper()}_TEMPLATE", where, row) for name in ("question", "answer")}
        for name, text in texts.items():
            if not text.strip():
                raise PromptError(f"{where}: the {name} is empty; write it, or leave the row out")
        return texts["question"], texts["answer"]

    def level_of(self, row: dict) -> int | None:
        """A row's level: a whole number of 0 or more, one in a string, or a list's length; None without one."""
        value = row.get(self.LEVEL)
        if isinstance(value, list):
            return len(value) or None
        number = re.fullmatch(r"(?!\s*-)\D*([0-9]+)(\.0+)?\D*", str(value))
        return int(number[1]) if number else None

    def _write(self, key: str, where: str, row: dict) -> str:
        template = getattr(self, key)
        if not template:
            field = "answer" if key == "ANSWER_TEMPLATE" else "question"
            raise PromptError(
                f'{self.path} has no {key}; add a template that turns a row into text: {key}: "{{{{ {field} }}}}"'
            )
        try:
            return _compiled(template).render({field: value for field, value in row.items() if value is not None})
        except Exception as problem:  # noqa: BLE001 (templates can raise anything)
            kinds = (f"{field}: {'null' if value is None else type(value).__name__}" for field, value in row.items())
            has = textwrap.shorten(", ".join(kinds), 200, placeholder=" …")
            raise PromptError(
                f"{where} does not fit the template of {self.DATASET} "
                f"({str(problem).replace('is undefined', 'is missing or null')}; it has {has}); correct the row, or "
                f"{key} in {self.path}"
            ) from None


def dataset_named(name: str, source: str | Path = "hub") -> Dataset:
    """The data set of the file params/datasets/<name>.yaml; PromptError if there is none.

    source: with a .txt file, whose lines are the prompts, any name is allowed.
    """
    if name not in params_files("datasets") and Path(source).suffix.lower() == ".txt":
        return Dataset.model_validate({"DATASET": name})
    if Path(name).suffix.lower() in FORMATS:
        if not path_of(name).exists():
            raise PromptError(f"no such file: {name}")
        of, column = "the one whose fields its rows have, such as gsm8k", ', column="text"'
        if name.lower().endswith(".txt"):
            of, column = "a name of your choice", ""
        raise PromptError(
            f"{name} is a file: set SOURCE to it, and DATASET to {of}; in Python: dl.load_prompts({name!r}{column})"
        )
    if problem := not_among(params_files("datasets"), "data set", name):
        if path_of(name).is_file():
            problem = f"{name} is not a supported kind of file; use a .txt, .jsonl, .csv or .parquet file"
        elif source not in NAMED_SOURCES:
            problem = (
                f"DATASET {name} has no template for the rows of {source}; write params/datasets/{name}.yaml with FILE "
                "and TEMPLATE, or use a data set with the same fields, such as gsm8k"
            )
        raise PromptError(problem)
    kind = Dataset.model_validate(find_dataset(name))
    ships = name in DRAWN or name in SAMPLES and source != "hub"
    if source in NAMED_SOURCES and not (kind.REPOSITORY or kind.FILE or ships):
        raise PromptError(f"{kind.path} sets neither REPOSITORY nor FILE; add one, or use a file as the source")
    return kind


@cache
def _compiled(template: str) -> Template:
    return _TEMPLATES.from_string(template)


def with_levels() -> list[str]:
    """The data sets with difficulty levels; files that cannot be read are left out."""
    names = []
    for name in params_files("datasets"):
        with suppress(ParamsError):
            names += [name] if (find_dataset(name) or {}).get("LEVEL") else []
    return names
