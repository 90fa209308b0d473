"""How well each layer of one model predicts each layer of another: a heat map with the best cells and the diagonal."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .layout import STYLE


def linear_maps_figure(result: Mapping, source: str, target: str) -> Figure:
    """relative[m, l] of `linear_maps`, source layers upwards and target layers to the right.

    Layer 0 of a residual stream is the embeddings. A dot marks the source layer that predicts each target layer best,
    the line equal relative depth. Errors beyond 1, which predicting the mean hardly exceeds, share one colour.
    """
    n_source, n_target = np.shape(result["relative"])
    size = 1.6 + max(1.6, min(5.5, 0.16 * n_target)), 0.9 + max(1.2, min(4.5, 0.16 * n_source))
    # pyplot's, so that a notebook shows it; outside the style, since the first one starts the inline backend
    figure = plt.figure(figsize=size, layout="constrained", dpi=160)
    with plt.rc_context(STYLE):
        _draw(figure.subplots(), result, source, target)
    return figure


def _draw(ax: Axes, result: Mapping, source: str, target: str) -> None:
    relative, best = (np.asarray(result[key], dtype=float) for key in ("relative", "best"))
    n_source, n_target = relative.shape
    image = ax.imshow(relative, origin="lower", aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="none")
    ax.plot([0, n_target - 1], [0, n_source - 1], ":", color="white", linewidth=1)
    ax.plot(np.arange(n_target), best, "o", color="tab:red", markeredgecolor="white", markeredgewidth=0.5, markersize=4)
    ax.set(xlim=(-0.5, n_target - 0.5), ylim=(-0.5, n_source - 0.5))
    ax.set_xlabel(f"Layer of {target}", parse_math=False)
    ax.set_ylabel(f"Layer of {source}", parse_math=False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    bar = image.figure.colorbar(image, ax=ax, extend="max" if relative.max() > 1 else "neither", label="Relative error")
    bar.outline.set_linewidth(0.4)
