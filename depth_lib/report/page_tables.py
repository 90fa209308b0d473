"""The tables of the report as HTML: few narrow columns, so that they fit a phone."""

import html

import matplotlib
import pandas as pd

from ..effective_depth.rules import METRICS, PAPER_METRICS
from .sheets import VERDICTS
from .spreadsheet import MISSING


def depths_html(stability: pd.DataFrame, models: list[str], datasets: list[str]) -> str:
    """A table a metric: ED, ratio, interval and agreement of the draws, coloured by ratio as the workbook is."""
    rows_of = {(row.model, row.dataset, row.metric): row for row in stability.itertuples()}
    tables = []
    for metric in PAPER_METRICS:
        ratios = stability.ratio[stability.metric == metric].dropna()
        body = [
            [
                f"<th>{_name(model)}</th>",
                *(_depth_cell(rows_of.get((model, dataset, metric)), ratios) for dataset in datasets),
            ]
            for model in models
        ]
        tables.append(f"<h3>{metric}</h3>" + _table(["Model", *datasets], body))
    return "".join(tables)


def _depth_cell(row, ratios: pd.Series) -> str:
    if row is None:
        return f"<td>{MISSING}</td>"
    note = f' title="{html.escape(row.note)}"' if row.note else ""
    if pd.isna(row.ed):
        return f"<td{note}>{MISSING}{_interval(row)}</td>"
    low, span = float(ratios.min()), float(ratios.max() - ratios.min())
    place = (row.ratio - low) / span if span else 0.5
    red, green, blue, _ = matplotlib.colormaps["RdYlGn"](0.1 + 0.8 * place, bytes=True)
    return (
        f'<td{note} style="background:rgb({red},{green},{blue},.55)"><b>{row.ed}</b> ({row.ratio:.2f})'
        f"{_interval(row)}</td>"
    )


def _interval(row) -> str:
    if pd.isna(row.same):
        return "<small>no interval</small>"
    if row.without == 1:
        return "<small>in no draw</small>"
    return f"<small>{_span(row.low, row.high)}, {row.same:.0%}</small>"


def stability_html(stability: pd.DataFrame) -> str:
    """A row a model × dataset × metric: what its depth rests on."""
    body = [
        [
            f"<th>{_name(row.model)} <small>{html.escape(row.dataset)}</small></th>",
            f"<td>{row.metric}</td>",
            f"<td>{_whole(row.ed)}</td>",
            f"<td>{_decimal(row.fractional)}</td>",
            f"<td>{MISSING if row.metric == 'cosine' else _span(row.thresholds_low, row.thresholds_high)}</td>",
            f"<td>{html.escape(row.crossings) or MISSING}</td>",
        ]
        for row in stability.itertuples()
    ]
    table = _table(["Model, dataset", "Metric", "ED", "Between layers", "Over thresholds", "Crossings"], body)
    return f"<details><summary>Every value ({len(stability)})</summary>{table}</details>" if body else ""


def five_probes_html(depths: pd.DataFrame) -> str:
    """A row a model × dataset, a column a probe's metric: ED, ratio, depth score."""
    rows_of = {(row.model, row.dataset, row.metric): row for row in depths.itertuples()}
    runs = list(dict.fromkeys((model, dataset) for model, dataset, _ in rows_of))
    body = [
        [
            f"<th>{_name(model)} <small>{html.escape(dataset)}</small></th>",
            *(_probe_cell(rows_of.get((model, dataset, metric))) for metric in METRICS),
        ]
        for model, dataset in runs
    ]
    header = ["Model, dataset", *(metric.replace("igrads", "gradients") for metric in METRICS)]
    return _table(header, body) if body else ""


def _probe_cell(row) -> str:
    if row is None:
        return f"<td>{MISSING}</td>"
    score = "" if pd.isna(row.score) else f"<small>mass {row.score:.1f}</small>"
    return f"<td><b>{_whole(row.ed)}</b><small>{_decimal(row.ratio)}</small>{score}</td>"


def beside_html(beside: pd.DataFrame) -> str:
    """Published and own values with a coloured verdict, and a count of the verdicts."""
    if beside.empty:
        return "<p>None of these models and datasets is in the paper.</p>"
    body = [
        [
            f"<th>{_name(row.model)} <small>{html.escape(row.dataset)}</small></th>",
            f"<td>{row.metric}</td>",
            f"<td>{row.published}</td>",
            f"<td>{_whole(row.ours)}</td>",
            f"<td>{_signed(row.difference)}</td>",
            f"<td>{_span(row.low, row.high)}</td>",
            f'<td style="background:#{VERDICTS[row.verdict]}">{row.verdict}</td>',
        ]
        for row in beside.itertuples()
    ]
    counts = ", ".join(f"{verdict}: {count}" for verdict, count in beside.verdict.value_counts().items())
    table = _table(["Model, dataset", "Metric", "Paper", "Ours", "±", "Interval", "Verdict"], body)
    return f"<p>{counts}</p><details open><summary>Every value ({len(beside)})</summary>{table}</details>"


def coverage_html(measured: pd.DataFrame) -> str:
    """A row a number of prompts: mean coverage over the populations, and the lowest."""
    body = []
    for n_prompts, rows in measured.groupby("n_prompts"):
        shares = [rows[rows.metric == metric].coverage for metric in PAPER_METRICS]
        cells = [f"<td>{share.mean():.2f} ({share.min():.2f})</td>" for share in shares]
        body.append([f"<th>{n_prompts} prompts</th>", *cells])
    return _table(["", *PAPER_METRICS], body)


def rows_html(frame: pd.DataFrame) -> str:
    """A frame of two text columns."""
    body = [
        [f"<th>{_name(str(first))}</th>", f'<td class="text">{html.escape(str(second))}</td>']
        for first, second in frame.itertuples(index=False)
    ]
    return _table([str(column) for column in frame.columns], body)


def _table(header: list[str], body: list[list[str]]) -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    return (
        f"<table><thead><tr>{top}</tr></thead><tbody>"
        + "".join(f"<tr>{''.join(cells)}</tr>" for cells in body)
        + "</tbody></table>"
    )


def _name(model: str) -> str:
    """A name that may break after its hyphens."""
    return html.escape(model).replace("-", "-<wbr>")


def _whole(value: object) -> str:
    return MISSING if pd.isna(value) else str(int(value))


def _decimal(value: object) -> str:
    return MISSING if pd.isna(value) else f"{value:.2f}"


def _signed(value: object) -> str:
    return MISSING if pd.isna(value) else f"{int(value):+d}" if value else "0"


def _span(low: object, high: object) -> str:
    if pd.isna(low) and pd.isna(high):
        return MISSING
    if not pd.isna(low) and not pd.isna(high) and low == high:
        return str(low)
    return f"{'none' if pd.isna(low) else low} to {'none' if pd.isna(high) else high}"
