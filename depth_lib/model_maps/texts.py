"""Text for maps between models: read from a file, the Hub or the package, cut into sequences, split three ways."""

import bisect
import warnings
from dataclasses import dataclass
from pathlib import Path

from nnsight import TransformersModel

from ..data.prompts import load_prompts
from ..embedded import DATASETS

LONGEST = 512  # tokens of a sequence; both models may see fewer
_FEWEST_SEQUENCES = 40
_SOURCES = (
    'as texts= (TEXTS= of make and the notebook) "embedded", a text file, or a Hub dataset owner/name[:config[:split]]'
)


class TextError(ValueError):
    """A text that maps cannot be fitted on; the message is one line and ends with the next step."""


def read_texts(source: str | Path, n_characters: int = 1_000_000) -> list[str]:
    """About the first n_characters of a source of text, as documents.

    source: "embedded" (all samples of the package), the path of a UTF-8 file (documents are separated by blank lines),
    or a Hub dataset with a column `text`, `owner/name[:config[:split]]` (split train unless given), which is streamed:
    no more of it is downloaded than is read. Raises TextError for a source that is none or is unreachable or empty.
    """
    if source == "embedded":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sample is small is known
            documents = [text for name in DATASETS for text in load_prompts(name, 1000, source="embedded")]
    elif Path(source).is_file():
        try:
            with open(source, encoding="utf-8") as file:
                documents = file.read(n_characters).split("\n\n")
        except UnicodeDecodeError as problem:
            raise TextError(f"{source} is not UTF-8 text ({problem}); convert it") from None
    elif _is_hub_name(str(source).partition(":")[0]):
        documents = _hub_texts(str(source))
    else:
        raise TextError(f"no text {str(source)!r}; give {_SOURCES}")
    texts, length = [], 0
    for text in documents:
        if text.strip():
            texts.append(text[: n_characters - length])
            length += len(texts[-1])
        if length >= n_characters:
            break
    if not texts:
        raise TextError(f"{source} holds no text; give {_SOURCES}")
    return texts


def _is_hub_name(repository):
    return repository.count("/") == 1 and Path(repository).suffix not in (".txt", ".md", ".text", ".jsonl", ".csv")


def _hub_texts(name):
    import datasets  # takes seconds, and a file does not need it

    repo, config, split = (*name.split(":"), None, None)[:3]
    try:
        for row in datasets.load_dataset(repo, config, split=split or "train", streaming=True):
            if not isinstance(row.get("text"), str):
                raise TextError(f"{name} has no column of text called text (it has {', '.join(row)}); give another")
            yield row["text"]
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as problem:
        if isinstance(problem, TextError):
            raise
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
        raise TextError(
            f"could not read {name} from the Hub: {reason}; check the network, or give {_SOURCES}"
        ) from None


@dataclass(frozen=True)
class Sequences:
    """Token ids, one list a sequence, the split of each ("fit", "choose" or "test"), and how many of its first tokens
    a sequence of an earlier split begins with: a causal model gives them the same states, so they test nothing."""

    ids: list[list[int]]
    split: list[str]
    seen: list[int]

    def n_tokens(self, split: str) -> int:
        return sum(len(ids) for ids, its in zip(self.ids, self.split, strict=True) if its == split)


def same_ids(source: TransformersModel, target: TransformersModel, texts: list[str]) -> list[list[int]]:
    """The token ids of every text, which both tokenizers must agree on; TextError at the first that they do not."""
    found = []
    for number, text in enumerate(texts):
        ids, theirs = (list(tokenizer(text)["input_ids"]) for tokenizer in (source, target))
        if ids != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b), min(len(ids), len(theirs))
            )
            raise TextError(
                f"the tokenizers differ: text {number} ({text[:30]!r}…) has {len(ids)} tokens in the source and "
                f"{len(theirs)} in the target, token {at} is the first to differ; a map from token to token needs two "
                "models with the same tokenizer"
            )
        found.append(ids)
    return found


def cut(documents: list[list[int]], longest: int, holdout: float, width: int) -> Sequences:
    """Documents cut into sequences of at most `longest` tokens, shared out to fit (1 − 2 holdout of the tokens), to
    choose the ridge (holdout) and to test (holdout).

    width: d of the source. TextError for fewer than 4 d tokens to fit on (a map has d inputs), a warning for fewer
    than 20 d.
    """
    if not (isinstance(holdout, float) and 0 < holdout <= 0.4):
        raise TextError(f"holdout {holdout!r} is no share of the text to test on; give one such as 0.1, at most 0.4")
    total = sum(map(len, documents))
    size = max(1, min(LONGEST, longest, max(16, total // _FEWEST_SEQUENCES)))
    ids = [part for ids in documents for k in range(0, len(ids), size) if (part := ids[k : k + size])]
    shares = {"fit": 1 - 2 * holdout, "choose": holdout, "test": holdout}
    taken, split = dict.fromkeys(shares, 0), []
    for part in ids:
        split.append(max(shares, key=lambda name: shares[name] * sum(taken.values()) - taken[name]))
        taken[split[-1]] += len(part)
    sequences = Sequences(ids, split, _seen(ids, split))
    n_fit = sequences.n_tokens("fit")
    if n_fit < 4 * width:
        raise TextError(
            f"{n_fit} tokens to fit maps of {width} inputs (of {total}, without those held out); give at least "
            f"{4 * width}, better {20 * width}"
        )
    if not sum(max(0, len(i) - n) for i, n, s in zip(ids, sequences.seen, split, strict=True) if s == "test"):
        raise TextError("every text to test on is one that the maps were fitted on; give texts that differ")
    if n_fit < 20 * width:
        warnings.warn(
            f"{n_fit} tokens are few for maps of {width} inputs: relative errors are too high; {20 * width} would do",
            stacklevel=3,
        )
    return sequences


def _seen(ids, split):
    order = ("fit", "choose", "test")
    seen = [0] * len(ids)
    for k, name in enumerate(order[1:], 1):
        earlier = sorted(i for i, its in zip(ids, split, strict=True) if its in order[:k])
        for number, (own, its) in enumerate(zip(ids, split, strict=True)):
            if its == name:
                at = bisect.bisect(earlier, own)  # who shares the longest beginning stands beside it
                seen[number] = max((_common(own, other) for other in earlier[max(0, at - 1) : at + 1]), default=0)
    return seen


def _common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
