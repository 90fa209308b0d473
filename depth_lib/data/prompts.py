"""Prompts: rows of the Hub, a local file or an embedded sample, as plain text."""

import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import path_of
from ..params import NAMED_SOURCES, not_among, warn
from .datasets import Dataset, dataset_named
from .drawn import DRAWN
from .rows import PromptError, check_count, column_of, file_rows, from_hub

if TYPE_CHECKING:
    from nnsight import TransformersModel
    from transformers import PreTrainedTokenizerBase

# The papers' pair for residual erasure and integrated gradients.
QUESTION = "5 + 7 + 5 + 3 + 1 + 7 = "
ANSWER = "28"


def load_prompts(
    dataset: str | Path,
    n_examples: int | None = None,
    source: str | Path = "hub",
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    seed: int | None = None,
    part: str = "all",
    llm: "TransformersModel | None" = None,
    column: str | None = None,
) -> list[str]:
    """The first n_examples prompts of a data set, as the papers word them (arXiv 2505.13898, 2512.14064).

    >>> dl.load_prompts("gsm8k", 1, source="embedded")[0][:40]
    'Given the following problem, reason and '

    - dataset: "gsm8k", "hellaswag", "aime24"; drawn at random: "addition", "multiplication", "sums"; with levels of
      difficulty: "mquake", "math". Or the name of a file params/datasets/<name>.yaml, a .txt file with one prompt per
      line, or with `column` a .jsonl, .csv or .parquet file
    - n_examples: by default N_EXAMPLES of the data set's params file (gsm8k: 10), or all prompts of a file. If there
      are fewer rows, all are used, with a warning
    - source: one of
      - "hub"
      - "embedded": ships with the package; like the text that the toy models were trained on
      - "sample": ships with the package, for models other than the toy models: the first 12 rows of GSM8K's test split;
        for other data sets, rows written for this package
      - a .jsonl, .csv, .parquet or .txt file
    - tokenizer: counts the tokens of aime24's prompts; those over 400 tokens are left out. The default is the papers'
      tokenizer, from the Hub
    - seed: the seed of a data set that is drawn at random (default 123)
    - part: "all", the question with its answer, as in the papers; "question"; or "answer"
    - llm: leave out prompts with more tokens than this model has positions, with a warning
    - column: the column of the file that has the prompts

    Raises PromptError for an unknown data set or source, an unreachable Hub, or a row without the data set's fields.
    Cost: no forward pass.
    """
    if n_examples is not None:
        check_count("n_examples", n_examples)
    if problem := not_among(("all", "question", "answer"), "part", part):
        raise PromptError(problem)
    dataset = str(dataset)
    suffix = Path(dataset).suffix.lower()
    alone = column is not None or suffix == ".txt"
    if alone and (source != "hub" or not suffix):
        raise PromptError(
            f"source= does not apply to {dataset}, which is itself the file of prompts; leave it out"
            if column is None
            else "column= applies only to a file passed as the first argument, without source=: "
            'dl.load_prompts("mine.jsonl", column="text")'
        )
    if alone:
        dataset, source = Path(dataset).stem, path_of(dataset)
    kind = Dataset.model_validate({"DATASET": dataset}) if alone else dataset_named(dataset, source)
    if seed is not None and not (dataset in DRAWN and source in NAMED_SOURCES):
        raise PromptError(f"{dataset} is not drawn at random, so seed= is not used; leave it out")
    if tokenizer is not None and not (hasattr(tokenizer, "decode") and kind.MAX_TOKENS):
        unused = f"{dataset}'s prompts have no token limit, so tokenizer= is not used"
        problem = f"tokenizer must be a transformers tokenizer, got {type(tokenizer).__name__}"
        raise PromptError(f"{problem if kind.MAX_TOKENS else unused}; leave it out")
    prompts, too_long = [], 0
    wanted = n_examples or (math.inf if alone else kind.N_EXAMPLES)
    limit = kind.MAX_TOKENS if tokenizer or source == "hub" else None
    if limit and not tokenizer:
        if not kind.LENGTH_TOKENIZER:
            raise PromptError(f"{kind.path} sets MAX_TOKENS without LENGTH_TOKENIZER; set both, or pass tokenizer=")
        tokenizer = _length_tokenizer(dataset, kind.LENGTH_TOKENIZER)
    seed = 123 if seed is None else seed
    rows = kind.rows(source, seed) if column is None else column_of(file_rows(Path(source)), column)
    for where, row in rows:
        if limit and tokenizer and len(tokenizer.encode(kind.prompt(where, row))) > limit:
            too_long += 1
            continue
        prompts.append(kind.prompt(where, row, part))
        if len(prompts) == wanted:
            break
    longer = f" ({too_long} more are longer than {limit} tokens)" if too_long else ""
    name = source if alone or Path(source).suffix.lower() == ".txt" else kind.name_of(source)
    if not prompts:
        raise PromptError(f"{name} has no prompts{longer}; use a source with at least one")
    if len(prompts) < wanted < math.inf:
        warn(f"{name} has only {len(prompts)} prompts{longer}, not {wanted}; using all of them")
    if llm is None:
        return prompts
    from .tokens import fitting  # loads torch, which status and sweeps do without

    tokenizer_of(llm)
    return fitting(llm, prompts)


def chat_prompts(
    llm: "TransformersModel", questions: Sequence[str], system: str | None = None, **template_options: object
) -> list[str]:
    """Questions as a chat model reads them, up to where its response begins.

    >>> llm = dl.load_model("toy-4l")
    >>> llm.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %} assistant:"
    >>> dl.chat_prompts(llm, ["5 + 7 = ?"])
    ['user: 5 + 7 = ? assistant:']

    - llm: from `load_model`; its tokenizer's chat template is applied
    - questions: list of strings, one user message each
    - system: the system message, if any
    - template_options: options of the template, such as enable_thinking=False

    Raises ValueError for a tokenizer without a chat template, an option that the template does not read, or messages
    that it refuses or drops. A question must not contain the template's special tokens, nor the text with which the
    template begins a response.
    Cost: no forward pass.
    """
    from .tokens import template_marks, texts_of

    if not isinstance(tokenizer_of(llm).chat_template or [], str | dict):
        raise ValueError(
            f"the tokenizer of {llm.config._name_or_path or 'this model'} has no chat template; use plain prompts, or "
            "set tokenizer.chat_template, a string, and save the tokenizer with the model"
        )
    own = {"add_generation_prompt": True, "tokenize": False}
    if taken := [name for name in template_options if name in own]:
        raise ValueError(f"chat_prompts sets {taken[0]} itself; leave it out")
    words = {*re.findall(r"\w+", str(llm.tokenizer.chat_template))} - {*own}
    if unread := [name for name in template_options if name not in words]:
        hint = f"did you mean {near[0]}?" if (near := get_close_matches(unread[0], words, 1)) else "leave it out"
        raise ValueError(f"the chat template has no option {unread[0]}; {hint}")
    questions, marks = texts_of(questions, "question"), template_marks(llm.tokenizer)
    for number, question in enumerate(questions):
        if mark := next((mark for mark in marks if mark in question), ""):
            raise ValueError(f"question {number} already has the chat template's {mark}; pass the bare question")
    before = [{"role": "system", "content": system}] if system else []
    try:
        texts = [
            llm.tokenizer.apply_chat_template(
                [*before, {"role": "user", "content": question}], **template_options, **own
            )
            for question in questions
        ]
    except Exception as error:  # noqa: BLE001 (a template is code: of Python's or of jinja's errors, any)
        raise ValueError(
            f"the chat template rejects these messages: {error}; change system or the options, or correct the template"
        ) from None
    for question, text in zip(questions, texts, strict=True):
        for what, content in (("the question", question), ("system", system or "")):
            if "".join(content.split()) not in "".join(text.split()):  # some templates change white space
                raise ValueError(f"the chat template drops {what} {content!r}; leave it out, or correct the template")
    return texts


def _length_tokenizer(dataset: str, name: str) -> Any:
    from transformers import AutoTokenizer  # takes seconds, and most data sets do not need it

    with from_hub(dataset, name):
        return AutoTokenizer.from_pretrained(name)


def tokenizer_of(llm: Any) -> Any:
    """A model's tokenizer; PromptError for anything other than a model from dl.load_model."""
    if not hasattr(llm, "tokenizer"):
        raise PromptError(f"llm must be a model, got {type(llm).__name__}; use llm = dl.load_model(name)")
    return llm.tokenizer
