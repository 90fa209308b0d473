"""The datasets as prompts: rows of the Hub, of a local file or of the embedded sample, written out as plain text.

A row always has the Hub's own fields, wherever it comes from, so one writer a dataset is enough.
"""

import json
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .embedded import prompts_path
from .hub import without_retries

# The pair that residual erasure and integrated gradients look at.
QUESTION = "5 + 7 + 5 + 3 + 1 + 7 = "
ANSWER = "28"

NAMED_SOURCES = ("hub", "embedded", "sample")  # any other is a file

# The papers count aime24's tokens with this one whatever model is probed, so that all models see the same prompts.
LENGTH_TOKENIZER = "Qwen/Qwen2.5-1.5B-Instruct"


class PromptError(ValueError):
    """What was asked for cannot be turned into prompts; the message is one line and ends with the next step."""


def _write_gsm8k(row: dict) -> str:
    steps, mark, answer = row["answer"].partition("####")
    if not mark:
        raise PromptError('the answer has no "####" before its final number; write "<steps>\\n#### <number>"')
    return (
        "Given the following problem, reason and give a final answer to the problem.\n"
        f"Problem: {row['question']}\n"
        'Your response should end with "The final answer is [answer]" where [answer] is the response to the problem.'
        f"\n\n{steps}The final answer is {answer.strip()}"
    )


def _write_hellaswag(row: dict) -> str:
    endings, label = row["endings"], str(row["label"])
    if label not in {str(i) for i in range(len(endings))}:
        raise PromptError(f"label {label!r} is no index of its {len(endings)} endings; use a labelled split")
    ending = str(endings[int(label)])
    return row["ctx"] + ending if ending.startswith(",") else f"{row['ctx']} {ending}"


def _write_aime24(row: dict) -> str:
    return (
        "Given the following problem, reason and give a final answer to the problem.\n"
        f"Problem: {row['Problem']}\n"
        'Your response should end with "\\boxed{[answer]}" where [answer] is the response to the problem.'
        f"\n\n{row['Solution']}"
    )


@dataclass(frozen=True)
class Dataset:
    """Where a dataset's rows are on the Hub, the fields a row must have, and how a row is written as a prompt."""

    repo: str
    config: str | None
    split: str
    fields: dict[str, type | tuple[type, ...]]
    write: Callable[[dict], str]
    n_examples: int = 10
    max_tokens: int | None = None


DATASETS = {
    "gsm8k": Dataset("openai/gsm8k", "main", "test", {"question": str, "answer": str}, _write_gsm8k),
    "hellaswag": Dataset(
        "Rowan/hellaswag", None, "validation", {"ctx": str, "endings": list, "label": (str, int)}, _write_hellaswag
    ),
    "aime24": Dataset(
        "Maxwell-Jia/AIME_2024", None, "train", {"Problem": str, "Solution": str}, _write_aime24, 5, max_tokens=400
    ),
}
DRAWN = {"addition": "+", "multiplication": "*"}


def load_prompts(
    dataset: str,
    n_examples: int | None = None,
    source: str | Path = "hub",
    tokenizer: Callable | None = None,
    length: int = 6,
    seed: int = 123,
) -> list[str]:
    """The first n_examples prompts of a dataset, as the papers word them (arXiv 2505.13898, 2512.14064).

    dataset: "gsm8k", "hellaswag", "aime24", or drawn with `seed` from operands of `length` digits: "addition",
    "multiplication". n_examples: 10 unless given, 5 for aime24; with fewer rows than that, all there are and a warning.
    source: "hub"; what ships with the package: "embedded" (rows of our own, the kind that the toys were trained on) or
    "sample" (for language models: the first 12 rows of GSM8K's test split, of the others ours); or the path of a
    .jsonl or .parquet file whose rows have the Hub's fields. tokenizer: aime24 keeps only prompts of at most 400 of its
    tokens; left out, the Hub's rows are counted by Qwen2.5-1.5B-Instruct's tokenizer, as the papers do, and other
    sources are not filtered.
    Raises PromptError: unknown dataset or source, Hub unreachable, no rows, a row that does not fit.
    """
    if dataset not in DATASETS and dataset not in DRAWN:
        known = [*DATASETS, *DRAWN]
        near = get_close_matches(str(dataset).lower(), known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(known)}"
        raise PromptError(f"unknown dataset {dataset!r}; {hint}")
    wanted = (DATASETS[dataset].n_examples if dataset in DATASETS else 10) if n_examples is None else n_examples
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise PromptError(f"n_examples is {n_examples!r}; give a whole number of at least 1")
    if dataset in DRAWN:
        return _draw(DRAWN[dataset], wanted, length, seed)

    name, rows = _rows(dataset, source)
    spec, prompts, too_long = DATASETS[dataset], [], 0
    if spec.max_tokens and tokenizer is None and source == "hub":
        tokenizer = _length_tokenizer()
    for number, row in rows:
        prompt = _write(spec, dataset, f"{name} row {number}", row)
        if spec.max_tokens and tokenizer is not None and len(tokenizer.encode(prompt)) > spec.max_tokens:
            too_long += 1
            continue
        prompts.append(prompt)
        if len(prompts) == wanted:
            return prompts
    longer = f" ({too_long} more are longer than {spec.max_tokens} tokens)" if too_long else ""
    if not prompts:
        raise PromptError(f"{name} has no {dataset} prompt{longer}; give a source with at least one")
    warnings.warn(f"{name} has {len(prompts)} {dataset} prompts{longer}, not {wanted}: using those", stacklevel=2)
    return prompts


def _draw(sign: str, n_examples: int, length: int, seed: int) -> list[str]:
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise PromptError(f"length is {length!r}; give the operands' digits, a whole number of at least 1")
    rng, prompts = random.Random(seed), []
    for _ in range(n_examples):
        a, b = (rng.randint(10 ** (length - 1), 10**length - 1) for _ in range(2))
        prompts.append(f"Give the answer directly: {a} {sign} {b} = {a + b if sign == '+' else a * b}")
    return prompts


def _write(spec: Dataset, dataset: str, where: str, row: dict) -> str:
    if not isinstance(row, dict):
        raise PromptError(f"{where} is not an object; a {dataset} row has the fields {', '.join(spec.fields)}")
    for field, kind in spec.fields.items():
        value = row.get(field)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is {type(value).__name__}"
            raise PromptError(f"{where}: {field!r} {found}; a {dataset} row has the fields {', '.join(spec.fields)}")
    try:
        return spec.write(row)
    except PromptError as problem:
        raise PromptError(f"{where}: {problem}") from None


def _rows(dataset: str, source: str | Path) -> tuple[str, Iterator[tuple[int, dict]]]:
    if source == "hub":
        return DATASETS[dataset].repo, enumerate(_hub_rows(dataset), 1)
    path = prompts_path(dataset, published=source == "sample") if source in NAMED_SOURCES else Path(source)
    if path.suffix not in (".jsonl", ".parquet"):
        raise PromptError(
            f'unknown source "{source}"; use "hub", "embedded", "sample" or the path of a .jsonl or .parquet file'
        )
    if not path.is_file():
        raise PromptError(f'no file {path}; check the path or use source="embedded"')
    return str(path), _jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path)


def _hub_rows(dataset: str) -> Iterator[dict]:
    import datasets  # takes seconds, and the embedded sample does not need it

    spec = DATASETS[dataset]
    try:
        with without_retries(spec.repo):
            return iter(datasets.load_dataset(spec.repo, spec.config, split=spec.split))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as problem:
        raise PromptError(_unreachable(f"{dataset} ({spec.repo})", problem)) from problem


def _length_tokenizer():
    from transformers import AutoTokenizer

    try:
        with without_retries(LENGTH_TOKENIZER):
            return AutoTokenizer.from_pretrained(LENGTH_TOKENIZER)
    except (OSError, ValueError) as problem:
        message = _unreachable(f"aime24's tokenizer ({LENGTH_TOKENIZER})", problem)
        raise PromptError(f"{message}, or pass tokenizer=") from problem


def _unreachable(what: str, problem: Exception) -> str:
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
