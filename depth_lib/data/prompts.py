"""Prompts: rows of the Hub, a local file or an embedded sample, as plain text."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

from .datasets import dataset_named
from .rows import PromptError, check_count, from_hub

# The papers' pair for residual erasure and integrated gradients.
QUESTION = "5 + 7 + 5 + 3 + 1 + 7 = "
ANSWER = "28"


def load_prompts(
    dataset: str,
    n_examples: int | None = None,
    source: str | Path = "hub",
    tokenizer: Callable | None = None,
    seed: int = 123,
) -> list[str]:
    """The first n_examples prompts of a dataset, as the papers word them (arXiv 2505.13898, 2512.14064).

    >>> dl.load_prompts("gsm8k", 1, source="embedded")[0][:40]
    'Given the following problem, reason and '

    dataset: "gsm8k", "hellaswag", "aime24", or drawn with `seed` from operands of six digits: "addition",
    "multiplication"; with levels of difficulty (see `load_examples`) "mquake", "math" and, drawn, "sums"; or the name
    of a file params/datasets/<name>.yaml in the working directory; or a .txt file, one prompt per line. n_examples: 10
    unless given, 5 for aime24, all where the dataset is a .txt file; with fewer rows than that, all there are and a
    warning. source: "hub"; what ships with the package: "embedded" (rows of our own, of the kind that the toys were
    trained on) or "sample" (for language models: the first 12 rows of GSM8K's test split, of the others ours); the path
    of a .jsonl or .parquet file whose rows have the Hub's fields; or of a .txt file, one prompt per line. tokenizer:
    aime24 keeps only prompts of at most 400 of its tokens; left out, the Hub's rows are counted by
    Qwen2.5-1.5B-Instruct's tokenizer, as the papers do, and other sources are not filtered. Raises PromptError: unknown
    dataset or source, Hub unreachable, no rows, a row that does not fit.
    Cost: no forward pass.
    """
    if n_examples is not None:
        check_count("n_examples", n_examples)
    alone = Path(dataset).suffix == ".txt"
    if alone:
        dataset, source = Path(dataset).stem, Path(dataset).expanduser()
    kind, prompts, too_long = dataset_named(dataset, source), [], 0
    wanted = n_examples or (math.inf if alone else 10 if kind.LEVEL else kind.N_EXAMPLES)
    limit = kind.MAX_TOKENS if tokenizer or source == "hub" else None
    if limit and not tokenizer:
        if not kind.LENGTH_TOKENIZER:
            raise PromptError(f"{kind.path} has MAX_TOKENS without LENGTH_TOKENIZER; give its name too, or tokenizer=")
        tokenizer = _length_tokenizer(dataset, kind.LENGTH_TOKENIZER)
    for where, row in kind.rows(source, seed):
        prompt = kind.prompt(where, row)
        if limit and tokenizer and len(tokenizer.encode(prompt)) > limit:
            too_long += 1
            continue
        prompts.append(prompt)
        if len(prompts) == wanted:
            return prompts
    longer = f" ({too_long} more are longer than {limit} tokens)" if too_long else ""
    name = source if alone or Path(source).suffix == ".txt" else f"{dataset} from {source}"
    if not prompts:
        raise PromptError(f"{name} has no prompt{longer}; give a source with at least one")
    if wanted < math.inf:
        warnings.warn(f"{name} has {len(prompts)} prompts{longer}, not {wanted}: using those", stacklevel=2)
    return prompts


def _length_tokenizer(dataset: str, name: str) -> Callable:
    from transformers import AutoTokenizer  # takes seconds, and most datasets do not need it

    with from_hub(dataset, name):
        return AutoTokenizer.from_pretrained(name)
