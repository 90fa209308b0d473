"""Heat maps to look into: the same rows of `KINDS` drawn by plotly, where hovering tells layer, token and value."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from ..results.schemas import MissingArtifact, of_pair
from ..results.study import Study
from .grid import DOTS_PER_INCH, cells_of, draw_cells, grid
from .kinds import find_kind
from .marks import Heat, Kind, token_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT, _MARGINS = 420, {"l": 55, "r": 10, "t": 70, "b": 60}  # pixels


def explore(kind: str, results: Mapping | Study, pair: str = "") -> "go.Figure | Figure":
    """A heat map of a study, or of {name: result}: one run at a time, chosen from a menu.

    Of a kind without heat maps, or where plotly is not installed, what `grid` or `plot` draws. pair: as in `grid`.
    MissingArtifact if a study has nothing of it, ValueError for an unknown kind or results of another probe.
    """
    row = find_kind(kind)
    if not isinstance(row, Heat) or not find_spec("plotly"):
        return grid(kind, results, pair) if isinstance(results, Study) else _still(row, results)
    if isinstance(results, Study):
        of_probe = results.of(of_pair(row.probe, pair))
        if row.of_question:
            shown = {model: result for (_, model), result in reversed(of_probe.items())}
        else:
            shown = {f"{model}, {dataset}": result for (dataset, model), result in of_probe.items()}
        shown = {name: result for name, result in shown.items() if row.can_draw(result)}
        if not shown:
            raise MissingArtifact(f"no {row.probe} artifacts for {kind} under {results.folder}")
        return _with_menu(row, shown)
    if missing := [name for name, result in results.items() if not row.can_draw(result)]:
        raise ValueError(f"{kind} needs {' or '.join(row.keys)}, which {missing[0]} has not; it is {row.probe}'s")
    return _with_menu(row, results)


def _still(kind: Kind, results: Mapping[str, Mapping]) -> Figure:
    rows = cells_of(kind, results)
    return draw_cells(Figure(dpi=DOTS_PER_INCH), sum(rows, []), len(rows[0]), kind.title)


def _with_menu(kind: Heat, results: Mapping[str, Mapping]) -> "go.Figure":
    """The panels of the first run; the menu shows those of another."""
    from plotly.subplots import make_subplots

    panels = {name: kind.panels(result) for name, result in results.items()}
    across = max(map(len, panels.values()))
    figure = make_subplots(1, across, horizontal_spacing=0.08)
    owners, layouts = [], {}
    for name, shown in panels.items():
        maps = [kind.cells(panel) for panel in shown.values()]
        scales = [kind.scale([one]) for one in maps] if kind.alone else [kind.scale(maps)] * len(maps)
        tokens = list(map(token_label, results[name].get("tokens") or ())) if kind.tokens else []
        titles, axes = [], {}
        for column, (part, values, (low, high)) in enumerate(zip(shown, maps, scales, strict=True), 1):
            figure.add_trace(_heat_map(kind, values, low, high, tokens, column == len(maps)), 1, column)
            owners.append(name)
            titles.append(_above(part, column, across))
            if tokens:
                n = values.shape[1]
                ticks = {"tickvals": list(range(n)), "ticktext": tokens[:n]}
                axes[f"xaxis{column if column > 1 else ''}"] = ticks | {"title": {"text": kind.xlabel}}
        layouts[name] = {"annotations": titles, **axes}
    first = next(iter(panels))
    for trace, owner in zip(figure.data, owners, strict=True):
        trace.visible = owner == first
    buttons = [
        {"label": name, "method": "update", "args": [{"visible": [owner == name for owner in owners]}, layouts[name]]}
        for name in panels
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "pad": {"b": 18}}
    figure.update_layout(updatemenus=[menu], height=_HEIGHT, margin=_MARGINS, template="simple_white", **layouts[first])
    figure.update_xaxes(title_text=_plain(kind.xlabel), zeroline=False, rangemode="nonnegative", tickformat="d")
    figure.update_yaxes(zeroline=False, tickformat="d")
    figure.update_yaxes(title_text=_plain(kind.ylabel), col=1)
    return figure


def _heat_map(
    kind: Heat, values: np.ndarray, low: float, high: float, tokens: list[str], with_bar: bool
) -> "go.Heatmap":
    import plotly.graph_objects as go

    label = _plain(kind.colorbar).replace("\n", " ")
    column = "token %{customdata}" if tokens else f"{_plain(kind.xlabel).lower()} %{{x}}"
    names = np.broadcast_to(np.array(tokens[: values.shape[1]], dtype=object), values.shape) if tokens else None
    return go.Heatmap(
        z=np.asarray(values, dtype=np.float32),
        zmin=low,
        zmax=high,
        colorscale="RdBu_r" if kind.diverging else "Viridis",
        customdata=names,
        hovertemplate=f"{_plain(kind.ylabel).lower()} %{{y}}<br>{column}<br>{label.lower()} %{{z:.3g}}<extra></extra>",
        showscale=with_bar,
        colorbar={"title": {"text": label, "side": "right"}, "thickness": 12},
    )


def _above(text: str, column: int, across: int) -> dict:
    """A panel's title, over its middle."""
    middle = (column - 0.5) / across
    place = {"x": middle, "y": 1.0, "xref": "paper", "yref": "paper", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 10}} | place


def _plain(label: str) -> str:
    """A label without mathematics."""
    return label.replace("$l$", "").replace(r" / $\pi$", " / π").replace("$", "").strip()
