"""Text for maps between models: read from a file, the Hub or the package, cut into sequences, split three ways."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nnsight import TransformersModel

from ..data.datasets import dataset_named
from ..data.tokens import text_ids
from ..embedded import DATASETS
from ..hub import without_retries
from ..params import ParamsError
from ..remote.errors import one_line

SPLITS = {"fit": 0.8, "choose": 0.1, "test": 0.1}  # shares of tokens: for the maps, their ridge and their error
LONGEST = 512  # tokens of a sequence; both models may take fewer
_FEWEST_DOCUMENTS = 10


class TextError(ParamsError):
    """A text that maps cannot be fitted on; the message is one line and ends with the next step."""


def read_texts(source: str | Path, n_characters: int = 1_000_000) -> list[str]:
    """About the first n_characters of a source of text, as documents.

    source: "embedded" (all samples of the package), the path of a UTF-8 file (documents are separated by blank lines),
    or a Hub dataset with a column `text`, `owner/name[:config[:split]]` (split train unless given), which is streamed.
    Raises TextError for a source that is none of these, is unreachable or is empty.
    """
    texts, length = [], 0
    if Path(source).suffix == ".txt" and not (source := Path(source).expanduser()).is_file():
        raise TextError(f"no file {source.absolute()}; check the path")
    try:
        for text in filter(str.strip, _documents(source, n_characters)):
            texts.append(text[: n_characters - length])
            length += len(texts[-1])
            if length >= n_characters:
                break
    except Exception as error:  # noqa: BLE001 (a dozen kinds, of names, columns and networks)
        raise TextError(
            f"{source} is neither a text file in UTF-8 nor a dataset of the Hub with a column text "
            f'({one_line(error)}); give as texts= or TEXTS= "embedded", a text file, or a Hub dataset '
            "owner/name[:config[:split]]"
        ) from None
    if not texts:
        raise TextError(f"{source} has no text; give another")
    return texts


def _documents(source: str | Path, n_characters: int) -> Iterator[str]:
    if source == "embedded":
        for dataset in map(dataset_named, DATASETS):
            yield from (dataset.prompt(*row) for row in dataset.rows("embedded"))
    elif Path(source).is_file():
        with open(source, encoding="utf-8") as file:
            yield from file.read(n_characters).split("\n\n")
    else:
        import datasets  # takes seconds, and a file does not need it

        repository, config, split = (*str(source).split(":"), "", "")[:3]
        with without_retries(repository):
            for row in datasets.load_dataset(repository, config or None, split=split or "train", streaming=True):
                yield row["text"]


@dataclass
class Excerpt:
    """The token ids of one sequence of text, and its split, one of SPLITS.

    seen: how many of its first tokens also begin a sequence of an earlier split. A causal model gives these the same
    states, so they test nothing.
    """

    ids: list[int]
    split: str
    seen: int = 0


def same_ids(source: TransformersModel, target: TransformersModel, texts: list[str]) -> list[list[int]]:
    """The token ids of every text; TextError at the first that the two tokenizers give different ids."""
    documents = []
    for number, text in enumerate(texts):
        ids, others = (text_ids(tokenizer, text)[0] for tokenizer in (source, target))
        if ids != others:
            raise TextError(
                f"the tokenizers differ: text {number} ({text[:30]!r}…) has {len(ids)} tokens in the source and "
                f"{len(others)} in the target, not the same; take two models with the same tokenizer"
            )
        documents.append(ids)
    return documents


def cut(documents: list[list[int]], longest: int, width: int) -> list[Excerpt]:
    """Documents cut into sequences of at most `longest` tokens; all of a document are of one split.

    The sequences to fit on come first, those to test on last. width: d of the source. TextError for fewer than 4 d
    tokens to fit on (a map has d inputs) or than 10 documents, a warning for fewer than 20 d.
    """
    if len(documents) < _FEWEST_DOCUMENTS:
        raise TextError(
            f"{len(documents)} documents are too few to test on others than are fitted on; give {_FEWEST_DOCUMENTS} or "
            "more (in a file, blank lines separate them)"
        )
    n_tokens, excerpts = dict.fromkeys(SPLITS, 0), []
    for document in documents:
        split = max(SPLITS, key=lambda name: SPLITS[name] * sum(n_tokens.values()) - n_tokens[name])
        excerpts += [Excerpt(document[k : k + longest], split) for k in range(0, len(document), longest)]
        n_tokens[split] += len(document)
    excerpts.sort(key=lambda excerpt: list(SPLITS).index(excerpt.split))
    _count_seen(excerpts)
    excerpts = [excerpt for excerpt in excerpts if excerpt.split != "test" or excerpt.seen < len(excerpt.ids)]
    n_fit, enough = n_tokens["fit"], 20 * width
    if n_fit < 4 * width:
        raise TextError(
            f"{n_fit} tokens to fit maps of {width} inputs (of {sum(n_tokens.values())}, without those held out); give "
            f"at least {4 * width}, better {enough}"
        )
    if excerpts[-1].split != "test":
        raise TextError("every text to test on is one that the maps were fitted on; give texts that differ")
    if n_fit < enough:
        warnings.warn(
            f"{n_fit} tokens are few for maps of {width} inputs: relative errors are too high; {enough} would do",
            stacklevel=3,
        )
    return excerpts


def _count_seen(excerpts: list[Excerpt]) -> None:
    first_split = {}  # that has a sequence with this beginning, by the beginning's hash
    for excerpt in excerpts:
        prefix = 0
        for n, token in enumerate(excerpt.ids, 1):
            prefix = hash((prefix, token))
            if first_split.setdefault(prefix, excerpt.split) != excerpt.split:
                excerpt.seen = n
