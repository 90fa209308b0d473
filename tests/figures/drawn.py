"""What a figure shows, read back from it."""

import itertools

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg


def pixel(ax, x, y):
    """The colour drawn at a place of the axes, as red, green, blue in 0..1."""
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    column, row = ax.transData.transform((x, y))
    image = np.asarray(canvas.buffer_rgba())
    return image[image.shape[0] - 1 - int(row), int(column), :3] / 255


def bar_heights(ax, n_layers):
    """(height, colour) of the bars of each layer, in drawing order."""
    bars = ax.collections[0]
    found = {layer: [] for layer in range(n_layers)}
    for path, colour in zip(bars.get_paths(), itertools.cycle(bars.get_facecolors()), strict=False):
        box = path.get_extents()
        layer = round((box.x0 + box.x1) / 2)
        found[layer].append((box.y1 if box.y0 == 0 else box.y0, tuple(colour[:3])))
    return found


def panels(figure):
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


def steps(ax):
    """Label -> values of the steps drawn, filled or not."""
    return {patch.get_label(): patch.get_data().values for patch in ax.patches if hasattr(patch, "get_data")}
