"""One run, one picture.

Every `plot_*` takes what `load_artifact` or a probe returns, draws into `ax` (or a new figure) and returns the axes.
"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .kinds import KINDS, STYLE, add_colorbar, panel_size


def plot_cosine(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Cosine of what attention, MLP and block add with the residual stream, three bars a layer, the smallest in front.

    The dotted line is the effective depth: left of it, contributions remove features (Hu et al. 2025, Table 1).
    """
    return _single("cosine", result, ax, title)


def plot_relative_contribution(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Norm of what attention, MLP and block add over the norm of what they read; bars above 1.5 are cut and marked."""
    return _single("relative_contribution", result, ax, title)


def plot_layer_effects(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Relative change of every later layer's contribution at future tokens (column) when a layer is skipped (row)."""
    return _single("layer_effects", result, ax, title)


def plot_output_change(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Largest change, in norm, of the output distribution at future tokens when a layer is skipped."""
    return _single("output_change", result, ax, title)


def plot_lens_kl(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """KL divergence of the logit lens at each layer's input from the output, nats; the effective depth is marked."""
    return _single("lens_kl", result, ax, title)


def plot_lens_overlap(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Share of the output's five likeliest tokens among the logit lens's five; the effective depth is marked."""
    return _single("lens_overlap", result, ax, title)


def plot_residual_erasure(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Change of the answer, in norm, when the residual stream of one token (x) at one layer (y, 0 = embeddings) is
    made uninformative. The last token is left out: it predicts nothing, its effect is zero."""
    return _single("residual_erasure", result, ax, title)


def plot_integrated_gradients(result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Attribution of the answer's probability to the residual stream of each token (x) at each layer (y).

    Colours are symmetric about zero; the first token, where many models park attention, does not set their range,
    and the last, which predicts nothing, is left out.
    """
    return _single("integrated_gradients", result, ax, title)


def _single(kind_name: str, result: dict, ax: Axes | None, title: str | None) -> Axes:
    kind = KINDS[kind_name]
    figure = None
    if ax is None:
        # Outside the style: the first figure starts a notebook's inline backend, whose settings must outlive it.
        width, height = panel_size(kind, [result])
        figure = plt.figure(figsize=(max(width * 1.6, 4.8), height * 1.8), layout="constrained")
    with plt.rc_context(STYLE):
        ax = figure.subplots() if ax is None else ax
        image = kind.draw(ax, result)
        ax.set(xlabel=kind.xlabel, ylabel=kind.ylabel, title=kind.title if title is None else title)
        if kind.colorbar:
            add_colorbar(image, ax, kind)
        handles = kind.legend()
        if handles and figure is not None:  # below the axes, where it covers no bar
            figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
        elif handles:
            ax.legend(handles=handles)  # its frame keeps it readable over lines and bars
    return ax
