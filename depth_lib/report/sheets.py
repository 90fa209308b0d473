"""Tables of one row a value as sheets of the workbook: title, header, frozen panes, two decimals, colours."""

import pandas as pd
from openpyxl import Workbook
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

from .spreadsheet import GREEN, MISSING, RED, YELLOW

# name: title of the sheet, and what its rows say.
SHEETS = {
    "intervals": (
        "Intervals",
        "Effective depth with its 95 % bootstrap interval over prompts (low, high: layers that "
        "the prompts do not rule out), the share of draws with the same depth and with none, and what it "
        "rests on: the depth between layers, over all thresholds, every crossing of the cosine.",
    ),
    "thresholds": (
        "Thresholds",
        "Effective depth at other thresholds than the papers' (kl 0.5 of the maximum, overlap 0.3).",
    ),
    "five_probes": (
        "Five Probes",
        "Effective depth by the paper's three metrics and by future effects, residual "
        "erasure and integrated gradients; score is the centre of mass of an effect, in layers.",
    ),
    "beside_the_paper": (
        "Beside The Paper",
        "Published effective depth (Hu et al. 2025, arXiv 2512.14064, Table 1), "
        "and ours; within the interval: the published layer is one that our prompts do not rule out.",
    ),
}
VERDICTS = {
    "same": "63BE7B",
    "within the interval": "C6E0B4",
    "differs": "F8CBAD",
    "differs, no interval": "FCE4D6",
    "no effective depth": "D9D9D9",
    "other depth": "D9D9D9",
}
_THIN, _SHADE = Side(style="thin", color="999999"), PatternFill("solid", fgColor="EEEEEE")
_TWO_DECIMALS = (
    "ratio",
    "ratio_low",
    "ratio_high",
    "published_ratio",
    "same",
    "without",
    "fractional",
    "score",
    "threshold",
)
_HEADER = 3


def add_sheet(book: Workbook, name: str, frame: pd.DataFrame) -> Worksheet:
    """A sheet of one of `SHEETS` from a frame with a row a value; missing values "–"."""
    title, about = SHEETS[name]
    sheet = book.create_sheet(title)
    n_columns = len(frame.columns)
    for row, text, font in ((1, title, Font(bold=True, size=13)), (2, about, Font(italic=True))):
        sheet.cell(row, 1, text).font = font
        sheet.cell(row, 1).alignment = Alignment(wrap_text=True, vertical="top")
        sheet.merge_cells(start_row=row, end_row=row, start_column=1, end_column=n_columns)
    for i, column in enumerate(frame.columns, start=1):
        cell = sheet.cell(_HEADER, i, column.replace("_", " "))
        cell.font, cell.fill = Font(bold=True), _SHADE
        cell.border = Border(left=_THIN, right=_THIN, top=_THIN, bottom=_THIN)
        cell.alignment = Alignment(horizontal="center", vertical="center", wrap_text=True)
        for row, value in enumerate(frame[column], start=_HEADER + 1):
            _write(sheet, row, i, column, value)
    widths = [_width(frame[column], column) for column in frame.columns]
    for i, width in enumerate(widths, start=1):
        sheet.column_dimensions[get_column_letter(i)].width = width
    sheet.row_dimensions[2].height = 15 * (1 + int(1.15 * len(about) / sum(widths)))
    sheet.row_dimensions[_HEADER].height = 30
    sheet.freeze_panes = sheet.cell(_HEADER + 1, 4)  # model, dataset and metric stay
    sheet.auto_filter.ref = f"A{_HEADER}:{get_column_letter(n_columns)}{_HEADER + len(frame)}"
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True
    sheet.print_title_rows = f"{_HEADER}:{_HEADER}"
    if "ratio" in frame:
        _colour(sheet, list(frame.columns).index("ratio") + 1, len(frame))
    return sheet


def paint_verdicts(sheet: Worksheet, frame: pd.DataFrame) -> None:
    """Each verdict in its colour: green agrees, orange differs, grey cannot be compared."""
    for column in ("difference", "verdict"):
        i = list(frame.columns).index(column) + 1
        for row, verdict in enumerate(frame["verdict"], start=_HEADER + 1):
            sheet.cell(row, i).fill = PatternFill("solid", fgColor=VERDICTS[verdict])


def _write(sheet: Worksheet, row: int, i: int, column: str, value: object) -> None:
    if isinstance(value, str):
        cell = sheet.cell(row, i, value)
        cell.alignment = Alignment(horizontal="left")
        return
    shown = MISSING if pd.isna(value) else round(float(value), 2) if column in _TWO_DECIMALS else int(value)
    cell = sheet.cell(row, i, shown)
    cell.alignment = Alignment(horizontal="center")
    cell.number_format = "0.00" if column in _TWO_DECIMALS else "0"


def _width(values: pd.Series, column: str) -> float:
    longest = max([len(str(value)) for value in values if isinstance(value, str)] + [0])
    return min(max(longest, max(map(len, column.split("_"))) + 3, 8), 70) + 2


def _colour(sheet: Worksheet, i: int, n_rows: int) -> None:
    letter = get_column_letter(i)
    rule = ColorScaleRule(
        start_type="min",
        start_color=RED,
        mid_type="percentile",
        mid_value=50,
        mid_color=YELLOW,
        end_type="max",
        end_color=GREEN,
    )
    sheet.conditional_formatting.add(f"{letter}{_HEADER + 1}:{letter}{_HEADER + n_rows}", rule)
