"""What goes wrong with a model. Importing this loads neither torch nor transformers."""

import re
import textwrap


class ModelError(ValueError):
    """The model could not be found or loaded; the message names it and the next step."""


class ArchitectureError(ModelError):
    """The model has no residual stream that the probes can read, or the identities they rely on do not hold."""


def reason(error: BaseException) -> str:
    """The first sentence of an error's text: transformers' go on for paragraphs."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__} {text}".strip()
    return textwrap.shorten(re.split(r"[.:;] (?=[A-Z])", text)[0], 200, placeholder=" …").rstrip(".")
