"""The paper's table as a workbook, laid out as the authors' own."""

import itertools
import math

import pandas as pd
from openpyxl import Workbook
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

MISSING = "–"
RED, YELLOW, GREEN = "F8696B", "FFEB84", "63BE7B"
_HEADER_ROWS = 3
_WIDTHS = {"A": 10, "B": 40, "C": 55, "D": 65}
_CENTRE = Alignment(horizontal="center", vertical="center")
_WRAP = Alignment(wrap_text=True, vertical="top")
_THIN, _SHADE = Side(style="thin", color="999999"), PatternFill("solid", fgColor="EEEEEE")

_DESCRIPTION = (
    (
        "cosine",
        "Where the model turns from removing features to adding them.",
        "c = mean of att_cos, mlp_cos and layer_cos; the last l in 0..L-2 with c[l] < 0 and c[l+1] ≥ 0.",
        "relative_contribution.pt: cosine similarity of what attention, MLP and block add to the residual stream with "
        "the residual stream, mean over all tokens of all prompts.",
    ),
    (
        "kl",
        "Where the logit lens comes near the model's answer.",
        "The first l in 0..L-2 with res_kl_divs[l] < 0.5 · max(res_kl_divs).",
        "logitlens_{n}exps.pt: KL(lens ‖ output) at the input of block l, in nats, mean over tokens.",
    ),
    (
        "overlap",
        "Where the logit lens already ranks the answer's top tokens high.",
        "The first l in 0..L-2 with res_overlaps[l] > 0.3.",
        "logitlens_{n}exps.pt: share of the output's five likeliest tokens among the lens's five, at the input of "
        "block l, mean over tokens.",
    ),
    (
        "ED",
        "Effective depth: the layer l, counted from 0, that the rule finds.",
        f"No such layer, or no result: {MISSING}",
        "The three rules above.",
    ),
    (
        "RATIO",
        "The effective depth as a share of the model's depth.",
        "(ED + 1) / L, rounded to two decimals. Colours: red low, yellow middle, green high, one scale a metric.",
        "L is the number of blocks.",
    ),
)
_SOURCES = (
    "Rules, thresholds and layout: Hu, Zhou, Zhang 2025, What Affects the Effective Depth of Large Language Models? "
    "(arXiv 2512.14064), Table 1.",
    "Curves: Csordás, Manning, Potts 2025, Do Language Models Use Their Depth Efficiently? (arXiv 2505.13898).",
    "Computed by depth_lib from the .pt files beside this workbook, in <dataset>/<model>/.",
)


def workbook(table: pd.DataFrame) -> Workbook:
    """Sheets "Effective Depth Results" and "Description" from an effective-depth table.

    One row a model under merged headers metric, dataset, ED | RATIO; ratios rounded to two decimals and coloured red,
    yellow, green over each metric; missing values "–"; headers and model names frozen.
    """
    book = Workbook()
    _write_results(book.active, table)
    _write_description(book.create_sheet("Description"))
    return book


def _write_results(sheet: Worksheet, table: pd.DataFrame) -> None:
    sheet.title = "Effective Depth Results"
    _write_headers(sheet, table.columns)
    for row, (model, values) in enumerate(
        zip(table.index, table.itertuples(index=False), strict=True), start=_HEADER_ROWS + 1
    ):
        sheet.cell(row, 1, model)
        for i, (column, value) in enumerate(zip(table.columns, values, strict=True), start=2):
            is_ratio = column[-1] == "RATIO"
            shown = MISSING if pd.isna(value) else round(float(value), 2) if is_ratio else int(value)
            cell = sheet.cell(row, i, shown)
            cell.alignment, cell.number_format = _CENTRE, "0.00" if is_ratio else "0"
    _colour_ratios(sheet, table)
    sheet.freeze_panes = sheet.cell(_HEADER_ROWS + 1, 2)
    sheet.column_dimensions["A"].width = max([len(str(model)) for model in table.index] + [10]) + 2
    for i in range(table.shape[1]):
        sheet.column_dimensions[get_column_letter(i + 2)].width = 8
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True


def _write_headers(sheet: Worksheet, columns: pd.MultiIndex) -> None:
    sheet.cell(1, 1, "Model")
    sheet.merge_cells(start_row=1, end_row=_HEADER_ROWS, start_column=1, end_column=1)
    for level in range(_HEADER_ROWS):
        start = 2
        for name, group in itertools.groupby(columns, key=lambda column: column[: level + 1]):
            end = start + len(list(group)) - 1
            sheet.cell(level + 1, start, name[-1])
            if end > start:
                sheet.merge_cells(start_row=level + 1, end_row=level + 1, start_column=start, end_column=end)
            start = end + 1
    for row in sheet.iter_rows(1, _HEADER_ROWS, 1, len(columns) + 1):
        for cell in row:
            cell.font, cell.alignment, cell.fill = Font(bold=True), _CENTRE, _SHADE
            cell.border = Border(left=_THIN, right=_THIN, top=_THIN, bottom=_THIN)


def _colour_ratios(sheet: Worksheet, table: pd.DataFrame) -> None:
    """One scale a metric: their levels differ by far more than models and datasets do within one."""
    first, last = _HEADER_ROWS + 1, _HEADER_ROWS + len(table)
    for metric in table.columns.unique(0):
        letters = [
            get_column_letter(i)
            for i, column in enumerate(table.columns, start=2)
            if column[0] == metric and column[-1] == "RATIO"
        ]
        if len(table):
            rule = ColorScaleRule(
                start_type="min",
                start_color=RED,
                mid_type="percentile",
                mid_value=50,
                mid_color=YELLOW,
                end_type="max",
                end_color=GREEN,
            )
            sheet.conditional_formatting.add(" ".join(f"{letter}{first}:{letter}{last}" for letter in letters), rule)


def _write_description(sheet: Worksheet) -> None:
    sheet.append(["Name", "What it is", "Rule", "Where from"])
    for row in _DESCRIPTION:
        sheet.append(row)
    sheet.append([])
    for source in _SOURCES:
        sheet.append([source])
        sheet.merge_cells(start_row=sheet.max_row, end_row=sheet.max_row, start_column=1, end_column=4)
    for cell in sheet[1]:
        cell.font, cell.fill = Font(bold=True), _SHADE
    for row in sheet.iter_rows():
        for cell in row:
            cell.alignment = _WRAP
    for letter, width in _WIDTHS.items():
        sheet.column_dimensions[letter].width = width
    for row, texts in enumerate(_DESCRIPTION, start=2):  # wrapped rows do not grow by themselves everywhere
        lines = max(math.ceil(1.1 * len(text) / width) for text, width in zip(texts, _WIDTHS.values(), strict=True))
        sheet.row_dimensions[row].height = 15 * lines
    sheet.freeze_panes = "B2"
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True
