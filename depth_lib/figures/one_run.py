"""One run, one picture."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .kinds import find_kind
from .layout import STYLE, Cell, add_colorbar, lay_out, legend_of

_WIDTH = 5.0  # inches


def plot(kind: str, result: dict, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw one kind of figure (a name in `KINDS`) of what a probe or `load_artifact` returned; the axes drawn into.

    ax: where to draw; else a new figure, with the legend under it. title: instead of the kind's own. What is shown,
    KINDS[kind].caption says. ValueError for an unknown kind, a result without the keys it reads, or axes for a kind
    that consists of several panels (its first axes are returned).
    """
    row = find_kind(kind)
    if not row.can_draw(result):
        lacking = [key for part in row.parts() for key in part.keys if key not in result]
        made_by = f"run {row.made_by}" if row.made_by else f"it is {row.probe}'s"
        raise ValueError(f"{kind} needs {', '.join(lacking)}, and the result has {', '.join(result)}; {made_by}")
    if title is None:
        title = f"{row.title}: {row.subject(result)}".rstrip(": ")
    if ax is None:
        cells = [Cell((part.short,) if row.together else (), part, result) for part in row.parts()]
        height = _WIDTH * row.size[1] / row.size[0] / (1.2 if row.colorbar else 1) / len(cells) ** 0.5
        # Outside the style: the first figure starts a notebook's inline backend, whose settings must outlive it.
        figure = plt.figure()
        return lay_out(cells, len(cells), (_WIDTH / len(cells), height), title, 8, figure).axes[0]
    if row.together:
        raise ValueError(f"{kind} draws {len(row.together)} panels; give each of {', '.join(row.shows)} its axes")
    with plt.rc_context(STYLE):
        image = row.draw(ax, result)
        ax.set(xlabel=row.xlabel, ylabel=row.ylabel)
        ax.set_title(title, parse_math=False)
        if image is not None:
            add_colorbar(image, row, ax=ax)
        if handles := legend_of([ax]):
            ax.legend(handles=handles)  # its frame keeps it readable over lines and bars
    return ax
