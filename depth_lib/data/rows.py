"""Rows of files, and the errors of data sets: unreadable files, an unreachable Hub."""

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from ..embedded import SAMPLES
from ..hub import without_retries
from ..params import ParamsError

FORMATS = {
    ".txt": "one prompt per line, in UTF-8",
    ".jsonl": "one JSON object per line, in UTF-8",
    ".csv": "a line of column names, then a row per line, in UTF-8",
    ".parquet": "Parquet",
}


class PromptError(ParamsError):
    """Prompts cannot be read; the message says what to do next."""


def check_count(name: str, count: int) -> None:
    """PromptError if this argument is not at least 1."""
    if count < 1:
        raise PromptError(f"{name} must be at least 1, got {count!r}")


@contextlib.contextmanager
def from_hub(dataset: str, repository: str) -> Iterator[None]:
    """Raise PromptError if this block fails to load something from a repository of the Hub."""
    try:
        with without_retries(repository):
            yield
    except Exception as problem:  # noqa: BLE001 (a dozen kinds, of names, files and networks)
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
        sample = '"sample" (--source sample) or ' if dataset in SAMPLES else ""
        raise PromptError(
            f"could not load {repository} for {dataset} from the Hub: {reason}; check the network and the name, "
            f"or use {sample}a .jsonl, .csv or .parquet file as the source"
        ) from problem


def file_rows(path: Path) -> Iterator[tuple[str, dict | str]]:
    """Every row of a file, after its name in error messages. The rows of a .txt file are its lines; blank lines are
    skipped, but counted. PromptError if the file is unreadable."""
    if path.suffix.lower() not in FORMATS:
        sources = "" if path.suffix else ', or the source "hub", "embedded" or "sample"'
        raise PromptError(f"{path} is not a .jsonl, .csv, .parquet or .txt file; use one of these{sources}")
    if not path.is_file():
        raise PromptError(f"{'a folder, not a file' if path.is_dir() else 'no such file'}: {path.absolute()}")
    number = 0
    try:
        for number, row in enumerate(_read(path), 1):
            if row is not None:
                yield f"{path} row {number}", row
    except (OSError, ValueError, RecursionError, csv.Error) as problem:
        reason = str(problem).splitlines()[0]
        form = FORMATS[path.suffix.lower()]
        raise PromptError(f"cannot read {path} row {number + 1} ({reason}); expected {form}") from None


def _read(path: Path) -> Iterator[dict | str | None]:
    """The rows of a file; None for a blank line."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        import pyarrow.parquet  # takes a moment

        yield from pyarrow.parquet.read_table(path).to_pylist()
        return
    with path.open(encoding="utf-8-sig", newline="") as file:  # a line break inside a cell stays
        if "\0" in file.read(4096):
            raise ValueError("it contains NUL characters, as UTF-16 does")
        file.seek(0)
        if kind == ".csv":
            csv.field_size_limit(2**31 - 1)  # not 128 KiB a cell
            table = csv.DictReader(file, strict=True)
            if len(set(names := table.fieldnames or [])) < len(names):
                raise ValueError("two columns have the same name")
            for row in table:
                if None in row:
                    raise ValueError("it has more cells than the table has columns: put texts with a comma in quotes")
                yield row
        for line in file:
            if not line.strip():
                yield None
            elif kind == ".txt":
                yield line.rstrip("\r\n")
            elif isinstance(row := json.loads(line), dict):
                yield row
            else:
                raise ValueError("it is not an object")


def column_of(rows: Iterator[tuple[str, dict | str]], column: str) -> Iterator[tuple[str, str]]:
    """The text in a column of each row; PromptError for a row without it."""
    for where, row in rows:
        if isinstance(row, str):
            raise PromptError("a .txt file has no columns; leave column= out")
        if not isinstance(row.get(column), str) or not row[column]:
            has = ", ".join(key for key in row if isinstance(row[key], str) and row[key])
            raise PromptError(f"{where} has no text in the column {column!r}; columns with text: {has or 'none'}")
        yield where, row[column]
