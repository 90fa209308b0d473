"""What a figure shows, read back from it."""

import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import StepPatch
from matplotlib.text import Text


def bars(ax):
    """Label -> (height, first layer, colour) of the filled bars."""
    patches = [patch for patch in ax.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    return {
        patch.get_label(): (
            patch.get_data().values,
            round(patch.get_data().edges[:2].mean()),
            patch.get_facecolor()[:3],
        )
        for patch in patches
    }


def curves(ax):
    """Label -> values of every curve, whether bars or line."""
    heights = {label: heights for label, (heights, _, _) in bars(ax).items()}
    return heights | {line.get_label(): line.get_ydata() for line in ax.lines}


def panels(figure):
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


def overlaps(figure):
    """Pairs of texts that lie on each other, and texts that leave the figure or lie on a panel that is not theirs."""
    boxes = []

    def measure(text, renderer, *arguments, **options):
        if text.get_visible() and text.get_text().strip():
            boxes.append((text, text.get_window_extent(renderer).padded(-1)))

    with warnings.catch_warnings(action="error"):  # a layout that does not fit is only a warning
        figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", measure)
        FigureCanvasAgg(figure).draw()
    assert len(boxes) > 10
    low, high = (np.array([getattr(box, end) for _, box in boxes]) for end in ("min", "max"))
    reach = np.all([low[:, None, axis] <= high[:, axis] for axis in (0, 1)], axis=0)
    found = [tuple(boxes[k][0].get_text() for k in pair) for pair in np.argwhere(np.triu(reach & reach.T, 1))]
    whole = figure.bbox.padded(2)
    outside = [text for text, box in boxes if not (whole.contains(*box.min) and whole.contains(*box.max))]
    found += [(text.get_text(), "edge") for text in outside]
    for ax in panels(figure):
        inside = ax.get_window_extent().padded(-2)
        over = [text for text, box in boxes if text not in ax.texts and box.overlaps(inside)]
        found += [(text.get_text(), f"panel {ax.get_title()}") for text in over]
    return found
