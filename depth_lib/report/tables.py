"""All that a study says about effective depth as tables, and the paper's own as csv and tex."""

import itertools
import re
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from ..effective_depth.difficulty import scores_by_level
from ..effective_depth.published import beside_the_paper
from ..effective_depth.rules import PAPER_METRICS
from ..effective_depth.tables import depths, depths_by_threshold, depths_with_intervals
from ..files import write_together
from ..results.study import TABLE_PROBES, Study
from .workbook import MISSING, workbook


@dataclass(frozen=True)
class Tables:
    """The tables of one study: the paper's, and what `depths_with_intervals`, `depths_by_threshold`, `depths`,
    `beside_the_paper` and `scores_by_level` return."""

    effective_depth: pd.DataFrame
    intervals: pd.DataFrame
    thresholds: pd.DataFrame
    five_probes: pd.DataFrame
    beside_the_paper: pd.DataFrame
    by_difficulty: pd.DataFrame


def read_tables(study: Study) -> Tables:
    """Every table of a study, from one reading of its results."""
    found = depths(study)
    intervals = depths_with_intervals(study, found)
    return Tables(
        effective_depth_table(study, found),
        intervals,
        depths_by_threshold(study, found),
        found.drop(columns="note"),
        beside_the_paper(intervals),
        scores_by_level(study),
    )


def write_tables(tables: Tables, folder: str | Path) -> list[Path]:
    """Write effective_depth.xlsx, .csv, .tex and effective_depth_<table>.csv of each further table that has a row.

    The paper's table has ratios rounded to two decimals as in the paper, missing values "–"; its csv has three header
    rows: `pd.read_csv(path, header=[0, 1, 2], index_col=0, na_values="–")`. The tex is a whole document that needs
    booktabs; its tabular can be copied into a paper. The workbook has a sheet a table.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        folder / "effective_depth.xlsx": workbook(tables.effective_depth, further_tables(tables)),
        folder / "effective_depth.csv": _as_text(tables.effective_depth).rename_axis(index=None).to_csv().encode(),
        folder / "effective_depth.tex": _tex(tables.effective_depth).encode(),
    }
    for name, frame in further_tables(tables).items():
        contents[folder / f"effective_depth_{name}.csv"] = frame.to_csv(index=False, float_format="%.4f").encode()
    write_together(contents)
    return list(contents)


def further_tables(tables: Tables) -> dict[str, pd.DataFrame]:
    """The tables of one row a value that have any, by name."""
    named = {field.name: getattr(tables, field.name) for field in fields(tables)[1:]}
    return {name: frame for name, frame in named.items() if len(frame)}


def effective_depth_table(study: Study, found: pd.DataFrame | None = None) -> pd.DataFrame:
    """Effective depth (a layer, Int64) and ratio (ED + 1) / L (Float64) of every model × dataset of a study.

    Rows are models, columns (metric, dataset, "ED" | "RATIO"), both in the study's order; datasets that are run for
    levels of difficulty alone have none. What is not there, or has no effective depth, is missing (NA).
    found: what `depths` returns, if it is known. Source: Hu et al. 2025, Table 1.
    """
    found = depths(study, PAPER_METRICS) if found is None else found
    value_of = found.set_index(["metric", "dataset", "model"])
    columns = pd.MultiIndex.from_product(
        [PAPER_METRICS, study.with_depths, ("ED", "RATIO")], names=["metric", "dataset", "value"]
    )
    table = pd.DataFrame(index=pd.Index(study.models, name="model"), columns=columns)
    for metric, dataset, value in columns:
        rows = [(metric, dataset, model) for model in study.models]
        column = value_of["ed" if value == "ED" else "ratio"].reindex(rows)
        table[metric, dataset, value] = column.set_axis(study.models)
    return table


def summary_lines(table: pd.DataFrame) -> list[str]:
    """One line a model × dataset, as the papers print them: `Qwen2.5-7B @ gsm8k : 17(0.64) 20(0.75) 23(0.86)`."""
    text = _as_text(table)
    metrics, datasets = (text.columns.unique(level) for level in ("metric", "dataset"))
    widths = [max((len(name) for name in names), default=0) for names in (text.index, datasets)]
    lines = [] if len(datasets) else [f"no dataset of this table is run for {' and '.join(TABLE_PROBES)}"]
    for model, row in text.iterrows():
        for dataset in datasets:
            cells = [_cell(row[metric, dataset, "ED"], row[metric, dataset, "RATIO"]) for metric in metrics]
            line = f"{model:{widths[0]}} @ {dataset:{widths[1]}} : {' '.join(f'{cell:>8}' for cell in cells)}"
            lines.append(line.rstrip())
    return lines


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table as people read it; ratios rounded half to even, as the papers' own printing does."""
    columns = {}
    for column in table.columns:
        form = "{:.2f}" if column[-1] == "RATIO" else "{:d}"
        columns[column] = [MISSING if pd.isna(value) else form.format(value) for value in table[column]]
    text = pd.DataFrame(dict(enumerate(columns.values())), index=table.index, dtype=str)
    return text.set_axis(table.columns, axis="columns")


def _cell(ed: str, share: str) -> str:
    return MISSING if ed == MISSING else f"{ed}({share})"


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


def _tex(table: pd.DataFrame) -> str:
    text = _as_text(table)
    rows = [
        " & ".join([_tex_escape(model), *(_tex_escape(cell) for cell in row)]) + r" \\"
        for model, row in zip(text.index, text.itertuples(index=False), strict=True)
    ]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * text.shape[1]}}}",
        r"\toprule",
        *_tex_header(text.columns, 1),
        *_tex_header(text.columns, 2),
        " & ".join(["Model", *text.columns.get_level_values(2)]) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return _TEX.replace("%s", "\n".join(lines))


def _tex_header(columns: pd.MultiIndex, depth: int) -> list[str]:
    """One header level: its names over the columns they span, and the rules below them."""
    names, rules = [""], []
    start = 2  # LaTeX counts from one, and the model's name is the first column
    for name, group in itertools.groupby(columns, key=lambda column: column[:depth]):
        span = len(list(group))
        names.append(rf"\multicolumn{{{span}}}{{c}}{{{_tex_escape(name[-1])}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
        start += span
    return [" & ".join(names) + r" \\", "".join(rules)]


def _tex_escape(text: str) -> str:
    text = re.sub(r"[&%$#_{}]", lambda match: "\\" + match[0], text.replace("\\", "/"))
    return text.replace(MISSING, "--").replace("~", r"\textasciitilde{}").replace("^", r"\textasciicircum{}")
