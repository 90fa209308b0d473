"""Prompts as token ids, the positions that future mode draws, and where the tokens of an answer are."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from nnsight import TransformersModel
from transformers import GenerationConfig

from ..params import not_among, params_files, warn, whole
from .rows import FORMATS

_TABLES = (*FORMATS, ".json", ".tsv", ".xlsx", ".gz")  # what the name of a file of prompts may end in


def texts_of(texts: object, name: str = "prompt") -> list[str]:
    """The texts as a list.

    Raises ValueError if there are no texts, for the name of a file or a data set, for a table, and for anything
    else that is not a text.

    name: what messages call a text.
    """
    texts = [texts] if isinstance(texts, str) else [] if texts is None else texts
    if _columns(texts) is not None:
        what = f"one column, such as data{column}" if (column := _text_column(texts)) else "the strings themselves"
        raise ValueError(f"expected a list of strings, got a {type(texts).__name__}; pass {what}")
    if isinstance(texts, bytes | set | frozenset) or not isinstance(texts, Iterable):  # the order of a set is arbitrary
        raise ValueError(f"{name}s must be a list of strings, got {type(texts).__name__}")
    texts = list(texts)
    for number, text in enumerate(texts):
        message = text[0] if isinstance(text, list) and text else text
        if isinstance(message, Mapping) and "role" in message:
            what = "a single chat message" if message is text else "a list of chat messages"
            to, prompt = (" to the probe", ", add_generation_prompt=True") if name == "question" else ("", "")
            chat = f"llm.tokenizer.apply_chat_template(messages, tokenize=False{prompt})"
            raise ValueError(f"{name} {number} is {what}; pass each chat{to} as one string: {chat}")
        if isinstance(text, Mapping):
            of_text = [key for key, value in text.items() if isinstance(value, str)]
            if not of_text:
                raise ValueError(
                    f"{name} {number} is a row without text (its columns: {', '.join(map(str, text))}); pass strings"
                )
            column = "text" if "text" in of_text else of_text[0]
            raise ValueError(f"{name} {number} is a row, not text; pass [row[{column!r}] for row in {name}s]")
        if not isinstance(text, str):
            raise ValueError(f"{name} {number} must be a string, got {'None' if text is None else type(text).__name__}")
        if (of_data := len(texts) == 1 and text in params_files("datasets")) or _is_file(text):
            column = "" if of_data or text.endswith(".txt") else ', column="text"'
            what = "data set" if of_data else "file"
            how = f"pass its texts: dl.load_prompts({text!r}{column})"
            if not of_data and Path(text).suffix.lower() not in FORMATS:
                how = "pass its text, or use a .txt, .jsonl, .csv or .parquet file with dl.load_prompts"
            raise ValueError(f"{text!r} is the name of a {what}; {how}")
    if not texts:
        raise ValueError(f"there are no {name}s; load some with dl.load_prompts(...)")
    return texts


def _columns(table):
    """The names of a table's columns; None for what is not a table."""
    if isinstance(table, Mapping):
        return list(table)
    return getattr(table, "column_names", getattr(table, "columns", None))  # of datasets, pandas and the like


def _text_column(table):
    """The index of the column `text`, or else of the first that holds texts: "['text']"; "" if there is none."""
    names = _columns(table)
    for name in sorted(names, key=lambda name: name != "text"):
        column = table[name]
        if _columns(column) is not None and (inner := _text_column(column)):
            return f"[{name!r}]{inner}"
        if not isinstance(column, str) and isinstance(column, Iterable) and isinstance(next(iter(column), None), str):
            return f"[{name!r}]"
    return ""


def _is_file(text):
    """Whether a text is the name of a file, or looks like that of a file of prompts."""
    path = Path(text[:200])
    if path.suffix.lower() in _TABLES and len(text.split()) == 1:
        return True
    try:
        return bool(path.suffix) and path.is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


def tokenize(llm: TransformersModel, prompts: Sequence[str], generate: int = 0) -> list[list[int]]:
    """The token ids of each prompt, after the tokens that the tokenizer puts before a text.

    generate: how many tokens the model will append to each. ValueError for a prompt without tokens, or for more tokens
    than the model has positions.
    """
    prompts = texts_of(prompts)
    return [_tokenized(llm, prompt, f"prompt {p}", generate)[0] for p, prompt in enumerate(prompts)]


def text_ids(tokenizer: Callable, text: str, offsets: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
    """The token ids of a text, and for each token the characters that it covers ([] unless `offsets`).

    BOS stands there once, even if the text begins with it. An EOS that the tokenizer appends is dropped.
    """
    # the text alone, so that what it begins and ends with itself can be told apart
    encoding = tokenizer(text, add_special_tokens=False, **({"return_offsets_mapping": True} if offsets else {}))
    ids, whole = encoding["input_ids"], tokenizer(text)["input_ids"]
    if not ids and whole[-1:] == [tokenizer.eos_token_id] != [tokenizer.bos_token_id]:
        whole = whole[:-1]
    found = (k for k in range(len(whole) - len(ids), -1, -1) if whole[k : k + len(ids)] == ids)
    before = whole[: next(found, 0)]
    if ids and (ids[: len(before)] == before or ids[0] == tokenizer.bos_token_id):
        before = []
    spans = [tuple(span) for span in encoding["offset_mapping"]] if offsets else []
    return before + ids, [(0, 0)] * len(before) + spans


def _tokenized(llm, text, name, generate=0, offsets=False):
    """The ids of a text that the model can read, and the characters of each token (see `text_ids`)."""
    try:
        ids, spans = text_ids(llm.tokenizer, text, offsets)
    except Exception as error:  # tokenizers raise Exception itself
        raise ValueError(
            f"{name} ({text!r}) cannot be tokenised (the tokenizer says: {error}); remove characters that the "
            "tokenizer cannot read, such as a lone surrogate"
        ) from error
    config = llm.config.get_text_config()
    if not ids:
        raise ValueError(f"{name} ({text!r}) has no tokens; leave it out")
    if max(ids) >= config.vocab_size:  # a GPU's process dies of a token that has no embedding
        raise ValueError(
            f"{name} has token {max(ids)}, but the model's config.vocab_size is {config.vocab_size}; pass the model's "
            "own tokenizer, or call model.resize_token_embeddings(len(tokenizer))"
        )
    # after the last position, learned embeddings fail (a GPU's process dies) and rotary ones give nonsense
    limit, n_tokens = positions_of(llm), len(ids) + max(generate - 1, 0)  # nobody reads the last one
    if limit and n_tokens > limit:
        if not generate or len(ids) > limit:
            raise ValueError(
                f"{name} has {len(ids)} tokens, but the model has {limit:.0f} positions; use a shorter text"
            )
        raise ValueError(
            f"{name} has {len(ids)} tokens; with {generate} generated ones it exceeds the model's {limit:.0f} "
            f"positions; generate at most {limit - len(ids) + 1:.0f}, or use a shorter text"
        )
    return ids, spans


def positions_of(llm: TransformersModel) -> float | None:
    """How many tokens the model can read; None if its config does not say."""
    config = llm.config.get_text_config()
    limit, rope = getattr(config, "max_position_embeddings", None), getattr(config, "rope_parameters", None) or {}
    if limit and rope.get("rope_type") in ("linear", "dynamic", "yarn"):  # some configs keep the unscaled length
        limit = max(limit, (rope.get("original_max_position_embeddings") or limit) * rope["factor"])
    return limit


def fitting(llm: TransformersModel, items: Sequence, text_of: Callable = str, generate: int = 0) -> list:
    """The items whose texts the model has positions for; a warning counts the others."""
    limit, more = positions_of(llm), max(generate - 1, 0)
    if not limit:
        return list(items)
    short = [item for item in items if len(text_ids(llm.tokenizer, text_of(item))[0]) + more <= limit]
    if n_long := len(items) - len(short):
        warn(f"{n_long} of {len(items)} prompts are longer than the model's {limit:.0f} positions and are left out")
    return short


def end_tokens(llm: TransformersModel) -> list[int]:
    """The tokens that end a text, as the checkpoint says: no token is generated after one of them."""
    sources = (getattr(llm._module, "generation_config", None), llm.config, llm.config.get_text_config(), llm.tokenizer)
    found = next((ids for source in sources if (ids := getattr(source, "eos_token_id", None)) is not None), [])
    return found if isinstance(found, list) else [found]


def greedy_settings(llm: TransformersModel) -> dict:
    """The arguments with which `generate` takes the most likely token: the defaults, and the checkpoint's special
    tokens."""
    own = getattr(llm._module, "generation_config", None)
    names = [] if own is None else [name for name, value in own.to_dict().items() if value is not None]
    default, kept = (
        GenerationConfig._get_default_generation_params(),
        ("max_length", "max_new_tokens", "transformers_version"),
    )
    reset = {name: default.get(name) for name in names if name not in kept and not name.endswith("_token_id")}
    stops = end_tokens(llm)
    return reset | {"do_sample": False} | ({"eos_token_id": stops} if stops else {})


def future_positions(lengths: list[int]) -> list[list[int]]:
    """The positions t of every prompt: the first 4 of range(8, T − 4, 8) after one shuffle by one Random(123)."""
    draw = random.Random(123)
    return [draw_four(range(8, n_tokens - 4, 8), draw) for n_tokens in lengths]


def draw_four(candidates: range, draw: random.Random) -> list[int]:
    """The first four of the candidates after a shuffle; all of them if there are fewer."""
    shuffled = list(candidates)
    draw.shuffle(shuffled)
    return shuffled[:4]


def answer_span(llm: TransformersModel, question: str, answer: str) -> tuple[list[int], list[int], list[str]]:
    """Token ids of question + answer, the positions of the answer's tokens, and the tokens as strings.

    The answer's tokens are those whose characters overlap the answer in the string tokenised once.
    """
    if not llm.tokenizer.is_fast:
        raise ValueError(
            "locating the answer needs character offsets; load the model with a fast tokenizer (tokenizer.json)"
        )
    ids, offsets = _tokenized(llm, question + answer, "the question with its answer", offsets=True)
    places = [i for i, (_, end) in enumerate(offsets) if end > len(question)]  # special tokens end at 0
    if not answer.strip() or not places:
        raise ValueError(f"the answer {answer!r} is blank or adds no token to the question; use a different answer")
    if places[0] == 0:
        raise ValueError(f"nothing precedes the answer {answer!r}, so no token predicts it; use a longer question")
    return ids, places, [llm.tokenizer.decode([i]) for i in ids]


def measured_tokens(
    llm: TransformersModel, prompts: Sequence[str], answers: Sequence | None = None, at: str = "all"
) -> list[tuple[list[int], int, list[int]]]:
    """For each prompt, the token ids that the model reads, the first position that is measured, and the ids that follow
    the measured positions (one less for a whole prompt).

    - answers: a string or token ids that follow each prompt; only the positions that predict them are measured
    - at: "all" or "last" of the prompt's own positions

    Raises ValueError for an unknown `at`, or if the numbers of answers and prompts differ.
    """
    if problem := not_among(("all", "last"), "at=", at):
        raise ValueError(problem)
    if answers is None:
        firsts = ((ids, len(ids) - 1 if at == "last" else 0) for ids in tokenize(llm, prompts))
        return [(ids, first, ids[first + 1 :]) for ids, first in firsts]
    if at != "all":
        raise ValueError('pass answers or at="last", not both: answers already choose the tokens')
    prompts = texts_of(prompts)
    unlisted = _columns(answers) is not None or isinstance(answers, Set | bytes)
    if unlisted or not isinstance(answers, Iterable):
        raise ValueError(f"answers must be a list of strings or of lists of token ids, got {type(answers).__name__}")
    answers = [answers] if isinstance(answers, str) else list(answers)
    if len(answers) != len(prompts):
        raise ValueError(
            f"got {len(prompts)} prompts but {len(answers)} answer{'s' * (len(answers) != 1)}; pass one answer per "
            "prompt (repeat a prompt that has several)"
        )
    pairs = list(zip(prompts, answers, strict=True))
    found = [_with_answer(llm, *pair, f"prompt {p}") for p, pair in enumerate(pairs)]
    repeated = (
        answer.startswith(prompt) if isinstance(answer, str) else following[: first + 1] == ids[: first + 1]
        for (prompt, answer), (ids, first, following) in zip(pairs, found, strict=True)
    )
    if pairs and all(repeated):  # as generate returns them, and a text-generation pipeline
        warn("every answer begins with its own prompt, which then counts as answer text; pass only what follows it")
    return found


def _with_answer(llm, prompt, answer, name):
    """The ids of a prompt and its answer without the last, which predicts nothing, the place before the answer, and the
    answer's ids."""
    if isinstance(answer, str):
        ids, places, _ = answer_span(llm, prompt, answer)
        return ids[: places[-1]], places[0] - 1, ids[places[0] : places[-1] + 1]
    if not isinstance(answer, Iterable):
        raise ValueError(f"the answer to {name} must be a string or a list of token ids, got {type(answer).__name__}")
    answer = whole(answer)
    before, _ = _tokenized(llm, prompt, name, generate=max(len(answer), 1))
    if not answer or not 0 <= min(answer) <= max(answer) < llm.config.get_text_config().vocab_size:
        raise ValueError(f"the answer to {name} is not a list of the model's token ids; pass a string or token ids")
    pad = [llm.tokenizer.pad_token_id]
    if answer[:1] == pad != answer or answer[-2:] == 2 * pad or (answer[-1:] == pad and pad[0] not in end_tokens(llm)):
        raise ValueError(f"the answer to {name} is padded with token {pad[0]}; pass its own tokens only")
    return before + answer[:-1], len(before) - 1, answer


def without_template(llm: TransformersModel, prompts: Sequence[str]) -> bool:
    """Whether the model's chat template leaves marks, and some prompt has none of them."""
    marks = template_marks(llm.tokenizer)
    return bool(marks) and any(not any(mark in prompt for mark in marks) for prompt in texts_of(prompts))


def template_marks(tokenizer: Any) -> list[str]:
    """The special tokens, except BOS, that a chat template writes, and what it writes after a question; [] without a
    template, or for one that fails."""
    if not tokenizer.chat_template:
        return []
    try:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": "?!"}], tokenize=False, add_generation_prompt=True
        )
    except Exception:  # noqa: BLE001 (a template may raise anything; then nothing is known)
        return []
    marks = [token for token in tokenizer.all_special_tokens if token in chat and token != tokenizer.bos_token]
    marks += [after] if (after := chat.rpartition("?!")[2].strip()) else []
    return marks + ([tokenizer.bos_token] if chat.count(tokenizer.bos_token or "\0") > 1 else [])


def skips_of(
    llm: TransformersModel, prompts: list[str], mode: str, modes: tuple[str, ...]
) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Token ids and positions t of every prompt that is long enough: in future mode drawn, else only t = T; and the
    numbers of these prompts."""
    if problem := not_among(modes, "mode", mode):
        raise ValueError(problem)
    ids = tokenize(llm, prompts)
    positions = future_positions([len(x) for x in ids]) if mode == "future" else [[len(x)] for x in ids]
    least = {"future": 13, "all": 2, "remove": 1}[mode]  # in mode "all" the first token is never skipped
    numbers = long_enough(ids, least, f'mode "{mode}"')
    return [(ids[p], positions[p]) for p in numbers], numbers


def long_enough(ids: list[list[int]], least: int, what: str) -> list[int]:
    """The numbers of the prompts with this many tokens; a warning names the others, and ValueError if none is left."""
    numbers = [p for p, of_prompt in enumerate(ids) if len(of_prompt) >= least]
    if not numbers:
        other = ', or, in Python, mode="all", which needs at least 2' if what == 'mode "future"' else ""
        raise ValueError(f"all prompts are too short: {what} needs at least {least} tokens; use longer prompts{other}")
    if len(numbers) < len(ids):
        short = [f"prompt {p} ({len(ids[p])} tokens)" for p in range(len(ids)) if p not in numbers]
        warn(f"left out, too short for {what} (at least {least} tokens): {', '.join(short)}")
    return numbers
