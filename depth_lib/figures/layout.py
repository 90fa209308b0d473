"""Panels in rows and columns, in inches: letters have their printed size, so the room they need is known beforehand.

Matplotlib's own layouts measure every text at every draw, which takes longer than drawing a study.
"""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from .kind import Kind
from .token_labels import token_label

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "figure.titlesize": 9,
    "figure.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
}
DOTS_PER_INCH = 160


@dataclass(frozen=True)
class Cell:
    """One panel: the lines of its title, how it is drawn, and its result (None: it says "missing")."""

    title: tuple[str, ...]
    kind: Kind
    result: dict | None


def lay_out(
    cells: Sequence[Cell],
    across: int,
    size: tuple[float, float],
    title: str,
    letters: float = 7,
    figure: Figure | None = None,
) -> Figure:
    """A figure of `across` panels side by side, row by row; curves in a row have one y axis.

    size: width of a panel with what stands beside it, and height of its axes, inches. letters: size of the numbers,
    points. figure: an empty one to draw into, such as one that a notebook shows.
    """
    kind, line = cells[0].kind, letters / 72
    inside = 2.4 * line if kind.colorbar else 0  # layers are numbered beside each map, curves in the first column only
    left = 0.22 + (0 if kind.colorbar else 3.4 * line)
    inches = size[0] - inside - line * (5.5 if kind.own_scale else 0.9)
    width = left + size[0] * across + (0 if not kind.colorbar else 0.2 if kind.own_scale else 6.7 * line)
    with plt.rc_context(_style(letters)):
        figure = figure or Figure(dpi=DOTS_PER_INCH)
        figure.set_size_inches(width, size[1])
        axes = []
        for i, cell in enumerate(cells):
            x = left + size[0] * (i % across) + inside
            axes.append(figure.add_axes((x / width, 0, inches / width, 1)))
            _panel(axes[i], cell, inches, letters)
            if i + across >= len(cells):
                axes[i].set_xlabel(cell.kind.xlabel, labelpad=1)
        top, bottom = _heading(figure, title, letters), _legend(figure, axes, letters)
        above, below = line * (0.4 + 1.3 * max(len(cell.title) for cell in cells)), line * _lines_below(cells)
        row, rows = above + size[1] + below, math.ceil(len(cells) / across)
        tall = top + rows * row + 1.5 * line + bottom
        figure.set_size_inches(width, tall)
        for i, ax in enumerate(axes):
            y = tall - top - row * (i // across) - above - size[1]
            place = ax.get_position()
            ax.set_position((place.x0, y / tall, place.width, size[1] / tall))
        figure.suptitle(figure.get_suptitle(), y=1 - 0.04 / tall, va="top", fontsize=letters + 2, parse_math=False)
        middle = (tall - top + bottom + 1.5 * line + below) / 2 / tall
        figure.supylabel(kind.ylabel, x=0.04 / width, y=middle, fontsize=letters + 0.5)
        _share(figure, kind, axes, across, line)
    return figure


def add_colorbar(image: AxesImage, kind: Kind, label: bool = True, **place: object) -> None:
    """A colour bar, pointed where values lie beyond its ends: always above one that many panels share."""
    low, high = image.get_clim()
    shown = image.get_array()
    ends = (shown.min() < low, shown.max() > high) if kind.own_scale else (False, True)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[ends]
    ticks = MaxNLocator(4)
    bar = image.figure.colorbar(image, extend=extend, ticks=ticks, label=kind.colorbar if label else "", **place)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(pad=1, size=1.5)
    bar.ax.yaxis.labelpad = 2


def legend_of(axes: Sequence[Axes]) -> list[Artist]:
    """What the panels drew and named, each name once, levels of difficulty in order: nothing that no panel shows."""
    found = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    return [found[name] for name in sorted(found, key=lambda name: int((re.match(r"level (\d+)$", name) or "00")[1]))]


def _panel(ax: Axes, cell: Cell, inches: float, letters: float) -> None:
    lines = [line.replace("DeepSeek-R1-Distill-", "DS-R1-") for line in cell.title]  # as in the paper
    longest = max(map(len, lines), default=1)
    fits = min(letters + 0.5, 1.1 * inches * 72 / (0.58 * max(longest, 1)))
    ax.set_title("\n".join(lines), fontsize=fits, pad=2, y=1.0, parse_math=False)
    if cell.result is None:
        ax.set_xticks([])
        ax.set_yticks([]) if cell.kind.colorbar else None
        ax.text(0.5, 0.5, "missing", transform=ax.transAxes, ha="center", va="center", color="grey")
        return
    cell.kind.draw(ax, cell.result)
    if inches < 1.2:
        if ax.get_yscale() == "linear":  # the y axis of a map counts layers
            ax.yaxis.set_major_locator(MaxNLocator(3, integer=bool(cell.kind.colorbar)))
        if cell.kind.xlabel != "Token":
            ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))


def _share(figure: Figure, kind: Kind, axes: list[Axes], across: int, line: float) -> None:
    """One y axis a row for curves; one colour bar for all maps, or one a map."""
    width, tall = figure.get_size_inches()
    drawn = [ax for ax in axes if ax.get_images() or ax.has_data()]
    if not kind.colorbar:
        for row in (axes[start : start + across] for start in range(0, len(axes), across)):
            shown = [ax for ax in row if ax in drawn] or row
            limits = [ax.get_ylim() for ax in shown]
            for ax in row:
                if ax not in shown:  # a scale set anew would forget how its numbers are written
                    ax.set_yscale(shown[0].get_yscale())
                ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
                ax.tick_params(labelleft=ax is row[0])
        return
    images = [ax.get_images()[0] for ax in drawn]
    if not kind.own_scale and images:
        place = (1 - 6 * line / width, 0.25, 0.08 / width, 0.5)
        add_colorbar(images[0], kind, cax=figure.add_axes(place, label="<colorbar>"))
    for i, image in enumerate(images if kind.own_scale else ()):
        box = image.axes.get_position()
        place = (box.x1 + 0.5 * line / width, box.y0, 0.07 / width, box.height)
        last = i == len(images) - 1 or axes.index(image.axes) % across == across - 1
        add_colorbar(image, kind, last, cax=figure.add_axes(place, label="<colorbar>"))


def _heading(figure: Figure, title: str, letters: float) -> float:
    """Set the title in as many lines as it needs; the height of them, inches."""
    size = letters + 2
    fits = max(int(72 * figure.get_figwidth() / (0.52 * size)), 12)
    lines = textwrap.wrap(title, fits) or [""]
    figure.suptitle("\n".join(lines))
    return size / 72 * 1.3 * len(lines) + 0.06


def _legend(figure: Figure, axes: list[Axes], letters: float) -> float:
    """A legend under the panels, in as many rows as it needs; the height of them, inches."""
    handles = legend_of(axes)
    if not handles:
        return 0
    shown = [len(re.sub(r"\\mathrm|[{}$\\]", "", handle.get_label())) + 7 for handle in handles]
    fits = int(72 * figure.get_figwidth() / (0.56 * letters * max(shown))) or 1
    rows = math.ceil(len(handles) / fits)
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=math.ceil(len(handles) / rows),
        frameon=False,
        fontsize=letters,
        borderaxespad=0.1,
    )
    return rows * 1.75 * letters / 72


def _lines_below(cells: Sequence[Cell]) -> float:
    """Lines of text that the numbers or tokens under a panel need."""
    tokens = [token for cell in cells for token in (cell.result or {}).get("tokens") or ()]
    longest = max((len(token_label(token)) for token in tokens), default=1)
    return 1.6 if longest == 1 or cells[0].kind.xlabel != "Token" else 0.9 + 0.66 * longest


def _style(letters: float) -> dict:
    ticks = {"labelsize": letters, "major.pad": 1.5, "major.size": 2}
    ticks = {f"{axis}tick.{key}": value for axis in "xy" for key, value in ticks.items()}
    return STYLE | ticks | {"axes.titlesize": letters + 0.5, "axes.labelsize": letters + 0.5}
