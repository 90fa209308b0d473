"""The tables of a study: as csv, TeX and an Excel workbook, and as HTML for notebook and page."""

import io
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from great_tables import GT, loc, style
from pandas.io.formats.style import Styler

from ..effective_depth.difficulty import scores_by_level
from ..effective_depth.orders import stretches
from ..effective_depth.published import beside_the_paper
from ..effective_depth.rules import PAPER_METRICS
from ..effective_depth.tables import CONTROL, controls, depths
from ..files import write_together
from ..results.provenance import made_from
from ..results.schemas import BY_LENS
from ..results.study import TABLE_PROBES, Study
from .definitions import DEFINITIONS

MISSING = "–"
_DEEPEST = 33, 113, 181  # red, green, blue
NAMES = {  # in the papers
    "cosine": "Cosine",
    "kl": "Logit Lens KL",
    "overlap": "Logit Lens Overlap",
    "removal": "Removal",
    "hellaswag": "HellaSwag",
    "gsm8k": "GSM8K",
    "aime24": "AIME24",
    "mquake": "MQuAKE",
    "math": "MATH",
    "RATIO": "Ratio",
}
_INTERVALS = "model dataset metric layers prompts ed low high ratio ratio_low ratio_high same without note".split()
_FIVE_PROBES = "model dataset metric layers ed ratio score score_low score_high".split()


@dataclass(frozen=True)
class Tables:
    """The tables of a study: `depths`, and what is read off it: `effective_depth_table` and `beside_the_paper`;
    `controls`, which no file has; `scores_by_level`, `stretches` and `provenance`."""

    depths: pd.DataFrame
    controls: pd.DataFrame
    effective_depth: pd.DataFrame
    beside_the_paper: pd.DataFrame
    by_difficulty: pd.DataFrame
    orders: pd.DataFrame
    provenance: pd.DataFrame

    @property
    def intervals(self) -> pd.DataFrame:
        """The papers' depths with their intervals."""
        papers = self.depths.metric.str.split("@").str[0].isin(PAPER_METRICS)
        return self.depths.loc[papers, _INTERVALS].reset_index(drop=True)

    def further(self) -> dict[str, pd.DataFrame]:
        """Name of a file or sheet -> table, of those beside the papers' that have a row."""
        frames = {
            "intervals": self.intervals,
            "five_probes": self.depths[_FIVE_PROBES],
            "beside_the_paper": self.beside_the_paper,
            "by_difficulty": self.by_difficulty,
            "orders": self.orders,
        }
        return {name: frame for name, frame in frames.items() if len(frame)}


def read_tables(study: Study) -> Tables:
    """Every table of a study."""
    every_depth = depths(study)
    return Tables(
        depths=every_depth,
        controls=controls(study),
        effective_depth=effective_depth_table(study, every_depth),
        beside_the_paper=beside_the_paper(every_depth),
        by_difficulty=scores_by_level(study),
        orders=stretches(study),
        provenance=provenance(study),
    )


def write_tables(tables: Tables, folder: str | Path) -> list[Path]:
    """Write effective_depth.xlsx, .csv and .tex, and effective_depth_<table>.csv of each further table with a row.

    In the csv ratios are rounded to two decimals as in the paper and missing values are "–"; it has three header rows:
    `pd.read_csv(path, header=[0, 1, 2], index_col=0, na_values="–")`. The TeX is a whole document with the papers'
    names, whose tabular can be copied into a paper that loads booktabs and xcolor. The workbook has one sheet per
    table.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = _as_text(tables.effective_depth)
    contents = {
        folder / "effective_depth.xlsx": _workbook(tables),
        folder / "effective_depth.csv": text.rename_axis(index=None).to_csv().encode(),
        folder / "effective_depth.tex": _tex(tables.effective_depth).encode(),
    }
    for name, frame in tables.further().items():
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


def by_lens(every_depth: pd.DataFrame) -> list[str]:
    """A line per model, dataset and rule, of those that are read by several lenses: "toy-8l on gsm8k, KL: layer 6 [5,
    6] by the logit lens, layer 3 [2, 4] by jacobian". every_depth: what `depths` returns."""
    names = every_depth.metric.str.split(BY_LENS)
    rows = every_depth.assign(rule=names.str[0], lens=names.str[1].astype(object).fillna("the logit lens"))
    lines = []
    for _, ones in rows.groupby(["model", "dataset", "rule"], sort=False):
        model, dataset, rule = ones[["model", "dataset", "rule"]].iloc[0]
        if rule in PAPER_METRICS and len(ones) > 1:
            said = [f"{_layer(row)} by {lens}" for lens, row in zip(ones.lens, ones.itertuples(), strict=True)]
            lines.append(f"{model} on {dataset}, {NAMES[rule].removeprefix('Logit Lens ')}: {', '.join(said)}")
    return lines


def _layer(row: Any) -> str:
    if pd.isna(row.ed):
        return "no layer"
    if pd.isna(row.low) and pd.isna(row.high):
        return f"layer {row.ed}"
    low, high = ("open" if pd.isna(end) else end for end in (row.low, row.high))
    return f"layer {row.ed} [{low}, {high}]"


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


def depth_lines(study: Study) -> list[str]:
    """The effective depths of a study in words: by each rule, by each lens, with random weights, by difficulty."""
    lines = []
    if study.with_depths:
        every_depth = depths(study)
        lines.append("effective depth by cosine, kl, overlap: layer(ratio); –: none, or not run")
        lines += [*summary_lines(effective_depth_table(study, every_depth)), *by_lens(every_depth)]
    if len(untrained := controls(study)):
        lines += [f"with {CONTROL}:", *summary_lines(effective_depth_table(study, untrained))]
    if len(scores := scores_by_level(study)):
        lines += scores.answer.unique()
    return lines


def depth_table(tables: Tables, *metrics: str) -> GT:
    """The depths for notebook and page: a row per model and dataset, a column per metric, by default all there are; of
    metrics that are named also the rows with random weights.

    In each cell the depth with its ratio, below them the 95 % interval over prompts or the depth score, or why there is
    none. The darker, the deeper.
    """
    rows = tables.depths
    if metrics:
        untrained = tables.controls.assign(model=tables.controls.model + f", {CONTROL}")
        rows = pd.concat([rows, untrained]).query("metric in @metrics")
    cells = rows.assign(cell=[*map(_cell, rows.itertuples())])
    runs, columns = pd.MultiIndex.from_frame(rows[["model", "dataset"]]).unique(), [*rows.metric.unique()]
    shown, ratios = (
        cells.pivot(index=["model", "dataset"], columns="metric", values=value).reindex(index=runs, columns=columns)
        for value in ("cell", "ratio")
    )
    frame = shown.fillna(MISSING).reset_index().replace({"dataset": NAMES})
    table = GT(frame, rowname_col="dataset", groupname_col="model").tab_stubhead("dataset")
    table = table.cols_label(
        {name: NAMES.get(name) or name.replace("_", " ").replace(BY_LENS, ", ") for name in columns}
    )
    table = table.fmt_markdown(columns).cols_align("center", columns).tab_options(table_width="100%")
    for (row, _), (column, ratio) in product(enumerate(runs), ratios.items()):
        if pd.notna(ratio.iloc[row]):
            table = table.tab_style(style.fill(_colour(ratio.iloc[row])), loc.body(column, [row]))
    return table


def _cell(row: Any) -> str:
    """A depth in Markdown: 17 (0.64), below it its interval, score or note."""
    depth = f"**{row.ed}** ({row.ratio:.2f})" if pd.notna(row.ed) else MISSING
    lines = []
    if pd.notna(row.low) or pd.notna(row.high):
        ends = ("no depth" if pd.isna(end) else f"{end}" for end in (row.low, row.high))
        lines.append(" to ".join(dict.fromkeys(ends)))
    if pd.notna(row.score):
        ends = "" if pd.isna(row.score_low) else f" [{row.score_low:.1f}, {row.score_high:.1f}]"
        lines.append(f"score {row.score:.1f}{ends}")
    lines = lines or [row.note.removeprefix("no interval: ") if depth == MISSING else row.note.partition(":")[0]]
    return "<br>".join([depth, *(f"<small>{line}</small>" for line in lines if line)])


def _colour(ratio: float) -> str:
    """The darker, the deeper; black text can be read on all of them."""
    return "#" + "".join(f"{round(255 + 0.6 * ratio * (channel - 255)):02x}" for channel in _DEEPEST)


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table as people read it; ratios rounded half to even, as the papers' own printing does."""
    text = table.astype(object)
    for column in table.columns:
        form = "{:.2f}" if column[-1] == "RATIO" else "{:d}"
        text[column] = text[column].map(form.format, na_action="ignore")
    return text.fillna(MISSING)


def _styled(table: pd.DataFrame) -> Styler:
    """The table with the papers' names in its headers, its ratios coloured."""
    table = table.rename(columns=NAMES).rename_axis(columns=[None] * 3, index=None)
    ratios = [column for column in table.columns if column[-1] == NAMES["RATIO"]]
    return table.style.map(
        lambda ratio: f"background-color: {_colour(ratio)}; number-format: 0.00" if pd.notna(ratio) else "", ratios
    )


def _workbook(tables: Tables) -> bytes:
    """One sheet per table; ratios of the first one are coloured."""
    description = DEFINITIONS.reset_index(names="Name")
    sheets = tables.further() | {"provenance": tables.provenance, "description": description}
    buffer = io.BytesIO()
    with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
        if tables.effective_depth.size:
            name = "Effective Depth Results"
            _styled(tables.effective_depth).to_excel(writer, sheet_name=name, na_rep=MISSING, freeze_panes=(4, 1))
        for name, frame in sheets.items():
            sheet = name.replace("_", " ").title()
            frame.to_excel(writer, sheet_name=sheet, index=False, na_rep=MISSING, float_format="%.2f")
    return buffer.getvalue()


_TEX = r"""% Effective depth (ED) and ratio (ED + 1) / L, written by depth_lib; "--" is a missing value.
% To use the table in a paper, copy the tabular and load booktabs and [table]{xcolor}.
\documentclass{article}
\usepackage[a4paper, landscape, margin=10mm]{geometry}
\usepackage{booktabs}
\usepackage[table]{xcolor}
\pagestyle{empty}
\begin{document}
\footnotesize
\setlength{\tabcolsep}{3pt}
\noindent
%s\end{document}
"""


def _tex(table: pd.DataFrame) -> str:
    """A document with the table, its ratios coloured as in the workbook."""
    if table.columns.empty:
        return _TEX.replace("%s", "No dataset of this table has effective depths.\n")
    shown: Any = _styled(table).format(precision=2, na_rep="--", escape="latex")
    shown = shown.format_index(escape="latex").format_index(escape="latex", axis="columns")
    columns = "l" + "r" * table.shape[1]
    return _TEX.replace("%s", shown.to_latex(column_format=columns, multicol_align="c", hrules=True, convert_css=True))
