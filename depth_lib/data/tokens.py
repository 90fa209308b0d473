"""Prompts as token ids, the positions that future mode draws, and where the tokens of an answer are."""

import random
import warnings
from collections.abc import Sequence

from nnsight import TransformersModel

from ..params import not_among


def tokenize(llm: TransformersModel, prompts: Sequence[str], generate: int = 0) -> list[list[int]]:
    """The token ids of each prompt, with the tokenizer's own special tokens.

    generate: how many tokens the model will append to each. ValueError for a prompt without tokens, or for more tokens
    than the model has positions.
    """
    prompts = [prompts] if isinstance(prompts, str) else [] if prompts is None else list(prompts)
    if not prompts:
        raise ValueError("there are no prompts to measure; load some with dl.load_prompts(...).")
    return [_tokenized(llm, prompt, f"prompt {p}", generate)["input_ids"] for p, prompt in enumerate(prompts)]


def _tokenized(llm, text, name, generate=0, **options):
    """What the tokenizer makes of a text, if the model can read it."""
    if not isinstance(text, str):
        raise ValueError(f"{name} is of type {type(text).__name__}, not text; give a list of strings.")
    try:
        encoding = llm.tokenizer(text, **options)
    except (TypeError, UnicodeError) as error:
        raise ValueError(f"{name} ({text!r}) cannot be tokenised: {error}; mend its text.") from error
    ids, config = encoding["input_ids"], llm.config.get_text_config()
    if not ids:
        raise ValueError(f"{name} ({text!r}) has no tokens; leave it out.")
    if max(ids) >= config.vocab_size:  # a GPU's process dies of a token that has no embedding
        raise ValueError(
            f"{name} has token {max(ids)}, but the model's embedding has {config.vocab_size}: the tokenizer is another "
            "model's; give its own, or model.resize_token_embeddings(len(tokenizer))."
        )
    # after the last position, learned embeddings fail (a GPU's process dies) and rotary ones give nonsense
    limit, n_tokens = _n_positions(config), len(ids) + max(generate - 1, 0)  # nobody reads the last one
    if limit and n_tokens > limit:
        if not generate or len(ids) > limit:
            raise ValueError(
                f"{name} has {len(ids)} tokens, but the model has {limit:.0f} positions; use a shorter text."
            )
        raise ValueError(
            f"{name} has {len(ids)} tokens, and with {generate} generated ones more than the model's {limit:.0f} "
            f"positions; generate at most {limit - len(ids) + 1:.0f}, or use a shorter text."
        )
    return encoding


def _n_positions(config):
    limit, rope = getattr(config, "max_position_embeddings", None), getattr(config, "rope_parameters", None) or {}
    if limit and rope.get("rope_type") in ("linear", "dynamic", "yarn"):  # some configs keep the unscaled length
        limit = max(limit, (rope.get("original_max_position_embeddings") or limit) * rope["factor"])
    return limit


def end_tokens(llm: TransformersModel) -> list[int]:
    """The tokens that end a text, as the checkpoint says: no token is generated after one of them."""
    sources = (getattr(llm._module, "generation_config", None), llm.config, llm.config.get_text_config(), llm.tokenizer)
    found = next((ids for source in sources if (ids := getattr(source, "eos_token_id", None)) is not None), [])
    return found if isinstance(found, list) else [found]


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
        raise ValueError("the answer is found by character offsets, which need a fast tokenizer (tokenizer.json).")
    if not (isinstance(question, str) and isinstance(answer, str)):
        types = f"{type(question).__name__} and {type(answer).__name__}"
        raise ValueError(f"question and answer are of type {types}, not text; give two strings.")
    encoding = _tokenized(llm, question + answer, "the question with its answer", return_offsets_mapping=True)
    ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
    places = [i for i, (_, end) in enumerate(offsets) if end > len(question)]  # special tokens end at 0
    if not answer.strip() or not places:
        raise ValueError(f"the answer {answer!r} has no token in {question + answer!r}; give a visible answer.")
    if places[0] == 0:
        raise ValueError(f"nothing precedes the answer {answer!r}, so no token predicts it; give a longer question.")
    return ids, places, [llm.tokenizer.decode([i]) for i in ids]


def skips_of(
    llm: TransformersModel, prompts: list[str], mode: str, modes: tuple[str, ...]
) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Token ids and positions t of every prompt that is long enough: in future mode drawn, else only t = T; and the
    numbers of these prompts."""
    if problem := not_among(modes, "mode", mode):
        raise ValueError(problem)
    ids = tokenize(llm, prompts)
    positions = future_positions([len(x) for x in ids]) if mode == "future" else [[len(x)] for x in ids]
    numbers = [p for p, drawn in enumerate(positions) if drawn]
    if not numbers:
        raise ValueError("no prompt has the 13 tokens that future mode needs; use longer prompts or mode='all'.")
    if len(numbers) < len(ids):
        short = [f"prompt {p} ({len(ids[p])} tokens)" for p in range(len(ids)) if p not in numbers]
        warnings.warn(f"too short for future mode (13 tokens), left out: {', '.join(short)}", stacklevel=3)
    return [(ids[p], positions[p]) for p in numbers], numbers
