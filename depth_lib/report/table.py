"""The tables of a study, written as csv, TeX and an Excel workbook."""

import io
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
from openpyxl.styles import Alignment
from openpyxl.worksheet.worksheet import Worksheet

from ..effective_depth.difficulty import scores_by_level
from ..effective_depth.published import beside_the_paper
from ..effective_depth.rules import PAPER_METRICS
from ..effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from ..files import write_together
from ..results.provenance import made_from
from ..results.study import TABLE_PROBES, Study
from .definitions import DEFINITIONS

MISSING = "–"
_FURTHER = ("intervals", "five_probes", "beside_the_paper", "by_difficulty")
_WIDEST = 60  # characters of a column of the workbook


@dataclass(frozen=True)
class Tables:
    """The tables of a study: `effective_depth_table`, `depths_with_intervals`, `depths_by_threshold`, `depths`,
    `beside_the_paper`, `scores_by_level` and `provenance`."""

    effective_depth: pd.DataFrame
    intervals: pd.DataFrame
    thresholds: pd.DataFrame
    five_probes: pd.DataFrame
    beside_the_paper: pd.DataFrame
    by_difficulty: pd.DataFrame
    provenance: pd.DataFrame


def read_tables(study: Study) -> Tables:
    """Every table of a study."""
    every_depth = depths(study)
    intervals = depths_with_intervals(study, every_depth)
    return Tables(
        effective_depth=effective_depth_table(study, every_depth),
        intervals=intervals,
        thresholds=depths_by_threshold(study, every_depth),
        five_probes=every_depth.drop(columns="note"),
        beside_the_paper=beside_the_paper(intervals),
        by_difficulty=scores_by_level(study),
        provenance=provenance(study),
    )


def write_tables(tables: Tables, folder: str | Path) -> list[Path]:
    """Write effective_depth.xlsx, .csv and .tex, and effective_depth_<table>.csv of each further table with a row.

    In the csv ratios are rounded to two decimals as in the paper and missing values are "–"; it has three header rows:
    `pd.read_csv(path, header=[0, 1, 2], index_col=0, na_values="–")`. The TeX is a whole document that needs booktabs;
    its tabular can be copied into a paper. The workbook has one sheet per table.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = _as_text(tables.effective_depth)
    contents = {
        folder / "effective_depth.xlsx": _workbook(tables),
        folder / "effective_depth.csv": text.rename_axis(index=None).to_csv().encode(),
        folder / "effective_depth.tex": _tex(text).encode(),
    }
    for name in _FURTHER:
        frame = getattr(tables, name)
        if len(frame):
            path = folder / f"effective_depth_{name}.csv"
            contents[path] = frame.to_csv(index=False, float_format="%.4f").encode()
    write_together(contents)
    return list(contents)


def effective_depth_table(study: Study, every_depth: pd.DataFrame | None = None) -> pd.DataFrame:
    """Effective depth (a layer, Int64) and ratio (ED + 1) / L (Float64) per model and dataset of a study.

    Rows are models, columns (metric, dataset, "ED" | "RATIO"), both in the study's order: the papers' metrics, and if
    blocks were removed "removal". Datasets that were run only for levels of difficulty have no column. A result or
    an effective depth that is missing is NA; `attrs["no_signal"]` has the reasons of curves that carry none, by model
    and dataset. every_depth: what `depths` returns, where it is known already. Source: Hu
    et al. 2025, Table 1.
    """
    if every_depth is None:
        every_depth = depths(study, (*PAPER_METRICS, "removal"))
    measured = every_depth[every_depth.dataset.isin(study.with_depths)].metric
    metrics = [*PAPER_METRICS, *{"removal"}.intersection(measured)]
    values = every_depth.rename(columns={"ed": "ED", "ratio": "RATIO"})
    table = values.pivot(index="model", columns=["metric", "dataset"], values=["ED", "RATIO"])
    table = table.reorder_levels([1, 2, 0], axis="columns")
    columns = pd.MultiIndex.from_product(
        [metrics, study.with_depths, ("ED", "RATIO")], names=["metric", "dataset", "value"]
    )
    table = table.reindex(index=pd.Index(study.models, name="model"), columns=columns)
    table = table.astype({column: "Int64" if column[-1] == "ED" else "Float64" for column in columns})
    refused = every_depth[every_depth.metric.isin(PAPER_METRICS) & every_depth.note.str.startswith("no signal")]
    table.attrs["no_signal"] = refused.groupby(["model", "dataset"]).note.unique().map("; ".join).to_dict()
    return table


def provenance(study: Study) -> pd.DataFrame:
    """Columns run (model, dataset) and made_from: probes, model id and revision, dtype, prompts, where, when, versions.

    One row per group of a run's probes that were made alike. Files without `meta` say so.
    """
    rows = [
        (f"{model}, {dataset}", probe, made_from(result["meta"])) for (dataset, model, probe), result in study.items()
    ]
    runs = pd.DataFrame(rows, columns=["run", "probe", "made_from"])
    alike = runs.groupby(["run", "made_from"], sort=False).probe.agg(", ".join).reset_index()
    return alike.assign(made_from=alike.probe + ": " + alike.made_from)[["run", "made_from"]]


def summary_lines(table: pd.DataFrame) -> list[str]:
    """One line per model and dataset, in the papers' form: `Qwen2.5-7B @ gsm8k : 17(0.64) 20(0.75) 23(0.86)`."""
    text = _as_text(table)
    datasets = text.columns.unique("dataset")
    if datasets.empty:
        return [f"no dataset of this table is run for {' and '.join(TABLE_PROBES)}"]
    model_width, dataset_width = max(map(len, text.index)), max(map(len, datasets))
    lines = []
    for model, dataset in product(text.index, datasets):
        cells = text.loc[model].xs(dataset, level="dataset")
        depths = [
            f"{ed}({ratio})" if ed != MISSING else MISSING for ed, ratio in zip(cells[::2], cells[1::2], strict=True)
        ]
        line = f"{model:{model_width}} @ {dataset:{dataset_width}} : {' '.join(map('{:>8}'.format, depths))}"
        reason = table.attrs.get("no_signal", {}).get((model, dataset))
        lines.append(f"{line}  {MISSING} ({reason})" if reason else line)
    return lines


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table as people read it; ratios rounded half to even, as the papers' own printing does."""
    text = table.astype(object)
    for column in table.columns:
        form = "{:.2f}" if column[-1] == "RATIO" else "{:d}"
        text[column] = text[column].map(form.format, na_action="ignore")
    return text.fillna(MISSING)


# The workbook


def _workbook(tables: Tables) -> bytes:
    ratios = [column for column in tables.effective_depth.columns if column[-1] == "RATIO"]
    styled = tables.effective_depth.style.set_properties(subset=ratios, **{"number-format": "0.00"})
    styled = styled.background_gradient("Blues", vmin=0, vmax=1, axis=None, subset=ratios)
    styled = styled.highlight_null(props="background-color: white; color: black")
    definitions = pd.DataFrame(DEFINITIONS, index=["What it is", "Rule", "Read from"]).T.reset_index(names="Name")
    sheets = {name: getattr(tables, name) for name in _FURTHER}
    sheets |= {"provenance": tables.provenance, "description": definitions}
    buffer = io.BytesIO()
    with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
        if ratios:
            n_headers = tables.effective_depth.columns.nlevels + 1
            title = "Effective Depth Results"
            styled.to_excel(writer, sheet_name=title, na_rep=MISSING, freeze_panes=(n_headers, 1))
        for name, frame in sheets.items():
            if len(frame):
                frame = frame.rename(columns=lambda column: column.replace("_", " "))
                look = {"index": False, "na_rep": MISSING, "float_format": "%.2f", "freeze_panes": (1, 1)}
                frame.to_excel(writer, sheet_name=name.replace("_", " ").title(), **look)
        for sheet in writer.sheets.values():
            _lay_out(sheet)
    return buffer.getvalue()


def _lay_out(sheet: Worksheet) -> None:
    """Columns as wide as their texts, long texts wrapped; printed in landscape, one page wide, headers on each page."""
    for column in sheet.columns:
        longest = max(len(str(cell.value or "")) for cell in column)
        sheet.column_dimensions[column[-1].column_letter].width = min(longest, _WIDEST) + 2
        for cell in column:
            cell.alignment = Alignment(horizontal=cell.alignment.horizontal, vertical="top", wrap_text=True)
    sheet.print_title_rows = f"1:{sheet.sheet_view.pane.ySplit:.0f}"  # as far as they are frozen
    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.fitToHeight = 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True


# TeX


_TEX = r"""% Effective depth (ED) and ratio (ED + 1) / L, written by depth_lib; "--" is a missing value.
% To use the table in a paper, copy the tabular and load booktabs.
\documentclass{article}
\usepackage[a4paper, landscape, margin=10mm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\begin{document}
\footnotesize
\setlength{\tabcolsep}{3pt}
\noindent
%s\end{document}
"""


def _tex(text: pd.DataFrame) -> str:
    """A document with the table, with rules below metrics and datasets, which pandas cannot draw."""
    if text.columns.empty:
        return _TEX.replace("%s", "No dataset of this table has effective depths.\n")
    style = text.style.hide(names=True).hide(names=True, axis="columns").format(escape="latex")
    style = style.format_index(escape="latex").format_index(escape="latex", axis="columns")
    n_columns = text.shape[1]
    tabular = style.to_latex(column_format="l" + "r" * n_columns, multicol_align="c", hrules=True)
    lines = tabular.replace(MISSING, "--").splitlines()
    metrics, datasets, values = lines[2:5]
    below_metrics = _rules(n_columns, span=2 * len(text.columns.unique("dataset")))
    lines[2:5] = [metrics, below_metrics, datasets, _rules(n_columns, span=2), f"Model{values}"]
    return _TEX.replace("%s", "\n".join(lines) + "\n")


def _rules(n_columns: int, span: int) -> str:
    """A rule below every `span` columns; LaTeX counts from one, and the first column has the models' names."""
    starts = range(2, n_columns + 2, span)
    return "".join(rf"\cmidrule(lr){{{start}-{start + span - 1}}}" for start in starts)
