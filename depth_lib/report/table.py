"""The tables of a study, written as csv, TeX and an Excel workbook."""

import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

from ..effective_depth.difficulty import scores_by_level
from ..effective_depth.published import beside_the_paper
from ..effective_depth.rules import PAPER_METRICS
from ..effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from ..files import write_together
from ..results.meta import made_from
from ..results.study import TABLE_PROBES, Study
from .definitions import DEFINITIONS, SOURCES

MISSING = "–"
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
    for name in ("intervals", "five_probes", "beside_the_paper", "by_difficulty"):
        frame = getattr(tables, name)
        if len(frame):
            path = folder / f"effective_depth_{name}.csv"
            contents[path] = frame.to_csv(index=False, float_format="%.4f").encode()
    write_together(contents)
    return list(contents)


def effective_depth_table(study: Study, every_depth: pd.DataFrame | None = None) -> pd.DataFrame:
    """Effective depth (a layer, Int64) and ratio (ED + 1) / L (Float64) per model and dataset of a study.

    Rows are models, columns (metric, dataset, "ED" | "RATIO"), both in the study's order. Datasets that were run only
    for levels of difficulty have no column. A result or an effective depth that is missing is NA.
    every_depth: what `depths` returns, where it is known already. Source: Hu et al. 2025, Table 1.
    """
    if every_depth is None:
        every_depth = depths(study, PAPER_METRICS)
    value_of = every_depth.set_index(["metric", "dataset", "model"])
    columns = pd.MultiIndex.from_product(
        [PAPER_METRICS, study.with_depths, ("ED", "RATIO")], names=["metric", "dataset", "value"]
    )
    table = pd.DataFrame(index=pd.Index(study.models, name="model"), columns=columns)
    for metric, dataset, value in columns:
        rows = [(metric, dataset, model) for model in study.models]
        column = value_of["ed" if value == "ED" else "ratio"].reindex(rows)
        table[metric, dataset, value] = column.set_axis(study.models)
    return table


def provenance(study: Study) -> pd.DataFrame:
    """Columns "Run" (model, dataset) and "Made from": model id and revision, dtype, prompts, where, when, versions.

    One row per group of a run's probes that were made alike. Files without `meta` say so.
    """
    probes_of: dict[tuple[str, str], list[str]] = {}
    for dataset, model, probe in study:
        if result := study.get((dataset, model, probe)):
            probes_of.setdefault((f"{model}, {dataset}", made_from(result["meta"])), []).append(probe)
    rows = [(run, f"{', '.join(probes)}: {text}") for (run, text), probes in probes_of.items()]
    return pd.DataFrame(rows, columns=["Run", "Made from"])


def summary_lines(table: pd.DataFrame) -> list[str]:
    """One line per model and dataset, as the papers print them: `Qwen2.5-7B @ gsm8k : 17(0.64) 20(0.75) 23(0.86)`."""
    text = _as_text(table)
    metrics = text.columns.unique("metric")
    datasets = text.columns.unique("dataset")
    if datasets.empty:
        return [f"no dataset of this table is run for {' and '.join(TABLE_PROBES)}"]
    model_width = max((len(model) for model in text.index), default=0)
    dataset_width = max(len(dataset) for dataset in datasets)
    lines = []
    for model, row in text.iterrows():
        for dataset in datasets:
            cells = [_cell(row[metric, dataset, "ED"], row[metric, dataset, "RATIO"]) for metric in metrics]
            numbers = " ".join(f"{cell:>8}" for cell in cells)
            lines.append(f"{model:{model_width}} @ {dataset:{dataset_width}} : {numbers}".rstrip())
    return lines


def _cell(depth: str, ratio: str) -> str:
    return MISSING if depth == MISSING else f"{depth}({ratio})"


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table as people read it; ratios rounded half to even, as the papers' own printing does."""
    text = table.astype(object)
    for column in table.columns:
        form = "{:.2f}" if column[-1] == "RATIO" else "{:d}"
        text[column] = [MISSING if pd.isna(value) else form.format(value) for value in table[column]]
    return text


# The workbook


def _workbook(tables: Tables) -> bytes:
    ratios = [column for column in tables.effective_depth.columns if column[-1] == "RATIO"]
    styled = tables.effective_depth.style.set_properties(subset=ratios, **{"number-format": "0.00"})
    styled = styled.background_gradient("RdYlGn", vmin=0, vmax=1, axis=None, subset=ratios)
    styled = styled.highlight_null(props="background-color: white; color: black")
    definitions = [(name, *texts) for name, texts in DEFINITIONS.items()]
    definitions += [("Source", source, "", "") for source in SOURCES]
    sheets = {
        "Intervals": tables.intervals,
        "All Probes": tables.five_probes,
        "Beside The Paper": tables.beside_the_paper,
        "By Difficulty": tables.by_difficulty,
        "Where From": tables.provenance,
        "Description": pd.DataFrame(definitions, columns=["Name", "What it is", "Rule", "Read from"]),
    }
    buffer = io.BytesIO()
    with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
        if ratios:
            styled.to_excel(writer, sheet_name="Effective Depth Results", na_rep=MISSING)
            _lay_out(writer.sheets["Effective Depth Results"], first_row=tables.effective_depth.columns.nlevels + 2)
        for name, frame in sheets.items():
            if len(frame):
                shown = frame.rename(columns=lambda column: column.replace("_", " "))
                shown.to_excel(writer, sheet_name=name, index=False, na_rep=MISSING, float_format="%.2f")
                _lay_out(writer.sheets[name], first_row=2)
    return buffer.getvalue()


def _lay_out(sheet: Worksheet, first_row: int) -> None:
    """Columns as wide as their texts, long texts wrapped, headers in sight; printed in landscape, one page wide."""
    for number, column in enumerate(sheet.iter_cols(), start=1):
        longest = max(len(str(cell.value)) for cell in column if cell.value is not None)
        sheet.column_dimensions[get_column_letter(number)].width = min(longest, _WIDEST) + 2
        for cell in column:
            cell.alignment = Alignment(horizontal=cell.alignment.horizontal, vertical="top", wrap_text=True)
    sheet.freeze_panes = sheet.cell(first_row, 2)
    sheet.print_title_rows = f"1:{first_row - 1}"
    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.paperSize = sheet.PAPERSIZE_A4
    sheet.page_setup.fitToHeight = 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True
    sheet.oddFooter.right.text = "&A, page &P of &N"


# TeX. `Styler.to_latex` draws no rules below spanning headers, so the header is written here.

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
%s
\end{document}
"""


def _tex(text: pd.DataFrame) -> str:
    lines = [
        rf"\begin{{tabular}}{{l{'r' * text.shape[1]}}}",
        r"\toprule",
        *_tex_header(text.columns, 1),
        *_tex_header(text.columns, 2),
        _tex_row(["Model", *text.columns.get_level_values("value")]),
        r"\midrule",
        *[_tex_row(row) for row in text.itertuples()],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return _TEX.replace("%s", "\n".join(lines))


def _tex_header(columns: pd.MultiIndex, depth: int) -> list[str]:
    """One header level: its names over the columns they span, and the rules below them."""
    names, rules = "", ""
    start = 2  # LaTeX counts from one, and the model's name is the first column
    for path, group in itertools.groupby(columns, key=lambda column: column[:depth]):
        span = len(list(group))
        names += rf" & \multicolumn{{{span}}}{{c}}{{{_tex_escape(path[-1])}}}"
        rules += rf"\cmidrule(lr){{{start}-{start + span - 1}}}"
        start += span
    return [names + r" \\", rules]


def _tex_row(cells: list[str]) -> str:
    return " & ".join(_tex_escape(cell) for cell in cells) + r" \\"


def _tex_escape(text: str) -> str:
    text = re.sub(r"[&%$#_{}]", lambda match: "\\" + match[0], text.replace("\\", "/"))
    return text.replace(MISSING, "--").replace("~", r"\textasciitilde{}").replace("^", r"\textasciicircum{}")
