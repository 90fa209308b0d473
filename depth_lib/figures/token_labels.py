"""Tokens as axis labels: visible, short, in characters the font has, and thinned where they would overlap."""

import functools
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator

from ..results.files import escape_token

_BEGINNINGS = {"<|begin_of_text|>", "<|begin▁of▁sentence|>", "<｜begin▁of▁sentence｜>", "<s>", "<bos>", "<|endoftext|>"}
_LONGEST = 8
_INCHES_A_LABEL = 0.09  # 7 pt letters
_INCHES_AROUND = 0.4  # tick labels and space beside the axes


def token_label(token: str) -> str:
    """A token as a short label: "Ġ5", "▁5" and " 5" are "␣5", the beginning of text is "BOS"."""
    if token in _BEGINNINGS:
        return "BOS"
    text = escape_token(_plain(token))
    text = "".join(character if ord(character) in _drawable() else "□" for character in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def question_of(result: Mapping) -> str | None:
    """The question with its answer that a result is about, as its `meta` or else its tokens say it."""
    settings = (result.get("meta") or {}).get("settings", {})
    if settings.get("question"):
        return f"{settings['question']}{settings.get('answer', '')}"
    tokens = [_plain(token) for token in result.get("tokens") or () if token not in _BEGINNINGS]
    return "".join(tokens).strip() or None


def label_tokens(ax: Axes, tokens: list[str] | None, n_shown: int) -> None:
    """Label the columns of a heat map with their tokens, or with positions where the tokens are not known.

    Where not all fit, blank tokens lose their labels first, then those with too little room left of the next label.
    """
    if tokens is None:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return
    gap = n_shown * _INCHES_A_LABEL / _inches_wide(ax)
    positions = list(range(n_shown))
    if gap > 1:
        room = n_shown + gap
        for i in reversed(range(n_shown)):
            if not tokens[i].strip(" Ġ▁") or i > room - gap:
                positions.remove(i)
            else:
                room = i
    labels = [token_label(tokens[i]) for i in positions]
    ax.set_xticks(positions, labels)
    for text, label in zip(ax.get_xticklabels(), labels, strict=True):
        text.set(rotation=0 if len(label) == 1 else 90, parse_math=False)  # a token may be a dollar sign
    ax.tick_params(axis="x", length=2, pad=1)


def _inches_wide(ax: Axes) -> float:
    """About how wide the axes will be: the layout that decides it is made after the labels it has to fit."""
    place = ax.get_subplotspec()
    if place is None:
        return ax.get_window_extent().width / ax.figure.dpi
    return max(ax.figure.get_figwidth() / place.get_gridspec().ncols - _INCHES_AROUND, 0.5)


def _plain(token: str) -> str:
    return token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


@functools.cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties())).get_charmap())
