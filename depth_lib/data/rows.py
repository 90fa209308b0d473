"""Rows of a dataset: of the Hub, of a local file, or of the sample that ships with the package."""

import json
from collections.abc import Iterator
from pathlib import Path

from ..embedded import prompts_path
from ..hub import without_retries

NAMED_SOURCES = ("hub", "embedded", "sample")  # any other is a file


class PromptError(ValueError):
    """What was asked for cannot be turned into prompts; the message is one line and ends with the next step."""


Place = tuple[str, str | None, str]  # repository, configuration and split on the Hub


def read_rows(dataset: str, place: Place, source: str | Path) -> tuple[str, Iterator[tuple[int, dict]]]:
    """What the source is called, and its rows with their numbers from 1; PromptError where it cannot be read."""
    if source == "hub":
        return place[0], enumerate(_hub_rows(dataset, *place), 1)
    path = prompts_path(dataset, published=source == "sample") if source in NAMED_SOURCES else Path(source)
    if path.suffix not in (".jsonl", ".parquet"):
        raise PromptError(
            f'unknown source "{source}"; use "hub", "embedded", "sample" or the path of a .jsonl or .parquet file'
        )
    if not path.is_file():
        raise PromptError(f'no file {path}; check the path or use source="embedded"')
    return str(path), _jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path)


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


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except ValueError as problem:
                raise PromptError(f"{path} row {number} is not JSON ({problem}); write one object a line") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise PromptError(f"{path} is not a readable parquet file ({reason}); write it again") from None
    return enumerate(table.to_pylist(), 1)
