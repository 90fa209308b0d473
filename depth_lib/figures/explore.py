"""Heat maps to look into: the same rows of `KINDS` drawn by plotly, where hovering tells layer, token and value."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..results.study import Study
from .grid import by_name, cells_of, draw_cells, drawable, grid
from .kinds import find_kind
from .marks import Heat, Panel, token_label

if TYPE_CHECKING:
    import plotly.graph_objects as go


def explore(kind: str, results: Mapping | Study, pair: str = "") -> "go.Figure | Figure":
    """A heat map of a study, or of {name: result}: one run at a time, chosen from a menu.

    Of a kind without heat maps, or where plotly is not installed, what `grid` or `plot` draws. pair: as in `grid`.
    MissingArtifact if a study has nothing of it, ValueError for an unknown kind or results of another probe.
    """
    row = find_kind(kind)
    if not isinstance(row, Heat) or not find_spec("plotly"):
        if isinstance(results, Study):
            return grid(kind, results, pair)
        return draw_cells(*cells_of(row, results), row.title)
    if isinstance(results, Study):
        found = drawable(row, results, pair)
        results = {f"{model}, {dataset}".removesuffix(", "): result for (dataset, model), result in found.items()}
    cells_of(row, results)  # refuses a result of another probe
    return _with_menu(row, by_name(results))


def _with_menu(kind: Heat, results: Mapping[str, Mapping]) -> "go.Figure":
    """The panels of each run, of which the menu shows one."""
    from plotly.subplots import make_subplots

    across = max(len(kind.panels(result)) for result in results.values())
    figure, owners, layouts = make_subplots(1, across), [], {}
    for name, result in results.items():
        panels = kind.panels(result)
        for column, panel in enumerate(panels.values(), 1):
            trace = _heat_map(kind, panel, result).update(showscale=column == len(panels), visible=not layouts)
            figure.add_trace(trace, 1, column)
            owners.append(name)
        titles = make_subplots(1, across, subplot_titles=[*panels]).layout.annotations
        height = 210 + max(240, 14 * len(trace.z)) if kind.words(result) is not None else 450
        layouts[name] = {"annotations": titles, "height": height}
    menu = [
        {"label": name, "method": "update", "args": [{"visible": [name == owner for owner in owners]}, layout]}
        for name, layout in layouts.items()
    ]
    place = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "pad": {"b": 24}}
    first = next(iter(layouts.values()))
    figure.update_layout(first, updatemenus=[{"buttons": menu} | place], template="simple_white")
    figure.update_layout(margin={"l": 55, "r": 10, "t": 100, "b": 60})  # above: plotly's buttons, menu, titles
    figure.update_xaxes(title_text=_plain(kind.xlabel), type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False).update_yaxes(title_text=_plain(kind.ylabel), col=1)
    return figure


def _heat_map(kind: Heat, panel: Panel, result: Mapping) -> "go.Heatmap":
    import plotly.graph_objects as go

    values, words, label = kind.cells(panel), kind.words(result), _plain(kind.colorbar).replace("\n", " ")
    low, high = kind.ends(values)
    tokens = [f"{i} {token_label(token)}" for i, token in enumerate(result.get("tokens") or ())]
    xlabel, ylabel = _plain(kind.xlabel).lower(), _plain(kind.ylabel).lower()
    return go.Heatmap(
        z=values.astype("float32"),
        x=tokens[: values.shape[1]] if kind.tokens and tokens else [*range(values.shape[1])],
        y=[*range(len(values))],
        text=words,
        texttemplate=None if words is None else "%{text}",
        zmin=low,
        zmax=high,
        colorscale="RdBu_r" if kind.diverging else "Viridis",
        hovertemplate=f"{ylabel} %{{y}}<br>{xlabel} %{{x}}<br>{label.lower()} %{{z:.3g}}<extra>%{{text}}</extra>",
        colorbar={"title": {"text": label, "side": "right"}, "thickness": 12},
    )


def _plain(label: str) -> str:
    """A label without mathematics."""
    return label.replace("$l$", "").replace(r" / $\pi$", " / π").strip()
