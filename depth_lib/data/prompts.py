"""Prompts: rows of the Hub, of a local file or of the embedded sample, written out as plain text."""

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from ..hub import without_retries
from .datasets import DRAWN, Dataset
from .rows import PromptError, unreachable

# The pair that residual erasure and integrated gradients look at.
QUESTION = "5 + 7 + 5 + 3 + 1 + 7 = "
ANSWER = "28"


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
    "multiplication"; with levels of difficulty (see `load_examples`) "mquake", "math" and, drawn, "sums"; or the name
    of a file params/datasets/<name>.yaml in the working directory. n_examples: 10 unless given, 5 for aime24; with
    fewer rows than that, all there are and a warning. source: "hub"; what ships with the package: "embedded" (rows of
    our own, of the kind that the toys were trained on) or "sample" (for language models: the first 12 rows of GSM8K's
    test split, of the others ours); the path of a .jsonl or .parquet file whose rows have the Hub's fields; or of a
    .txt file, one prompt per line. tokenizer: aime24 keeps only prompts of at most 400 of its tokens; left out, the
    Hub's rows are counted by Qwen2.5-1.5B-Instruct's tokenizer, as the papers do, and other sources are not filtered.
    Raises PromptError: unknown dataset or source, Hub unreachable, no rows, a row that does not fit.
    """
    if n_examples is not None and (not isinstance(n_examples, int) or n_examples < 1):
        raise PromptError(f"n_examples is {n_examples!r}; give a whole number of at least 1")
    if dataset in DRAWN:
        return list(itertools.islice(_drawn(dataset, length, seed), n_examples or 10))
    rows_of, prompts, too_long = Dataset(dataset), [], 0
    params = rows_of.params
    wanted = n_examples or (10 if params.LEVEL else params.N_EXAMPLES)
    if params.MAX_TOKENS and tokenizer is None and source == "hub":
        tokenizer = _length_tokenizer(dataset, params.LENGTH_TOKENIZER)
    limit = params.MAX_TOKENS if tokenizer is not None else None
    for where, row in rows_of.rows(source):
        prompt = rows_of.prompt(where, row)
        if limit and len(tokenizer.encode(prompt)) > limit:
            too_long += 1
            continue
        prompts.append(prompt)
        if len(prompts) == wanted:
            return prompts
    longer = f" ({too_long} more are longer than {limit} tokens)" if too_long else ""
    name = (params.FILE or params.REPOSITORY) if source == "hub" else source
    if not prompts:
        raise PromptError(f"{name} has no {dataset} prompt{longer}; give a source with at least one")
    warnings.warn(f"{name} has {len(prompts)} {dataset} prompts{longer}, not {wanted}: using those", stacklevel=2)
    return prompts


def one_sum(rng: random.Random, terms: int) -> tuple[str, str]:
    """Question and answer of a sum of `terms` digits 0–9, such as ("5 + 7 + 5 = ", "17")."""
    digits = [rng.randrange(10) for _ in range(terms)]
    return " + ".join(map(str, digits)) + " = ", str(sum(digits))


def _drawn(dataset: str, length: int, seed: int) -> Iterator[str]:
    if length < 1:
        raise PromptError(f"length is {length!r}; give the operands' digits, a whole number of at least 1")
    rng = random.Random(seed)
    while True:
        if dataset == "sums":
            yield "".join(one_sum(rng, rng.randint(2, 6)))
        else:
            a, b = (rng.randint(10 ** (length - 1), 10**length - 1) for _ in range(2))
            operation = f"{a} + {b} = {a + b}" if dataset == "addition" else f"{a} * {b} = {a * b}"
            yield f"Give the answer directly: {operation}"


def _length_tokenizer(dataset: str, name: str) -> Callable:
    from transformers import AutoTokenizer  # takes seconds, and most datasets do not need it

    try:
        with without_retries(name):
            return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as problem:
        raise PromptError(f"{unreachable(dataset, name, problem)}, or pass tokenizer=") from problem
