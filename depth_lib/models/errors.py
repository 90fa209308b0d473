"""Errors of models. Importing this loads neither torch nor transformers."""

import re
import textwrap
from pathlib import Path

_TOKENIZER = ("tokenizer*", "*.model", "vocab.*", "*.tiktoken", "tekken.json", "*.gguf")  # at least one of them


class ModelError(ValueError):
    """A model cannot be found or loaded, or a probe cannot run on it; the message names it and says what to do next."""


class ArchitectureError(ModelError):
    """The model has no residual stream that the probes can read, or the identities that they rely on do not hold."""


def check_tokenizer(source: str | Path, n_tokens: int | None = None) -> None:
    """Raise ModelError for a checkpoint's folder without a tokenizer, for which transformers makes an empty one.

    n_tokens: of the tokenizer that transformers made, if it did so already.
    """
    folder = Path(source).expanduser()
    if (folder / "config.json").is_file() and (n_tokens in (0, 1) or not any(map(list, map(folder.glob, _TOKENIZER)))):
        raise ModelError(f"{source} has no tokenizer; save it there: tokenizer.save_pretrained({str(source)!r})")


def reason(error: BaseException) -> str:
    """The first sentence of an error; those of transformers are paragraphs long."""
    text = re.sub("^Class validation error.*?Error: ", "", " ".join(str(error).split()))
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__} {text}".strip()
    return textwrap.shorten(re.split(r"[.:;] (?=[A-Z])", text)[0], 200, placeholder=" …").rstrip(".")


def overflow(dtype: object) -> str:
    """For a message about numbers that are not finite: that a dtype of a larger range may help, or ""."""
    half = str(dtype) == "torch.float16"
    return ', or numbers overflow in float16: load it with dtype="float32" or "bfloat16"' if half else ""
