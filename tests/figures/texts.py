"""Where texts of a figure lie on each other."""

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def drawn_texts(figure):
    """Every text that is really drawn, with its box; a tick outside its axis has a label that is not."""
    found = []

    def draw(text, renderer, *arguments, **options):
        if text.get_visible() and text.get_text().strip():
            found.append((text, text.get_window_extent(renderer).padded(-1)))

    if figure.get_layout_engine():
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        FigureCanvasAgg(figure).draw()
    return found


def overlaps(figure):
    """Pairs of texts that lie on each other, texts that leave the figure, and texts on a panel that is not theirs."""
    boxes = drawn_texts(figure)
    assert len(boxes) > 10
    found = [
        (a.get_text(), b.get_text()) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)
    ]
    whole = figure.bbox.padded(2)
    found += [
        (text.get_text(), "edge")
        for text, box in boxes
        if not (whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1))
    ]
    for ax in (ax for ax in figure.axes if ax.get_title()):
        inside = ax.get_window_extent().padded(-2)
        found += [
            (text.get_text(), f"panel {ax.get_title()}")
            for text, box in boxes
            if text not in ax.texts and box.overlaps(inside)
        ]
    return found


def assert_modest_titles(figure):
    """No title has letters more than half as large again as the smallest numbers at an axis."""
    axes = [ax for ax in figure.axes if ax.get_title()]
    numbers = min(label.get_fontsize() for ax in axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels()))
    titles = [text.get_fontsize() for text in (figure._suptitle, *(ax.title for ax in axes)) if text]
    assert titles and max(titles) <= 1.5 * numbers, (titles, numbers)
