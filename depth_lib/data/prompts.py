"""The datasets as prompts: rows of the Hub, of a local file or of the embedded sample, written out as plain text.

A row always has the Hub's own fields, wherever it comes from, so one writer a dataset is enough.
"""

import random
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..hub import without_retries
from .rows import PromptError, read_rows, unreachable

# The pair that residual erasure and integrated gradients look at.
QUESTION = "5 + 7 + 5 + 3 + 1 + 7 = "
ANSWER = "28"

# The papers count aime24's tokens with this one whatever model is probed, so that all models see the same prompts.
LENGTH_TOKENIZER = "Qwen/Qwen2.5-1.5B-Instruct"


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


def _pair_mquake(row: dict) -> tuple[str, str]:
    if not row["questions"] or not isinstance(row["questions"][0], str):
        raise PromptError("'questions' does not begin with a text; write the question there")
    return f"Question: {row['questions'][0]}\nAnswer:", _said(row, "answer")


def _pair_math(row: dict) -> tuple[str, str]:
    return f"Problem: {row['problem']}\nAnswer:", _said(row, "solution")


def _said(row: dict, field: str) -> str:
    if not row[field].strip():
        raise PromptError(f"{field!r} is empty; write it, or leave the row out")
    return f" {row[field]}"


def _level_of_math(row: dict) -> int | None:
    number = row["level"].removeprefix("Level ")
    return int(number) if number.isdecimal() else None  # some rows have "Level ?"


@dataclass(frozen=True)
class Dataset:
    """Where a dataset's rows are on the Hub, the fields a row must have, and how a row is written as a prompt.

    Of a dataset with levels of difficulty also how it is cut into question and answer, the level of a row (None: it has
    none), how a row says it, and whether it is measured within the answer (see `examples.Example`).
    """

    repo: str
    config: str | None
    split: str
    fields: dict[str, type | tuple[type, ...]]
    write: Callable[[dict], str]
    n_examples: int = 10
    max_tokens: int | None = None
    pair: Callable[[dict], tuple[str, str]] | None = None
    level: Callable[[dict], int | None] | None = None
    level_said: str = ""
    within: bool = False

    @property
    def place(self) -> tuple[str, str | None, str]:
        """Repository, configuration and split on the Hub."""
        return self.repo, self.config, self.split


DATASETS = {
    "gsm8k": Dataset("openai/gsm8k", "main", "test", {"question": str, "answer": str}, _write_gsm8k),
    "hellaswag": Dataset(
        "Rowan/hellaswag", None, "validation", {"ctx": str, "endings": list, "label": (str, int)}, _write_hellaswag
    ),
    "aime24": Dataset(
        "Maxwell-Jia/AIME_2024", None, "train", {"Problem": str, "Solution": str}, _write_aime24, 5, max_tokens=400
    ),
    "mquake": Dataset(
        "henryzhongsc/MQuAKE-Remastered",
        None,
        "CF3k",
        {"questions": list, "answer": str, "orig_triples": list},
        lambda row: "".join(_pair_mquake(row)),
        pair=_pair_mquake,
        level=lambda row: len(row["orig_triples"]),
        level_said='"orig_triples", one for each hop',
    ),
    "math": Dataset(
        "EleutherAI/hendrycks_math",
        "intermediate_algebra",
        "test",
        {"problem": str, "level": str, "solution": str},
        lambda row: "".join(_pair_math(row)),
        pair=_pair_math,
        level=_level_of_math,
        level_said='"level", such as "Level 1"',
        within=True,
    ),
}
DRAWN = {
    "addition": lambda rng, length: _operation(rng, length, "+"),
    "multiplication": lambda rng, length: _operation(rng, length, "*"),
    "sums": lambda rng, length: "".join(one_sum(rng, rng.randint(2, 6))),
}


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
    "multiplication"; of several levels of difficulty (see `load_examples`) "mquake", "math" and, drawn, "sums".
    n_examples: 10 unless given, 5 for aime24; with fewer rows than that, all there are and a warning.
    source: "hub"; what ships with the package: "embedded" (rows of our own, the kind that the toys were trained on) or
    "sample" (for language models: the first 12 rows of GSM8K's test split, of the others ours); or the path of a
    .jsonl or .parquet file whose rows have the Hub's fields. tokenizer: aime24 keeps only prompts of at most 400 of its
    tokens; left out, the Hub's rows are counted by Qwen2.5-1.5B-Instruct's tokenizer, as the papers do, and other
    sources are not filtered.
    Raises PromptError: unknown dataset or source, Hub unreachable, no rows, a row that does not fit.
    """
    if dataset not in DATASETS and dataset not in DRAWN:
        raise PromptError(f"unknown dataset {dataset!r}; {nearest(dataset, [*DATASETS, *DRAWN])}")
    wanted = (DATASETS[dataset].n_examples if dataset in DATASETS else 10) if n_examples is None else n_examples
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise PromptError(f"n_examples is {n_examples!r}; give a whole number of at least 1")
    if dataset in DRAWN:
        return _draw(dataset, wanted, length, seed)

    spec, prompts, too_long = DATASETS[dataset], [], 0
    name, rows = read_rows(dataset, spec.place, source)
    if spec.max_tokens and tokenizer is None and source == "hub":
        tokenizer = _length_tokenizer()
    for number, row in rows:
        prompt = _written(dataset, f"{name} row {number}", row, spec.write)
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


def nearest(name: object, known: Collection[str]) -> str:
    """What to write in place of an unknown name: the nearest of the known ones, or any of them."""
    near = get_close_matches(str(name).lower(), known, n=3, cutoff=0.55)
    return f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(known)}"


def one_sum(rng: random.Random, terms: int) -> tuple[str, str]:
    """Question and answer of a sum of `terms` digits 0–9, such as ("5 + 7 + 5 = ", "17")."""
    digits = [rng.randrange(10) for _ in range(terms)]
    return " + ".join(map(str, digits)) + " = ", str(sum(digits))


def _draw(dataset: str, n_examples: int, length: int, seed: int) -> list[str]:
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise PromptError(f"length is {length!r}; give the operands' digits, a whole number of at least 1")
    rng = random.Random(seed)
    return [DRAWN[dataset](rng, length) for _ in range(n_examples)]


def _operation(rng: random.Random, length: int, sign: str) -> str:
    a, b = (rng.randint(10 ** (length - 1), 10**length - 1) for _ in range(2))
    return f"Give the answer directly: {a} {sign} {b} = {a + b if sign == '+' else a * b}"


def written_rows(dataset: str, source: str | Path, write: Callable[[dict], Any]) -> Iterator[Any]:
    """write(row) of every row of a dataset, each checked to have its fields; PromptError as `load_prompts`."""
    name, rows = read_rows(dataset, DATASETS[dataset].place, source)
    return (_written(dataset, f"{name} row {number}", row, write) for number, row in rows)


def _written(dataset: str, where: str, row: dict, write: Callable[[dict], Any]) -> Any:
    """write(row), of a row that has the fields of its dataset."""
    fields = DATASETS[dataset].fields
    if not isinstance(row, dict):
        raise PromptError(f"{where} is not an object; a {dataset} row has the fields {', '.join(fields)}")
    for field, kind in fields.items():
        value = row.get(field)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is {type(value).__name__}"
            raise PromptError(f"{where}: {field!r} {found}; a {dataset} row has the fields {', '.join(fields)}")
    try:
        return write(row)
    except PromptError as problem:
        raise PromptError(f"{where}: {problem}") from None


def _length_tokenizer():
    from transformers import AutoTokenizer

    try:
        with without_retries(LENGTH_TOKENIZER):
            return AutoTokenizer.from_pretrained(LENGTH_TOKENIZER)
    except (OSError, ValueError) as problem:
        message = unreachable(f"aime24's tokenizer ({LENGTH_TOKENIZER})", problem)
        raise PromptError(f"{message}, or pass tokenizer=") from problem
