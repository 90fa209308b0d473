"""Rows of a dataset: of the Hub, of a local file, or of the sample that ships with the package."""

import json
from collections.abc import Iterator
from pathlib import Path

from ..embedded import SAMPLES, prompts_path
from ..hub import without_retries

NAMED_SOURCES = ("hub", "embedded", "sample")  # any other is a file
TEXT = "text"  # the only field of a row of a .txt file: a line, which is the prompt itself


class PromptError(ValueError):
    """These prompts cannot be made; the message is one line and ends with the next step."""


def hub_rows(dataset: str, repository: str, config: str | None, split: str) -> Iterator[tuple[str, dict]]:
    """Every row of a dataset of the Hub with its name for errors; PromptError if it cannot be loaded."""
    import datasets  # takes seconds, and files do not need it

    try:
        with without_retries(repository):
            rows = datasets.load_dataset(repository, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as problem:
        raise PromptError(unreachable(dataset, repository, problem)) from problem
    for number, row in enumerate(rows, 1):
        yield f"{repository} row {number}", row


def file_rows(dataset: str, source: str | Path) -> Iterator[tuple[str, dict]]:
    """Every row of "embedded", "sample" or a file with its name for errors; PromptError if it cannot be read."""
    if source in NAMED_SOURCES and dataset not in SAMPLES:
        raise PromptError(f"no sample of {dataset} ships with the package (of {', '.join(SAMPLES)} do); give a file")
    path = prompts_path(dataset, published=source == "sample") if source in NAMED_SOURCES else Path(source)
    if path.suffix not in (".jsonl", ".parquet", ".txt"):
        raise PromptError(
            f'no source "{source}"; use "hub", "embedded", "sample" or the path of a .jsonl, .parquet or .txt file'
        )
    if not path.is_file():
        raise PromptError(f"no file {path}; check the path")
    number = 0
    try:
        for number, row in enumerate(_read(path), 1):
            if row is not None:
                yield f"{path} row {number}", row
    except (OSError, ValueError, TypeError) as problem:
        reason = str(problem).splitlines()[0]
        raise PromptError(
            f"{path} row {number + 1} cannot be read ({reason}); write parquet, or one JSON object per line in UTF-8"
        ) from None


def _read(path: Path) -> Iterator[dict | None]:
    """The rows of a file; None for a blank line."""
    if path.suffix == ".parquet":
        import pyarrow.parquet  # takes a moment

        yield from pyarrow.parquet.read_table(path).to_pylist()
        return
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            if not line.strip():
                yield None
                continue
            row = {TEXT: line.rstrip("\n")} if path.suffix == ".txt" else json.loads(line)
            if not isinstance(row, dict):
                raise TypeError("it is not an object")
            yield row


def unreachable(dataset: str, repository: str, problem: Exception) -> str:
    """The message for what a dataset needs and could not be loaded from the Hub."""
    reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
    sample = '"sample" or ' if dataset in SAMPLES else ""
    return (
        f"could not load {repository} for {dataset} from the Hub: {reason}; check the network and the name, "
        f"or use as source {sample}the path of a .jsonl or .parquet file"
    )
