"""Rows of a dataset: of the Hub, of a local file, or of the sample that ships with the package."""

import json
from collections.abc import Iterator
from pathlib import Path

from ..embedded import SAMPLES, prompts_path
from ..hub import without_retries

NAMED_SOURCES = ("hub", "embedded", "sample")  # any other is a file
TEXT = "text"  # the only field of a row of a .txt file: a line, which is the prompt itself


class PromptError(ValueError):
    """What was asked for cannot be turned into prompts; the message is one line and ends with the next step."""


Place = tuple[str, str | None, str]  # repository, configuration and split on the Hub


def read_rows(dataset: str, place: Place, source: str | Path) -> tuple[str, Iterator[tuple[int, dict]]]:
    """What the source is called, and its rows with their numbers from 1; PromptError where it cannot be read."""
    if source == "hub":
        if place[0] is None:
            raise PromptError(f"{dataset} has neither REPOSITORY nor FILE in its YAML; give one, or source=")
        return place[0], enumerate(_hub_rows(dataset, *place), 1)
    if source in NAMED_SOURCES and dataset not in SAMPLES:
        raise PromptError(f"no sample of {dataset} ships with the package (of {', '.join(SAMPLES)} do); give a file")
    path = prompts_path(dataset, published=source == "sample") if source in NAMED_SOURCES else Path(source)
    readers = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows, ".txt": _lines}
    if path.suffix not in readers:
        raise PromptError(
            f'unknown source "{source}"; use "hub", "embedded", "sample" or the path of a .jsonl, .parquet or .txt file'
        )
    if not path.is_file():
        raise PromptError(f'no file {path}; check the path or use source="embedded"')
    return str(path), readers[path.suffix](path)


def _hub_rows(dataset: str, repo: str, config: str | None, split: str) -> Iterator[dict]:
    import datasets  # takes seconds, and the embedded sample does not need it

    try:
        with without_retries(repo):
            return iter(datasets.load_dataset(repo, config, split=split))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as problem:
        raise PromptError(unreachable(f"{dataset} ({repo})", problem)) from problem


def unreachable(what: str, problem: Exception) -> str:
    """The error for what the Hub did not give."""
    reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
    return (
        f"could not load {what} from the Hub: {reason}; check the network and the name, "
        'or use source="embedded" or the path of a .jsonl or .parquet file'
    )


def _lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Every line that is not blank, as a row."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise PromptError(f"{path} row {number} is not UTF-8; save the file as UTF-8") from None
            if text.strip():
                yield number, {TEXT: text}


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict]]:
    for number, row in _lines(path):
        try:
            yield number, json.loads(row[TEXT])
        except ValueError as problem:
            raise PromptError(f"{path} row {number} is not JSON ({problem}); write one object per line") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise PromptError(f"{path} is not a readable parquet file ({reason}); write it again") from None
    return enumerate(table.to_pylist(), 1)
